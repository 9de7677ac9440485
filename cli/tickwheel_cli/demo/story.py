"""What is to happen: due times and the changes that come while the day goes on, in compressed time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from tickwheel_cli.demo.flights import MINUTE_MS, NEW_YORK, Flight

_PROLOGUE_MS = 15 * MINUTE_MS
_KNOWN_FROM_THE_START_MS = 0
KNOWN_BEFORE_MS = 60 * MINUTE_MS
"""An airline tells the airport an hour before the planned time that a flight is early, late or cancelled."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """At `real_start_ms` it is `story_start_ms` in the story; from then on it runs `speed` times as fast."""

    story_start_ms: int
    real_start_ms: int
    speed: float

    def to_real_ms(self, story_ms: int) -> int:
        """The real time of an instant of the story, in whole milliseconds."""
        return self.real_start_ms + round((story_ms - self.story_start_ms) / self.speed)

    def to_story_ms(self, real_ms: float) -> int:
        """What time it is in the story; before the start, the start."""
        return self.story_start_ms + max(0, round((real_ms - self.real_start_ms) * self.speed))


def local_time(story_ms: int) -> datetime:
    """An instant of the story on the clocks of New York."""
    return datetime.fromtimestamp(story_ms / 1000, NEW_YORK)


def clock(story_ms: int) -> str:
    """`17:05` in New York."""
    return local_time(story_ms).strftime("%H:%M")


@dataclass(frozen=True, slots=True)
class Change:
    """News about a flight. Times are in the story."""

    known_ms: int
    index: int
    departs_ms: int | None  # None: cancelled


@dataclass(frozen=True)
class Plan:
    """All flights in the order of their data, when each is promised at first, and the news to come."""

    flights: Sequence[Flight]
    first_promise_ms: NDArray[np.int64]
    changes: Sequence[Change]  # in the order of known_ms
    start_ms: int  # where the story begins

    @property
    def end_ms(self) -> int:
        """The last thing to happen."""
        latest = max((change.departs_ms or 0 for change in self.changes), default=0)
        return max(latest, int(self.first_promise_ms.max()))

    def real_due_ms(self, timeline: Timeline) -> NDArray[np.int64]:
        """The first promises in real time, as `send_many` takes them."""
        story_ms = self.first_promise_ms - timeline.story_start_ms
        return timeline.real_start_ms + np.rint(story_ms / timeline.speed).astype(np.int64)


def plan_day(flights: Sequence[Flight]) -> Plan:
    """The timetable is promised; flights are rescheduled and cancelled when the news becomes known."""
    changes = [
        Change(flight.scheduled_ms - KNOWN_BEFORE_MS, index, flight.departed_ms)
        for index, flight in enumerate(flights)
        if flight.departed_ms != flight.scheduled_ms
    ]
    promises = np.fromiter((flight.scheduled_ms for flight in flights), np.int64, len(flights))
    changes.sort(key=lambda change: change.known_ms)
    first_ms = min([int(promises.min()), *(change.known_ms for change in changes[:1])])
    return Plan(flights, promises, changes, first_ms - _PROLOGUE_MS)


def plan_year(flights: Sequence[Flight]) -> Plan:
    """What really happened is promised; cancelled flights too, and cancelled before the year starts."""
    promises = np.fromiter(
        (flight.scheduled_ms if flight.departed_ms is None else flight.departed_ms for flight in flights),
        np.int64,
        len(flights),
    )
    cancels = [
        Change(_KNOWN_FROM_THE_START_MS, index, None)
        for index, flight in enumerate(flights)
        if flight.departed_ms is None
    ]
    return Plan(flights, promises, cancels, int(promises.min()) - _PROLOGUE_MS)


def months(story_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """The month in New York, 0 to 11, of instants of 2013; the first hours of 2014 count as December."""
    year = local_time(int(story_ms.min())).replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    starts = [year.replace(month=month).timestamp() * 1000 for month in range(2, 13)]
    return np.searchsorted(np.array(starts), story_ms, side="right").astype(np.int64)
