"""What each topic was sent, what of it was delivered, and its backlog: minute by minute, for the last hour.

The broker counts since its data directory was made, so that what came in a minute is the difference of two samples.
Nothing is known of a minute without samples. Topics that had nothing take no memory. Where too many had something in a
minute, the least busy ones are left out, and nothing is known of them for that minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from typing import Final, NamedTuple

from tickwheel.stats import Figures, datetime_of

STEP_S: Final = 60
STEPS: Final = 60
MAX_TOPICS: Final = 2_000
"""In a minute that is over: 60 minutes of so many take 30 MB."""
_MS: Final = 1_000
_STEP_MS: Final = STEP_S * _MS


class Counts(NamedTuple):
    """Of a topic in a minute, as far as it was seen."""

    sent: int = 0
    delivered: int = 0
    """To all groups, repeated deliveries included."""
    backlog: int = 0
    """The most that a sample had, of all groups together."""


class Minute(NamedTuple):
    """A minute of one topic; None: nothing is known."""

    since: datetime
    seen_s: float
    """So much of it lies between two samples."""
    counts: Counts | None

    def per_s(self, name: str) -> float | None:
        """``sent`` or ``delivered`` in a second of what was seen."""
        return None if self.counts is None else float(getattr(self.counts, name)) / self.seen_s


class _Sample(NamedTuple):
    now_ms: int
    started_ms: int
    taken_s: float
    sent: dict[int, int]
    """By the ids of topics."""
    delivered: dict[int, int]
    """By the ids of groups."""


@dataclass(eq=False)
class _Step:
    since_ms: int
    seen_ms: int = 0
    topics: dict[int, Counts] = field(default_factory=dict)
    is_cut: bool = False


class Traffic:
    """Takes the samples that the ring takes."""

    def __init__(self, *, gap_ms: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._gap_ms = gap_ms
        self._clock_s = clock_s
        self._steps: deque[_Step] = deque(maxlen=STEPS)
        self._last: _Sample | None = None

    def add(self, figures: Figures) -> None:
        """A sample. What came before it belongs to its minute, and is not known where the last one is long ago."""
        topics = [one for one in figures.topics if not one.shard_of]
        last, self._last = (
            self._last,
            _Sample(
                figures.now_ms,
                figures.started_ms,
                self._clock_s(),
                {one.topic_id: one.messages for one in topics},
                {group.group_id: group.delivered for one in topics for group in one.groups},
            ),
        )
        if last is None or last.started_ms != figures.started_ms:
            return
        if not 0 < figures.now_ms - last.now_ms <= self._gap_ms:
            return
        step = self._step(figures.now_ms)
        step.seen_ms += figures.now_ms - last.now_ms
        for one in topics:
            sent = one.messages - last.sent.get(one.topic_id, 0)
            delivered = backlog = 0
            for group in one.groups:
                delivered += group.delivered - last.delivered.get(group.group_id, 0)
                backlog += group.backlog
            if sent or delivered or backlog:
                old = step.topics.get(one.topic_id) or Counts()
                step.topics[one.topic_id] = Counts(
                    old.sent + max(0, sent), old.delivered + max(0, delivered), max(old.backlog, backlog)
                )

    def _step(self, now_ms: int) -> _Step:
        """The one that now belongs to."""
        since_ms = now_ms // _STEP_MS * _STEP_MS
        if self._steps and self._steps[-1].since_ms > since_ms:
            self._steps.clear()  # the clock was set back: nothing here is comparable
        if not self._steps or self._steps[-1].since_ms < since_ms:
            if self._steps:
                _cut(self._steps[-1])
            self._steps.append(_Step(since_ms))
        return self._steps[-1]

    def minutes(self, topic_id: int) -> list[Minute]:
        """Of one topic, the last hour until now; empty: nothing is known of any."""
        if self._last is None:
            return []
        steps = {step.since_ms: step for step in self._steps}
        now_ms = self._last.now_ms + int((self._clock_s() - self._last.taken_s) * _MS)
        first_ms = (now_ms // _STEP_MS - STEPS + 1) * _STEP_MS
        found = [_minute(since_ms, steps.get(since_ms), topic_id) for since_ms in _minutes_from(first_ms)]
        return found if any(one.counts is not None for one in found) else []


def _minutes_from(first_ms: int) -> range:
    return range(first_ms, first_ms + STEPS * _STEP_MS, _STEP_MS)


def _minute(since_ms: int, step: _Step | None, topic_id: int) -> Minute:
    since = datetime_of(since_ms)
    if step is None:
        return Minute(since, 0.0, None)
    nothing = None if step.is_cut else Counts()
    return Minute(since, step.seen_ms / _MS, step.topics.get(topic_id, nothing))


def _cut(step: _Step) -> None:
    """To those with most, if there are too many."""
    if len(step.topics) > MAX_TOPICS:
        step.is_cut = True
        step.topics = dict(nlargest(MAX_TOPICS, step.topics.items(), key=lambda one: _weight(one[1])))


def _weight(counts: Counts) -> tuple[int, int]:
    return counts.sent + counts.delivered, counts.backlog
