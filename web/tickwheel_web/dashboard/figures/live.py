"""Figures that change while one looks at them, as the pages write them."""

from __future__ import annotations

from tickwheel.stats import Figures
from tickwheel.watching.between import Sample, between, sample_of
from tickwheel.watching.numbers import gauge
from tickwheel_web.dashboard import words

_MS_PER_S = 1_000


def texts(now: Figures, before: Figures | None) -> dict[str, str]:
    """By the names that ``data-live`` has in templates. ``before``: some time ago, for rates; None: not known."""
    sample = sample_of(now)
    numbers = sample.numbers
    return {
        "scheduled": words.count(numbers.scheduled),
        "due_backlog": words.count(numbers.due_backlog),
        "backlog": words.count(numbers.backlog),
        "in_flight": words.count(numbers.in_flight),
        "dead": words.count(numbers.dead),
        "connections": words.count(gauge(now, "connections")),
        "subscribers": words.count(gauge(now, "subscribers")),
        "overdue": words.duration(gauge(now, "oldest_overdue_seconds") * _MS_PER_S),
        **_rates(sample, before),
    }


def _rates(now: Sample, before: Figures | None) -> dict[str, str]:
    found = None if before is None else between(sample_of(before), now)
    return {
        f"{name}_rate": words.rate(None if found is None else found.per_s(name))
        for name in ("sent", "delivered", "acked")
    }
