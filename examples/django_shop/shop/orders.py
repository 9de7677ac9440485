"""Orders, and the tasks that belong to them."""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from shop.models import Order
from shop.tasks import remind, thank


@transaction.atomic
def place():
    """The order and its reminder are there together, or neither is."""
    order = Order.objects.create()
    reminder = remind.using(run_after=timezone.now() + timedelta(days=14)).enqueue(order.pk)
    Order.objects.filter(pk=order.pk).update(reminder=reminder.id)
    return Order.objects.get(pk=order.pk)


@transaction.atomic
def pay(order):
    """Cancels the reminder; the answer says whether that was in time."""
    Order.objects.filter(pk=order.pk).update(state="paid")
    thank.enqueue(order.pk)
    return remind.get_backend().cancel(order.reminder)


def postpone(order, days):
    """Gives a customer more time."""
    return remind.get_backend().reschedule(order.reminder, timezone.now() + timedelta(days=days))
