"""What the labels of a task say to the broker: when it is due, how urgent it is, and as which it is known.

Taskiq makes texts of all labels before a broker sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tickwheel.client.checks import shown
from tickwheel.errors import BadArgument, BadTime
from tickwheel.protocol.limits import MAX_PRIORITY
from tickwheel.protocol.moments import parse_moment
from tickwheel.protocol.units import seconds_ms

DELAY: Final = "delay"
DELIVER_AT: Final = "deliver_at"
PRIORITY: Final = "priority"
KEY: Final = "key"
SCHEDULE: Final = "schedule_id"
_REPEATS: Final = ("_retries", "X-Taskiq-requeue")
"""Taskiq counts here how often it has sent a task again, under the same id."""


class Wishes(NamedTuple):
    """What is asked of the broker for one message."""

    delay_ms: int | None
    deliver_at: datetime | None
    priority: int | None
    key: str | None
    """None: the task's id is its key."""
    repeats: int
    """How often it was sent before under the same id."""


def wishes_of(labels: Mapping[str, Any]) -> Wishes:
    """Raises BadArgument, BadTime, NaiveDatetime (when it is sent)."""
    delay, deliver_at = labels.get(DELAY), labels.get(DELIVER_AT)
    at = None if deliver_at is None else moment(deliver_at)
    repeats = sum(_whole(labels.get(name, 0), name) for name in _REPEATS)
    priority = labels.get(PRIORITY)
    key = labels.get(KEY)
    return Wishes(
        None if delay is None else _delay_ms(delay),
        # Of a retry the delay is the newer one: the moment is that of the first time.
        None if delay is not None and repeats else at,
        None if priority is None else _priority(priority),
        None if key is None else str(key),
        repeats,
    )


def moment(value: Any) -> datetime:
    """A datetime, or its text. One without a zone is in UTC, as everywhere in Taskiq. Raises BadTime."""
    try:
        at = value if isinstance(value, datetime) else parse_moment(str(value))
    except ValueError:
        raise BadTime(
            f"The label {DELIVER_AT} is {shown(value)}.",
            advice="Use a datetime, or a text as isoformat() makes it.",
        ) from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _delay_ms(value: Any) -> int:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise BadTime(f"The label {DELAY} is {shown(value)}.", advice="Use seconds, 0 or more.")
    return seconds_ms(seconds)


def _priority(value: Any) -> int:
    number = _whole(value, PRIORITY)
    if not 0 <= number <= MAX_PRIORITY:
        raise BadArgument(
            f"The label {PRIORITY} is {number}.", advice=f"Use 0 (first) to {MAX_PRIORITY} (last)."
        )
    return number


def _whole(value: Any, name: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadArgument(f"The label {name} is {shown(value)}.", advice="Use a whole number.") from None
