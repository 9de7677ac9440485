"""Tests of the shop: weeks pass in milliseconds."""

from datetime import timedelta

from django.test import TestCase

from shop import orders
from shop.models import Letter
from tickwheel.django import TickwheelTestMixin


class ReminderTests(TickwheelTestMixin, TestCase):
    """Reminders come after two weeks, to those who have not paid."""

    def letters(self):
        """What was written."""
        return [one.text for one in Letter.objects.order_by("pk")]

    def test_a_reminder_comes_after_two_weeks(self):
        order = orders.place()
        self.assertEqual(self.advance(timedelta(days=13)), [])
        (result,) = self.advance(timedelta(days=2))
        self.assertEqual(result.attempts, 1)
        self.assertEqual(self.letters(), [f"Please pay order {order.pk}."])

    def test_who_has_paid_is_not_reminded(self):
        order = orders.place()
        self.assertEqual(orders.pay(order), "cancelled")
        self.advance(timedelta(days=15))
        self.assertEqual(self.letters(), [f"Thanks for order {order.pk}."])

    def test_more_time(self):
        order = orders.place()
        self.assertEqual(orders.postpone(order, days=30), "rescheduled")
        self.assertEqual(self.advance(timedelta(days=29)), [])
        self.assertEqual(len(self.advance(timedelta(days=2))), 1)
        self.assertEqual(orders.postpone(order, days=30), "already_acked")
