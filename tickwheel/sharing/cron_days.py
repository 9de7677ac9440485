"""The days of a cron expression, where other schedulers want both fields to fit and cron is content with one."""

from __future__ import annotations


def has_both_days(day: str, weekday: str) -> bool:
    """Whether both fields restrict the days. Then cron comes on the days of either, Celery and Taskiq on those that fit
    both. A field that begins with a star does not count: with it cron wants both to fit, too."""
    return not day.startswith("*") and not weekday.startswith("*")
