"""What comes due when, out of the wheel's picture."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from tickwheel.stats import Wheel

HORIZONS: Final = {
    "within a minute": timedelta(minutes=1),
    "within an hour": timedelta(hours=1),
    "within a day": timedelta(days=1),
    "within 30 days": timedelta(days=30),
}
"""With these the wheel is to be asked for."""


class Coming(NamedTuple):
    """What is due in one of several spans of time, one behind the other."""

    label: str
    messages: int


def coming(wheel: Wheel, scheduled: int) -> list[Coming]:
    """Each message once: what is due in an earlier span is not in a later one."""
    found, sum_before = [], 0
    for label, forecast in zip(HORIZONS, wheel.forecast, strict=True):
        sum_until = forecast.timers if forecast.messages is None else forecast.messages
        found.append(Coming(label, max(0, sum_until - sum_before)))
        sum_before = sum_until
    return [*found, Coming("later", max(0, scheduled - sum_before))]
