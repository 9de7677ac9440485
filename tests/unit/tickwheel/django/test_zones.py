"""Moments without a zone, with ``USE_TZ = False``: they are of the project's zone, in every thread."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import override_settings
from django.utils import timezone

from tickwheel.django.records import _moment, aware

NAIVE = datetime(2031, 5, 1, 9)


@pytest.mark.parametrize("activated", [None, "Asia/Tokyo", "America/New_York"])
def test_a_moment_without_a_zone_is_of_the_projects_zone(activated: str | None) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Paris"), timezone.override(activated):
        assert aware(NAIVE) == datetime(2031, 5, 1, 7, tzinfo=UTC)
        assert _moment("2031-05-01T07:00:00+00:00") == NAIVE
    with override_settings(USE_TZ=True, TIME_ZONE="Europe/Paris"), timezone.override(activated):
        assert _moment("2031-05-01T09:00:00") == datetime(2031, 5, 1, 7, tzinfo=UTC)
