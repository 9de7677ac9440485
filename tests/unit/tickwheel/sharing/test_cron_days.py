"""Days of cron expressions: the rule is that of the broker's schedules."""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim

from tests.support.run.cases import table
from tickwheel.sharing.cron_days import has_both_days


def days(expression: str) -> set[int]:
    """Of November 2026."""
    found = set()
    for moment in CronSim(expression, datetime(2026, 10, 31, 12)):
        if moment >= datetime(2026, 12, 1):
            break
        found.add(moment.day)
    return found


@table("day", ["*", "*/2", "13", "1-7", "1-31"])
@table("weekday", ["*", "*/2", "5", "FRI", "MON-FRI"])
def test_it_is_what_cron_does(day: str, weekday: str) -> None:
    together = days(f"0 0 {day} * {weekday}")
    both = days(f"0 0 {day} * *") & days(f"0 0 * * {weekday}")
    either = days(f"0 0 {day} * *") | days(f"0 0 * * {weekday}")
    assert together == (either if has_both_days(day, weekday) else both)
