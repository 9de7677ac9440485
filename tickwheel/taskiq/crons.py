"""Cron expressions as Taskiq means them, for the broker, which reads some of them in another way."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tickwheel.errors import BadSchedule
from tickwheel.sharing.cron_days import has_both_days

_HOUR: Final = timedelta(hours=1)
_MOST_HOURS: Final = range(-12, 15)
"""The zones Etc/GMT have these."""


def checked_cron(cron: str) -> str:
    """Raises BadSchedule for what would mean something else here."""
    fields = cron.split()
    if len(fields) != 5:
        raise BadSchedule(
            f"{cron!r} is no cron expression of Taskiq.",
            advice="Use five fields, such as '30 9 * * MON-FRI'.",
        )
    _, _, day, _, weekday = fields
    if has_both_days(day, weekday):
        raise BadSchedule(
            f"{cron!r} has both a day of the month and a day of the week: Taskiq wants both to fit, and here one is "
            "enough.",
            advice="Use one of them, and look at the other one in the task.",
        )
    return cron


def zone_of(offset: str | timedelta | None) -> str:
    """The zone for ``cron_offset``. Raises BadSchedule."""
    if offset is None:
        return "UTC"
    if isinstance(offset, str):
        return offset
    hours, rest = divmod(offset, _HOUR)
    if rest or hours not in _MOST_HOURS:
        raise BadSchedule(
            f"There is no zone that is always {offset} from UTC.",
            advice="Use the name of a zone, such as 'Asia/Kolkata', or whole hours from -12 to 14.",
        )
    # The sign of these names is the other way round: Etc/GMT-2 is two hours ahead.
    return f"Etc/GMT{-hours:+d}" if hours else "UTC"


def offset_of(zone: str) -> str | timedelta | None:
    """The ``cron_offset`` that a zone was made of."""
    if zone == "UTC":
        return None
    if zone.startswith("Etc/GMT"):
        return timedelta(hours=-int(zone.removeprefix("Etc/GMT")))
    return zone
