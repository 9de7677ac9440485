"""How late messages of each topic and group were during the last day: what each has had in steps of five minutes.

The broker counts since its start. A topic that was deleted and made anew counts from nothing: what it had before stays
in its step, and nothing is taken off.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from heapq import nlargest
from typing import Final, NamedTuple, TypeAlias

from tickwheel.stats import Figures, Histogram
from tickwheel.watching.between import DELIVERED, REACHED

STEP_S: Final = 300.0
STEPS: Final = 288
MAX_NAMES: Final = 200
"""In a step: those with the most messages."""
_MS: Final = 1_000

Name: TypeAlias = tuple[str, str]
"""Of a topic, and of a group or nothing."""
Counts: TypeAlias = list[int]


class _Step(NamedTuple):
    until_ms: int
    counts: dict[Name, Counts]


class Row(NamedTuple):
    """A topic, or a group of one."""

    topic: str
    group: str
    histogram: Histogram


class LatenessByName:
    """Takes the samples that the ring takes."""

    def __init__(self, *, gap_ms: int, step_s: float = STEP_S, steps: int = STEPS) -> None:
        self._step_ms = int(step_s * _MS)
        self._gap_ms = gap_ms
        self._steps: deque[_Step] = deque(maxlen=steps)
        self._step: dict[Name, Counts] = {}
        """That is not over."""
        self._began_ms = 0
        self._last: Figures | None = None

    def add(self, figures: Figures) -> None:
        """A sample. What came while there was none is not known."""
        last, self._last = self._last, figures
        if last is None or not _goes_on(last, figures, self._gap_ms):
            self._end_step(figures.now_ms if last is None else last.now_ms, figures.now_ms)
            return
        before = dict(_counts(last))
        for key, counts in _counts(figures):
            old = before.get(key) or [0] * len(counts)
            if counts != old:
                sums = self._step.get(key[0]) or [0] * len(counts)
                self._step[key[0]] = [
                    sum_ + new - was for sum_, new, was in zip(sums, counts, old, strict=True)
                ]
        if figures.now_ms - self._began_ms >= self._step_ms:
            self._end_step(figures.now_ms, figures.now_ms)

    def _end_step(self, until_ms: int, began_ms: int) -> None:
        if self._step:
            busiest = nlargest(MAX_NAMES, self._step, key=lambda name: sum(self._step[name]))
            self._steps.append(_Step(until_ms, {name: self._step[name] for name in busiest}))
        self._step, self._began_ms = {}, began_ms

    def rows(self, span_s: float, of: str) -> list[Row]:
        """``of`` topics (``REACHED``), or of groups (``DELIVERED``); the latest ones first."""
        if self._last is None or of not in self._last.histograms:
            return []
        since_ms = self._last.now_ms - span_s * _MS
        sums: dict[Name, Counter[int]] = {}
        parts = [step.counts for step in self._steps if step.until_ms > since_ms]
        for counts_by_name in (*parts, self._step):
            for name, counts in counts_by_name.items():
                if bool(name[1]) == (of == DELIVERED):
                    sums.setdefault(name, Counter()).update(dict(enumerate(counts)))
        bounds = self._last.histograms[of].bounds
        rows = [
            Row(*name, Histogram(bounds, [counts[place] for place in range(len(bounds) + 1)], 0.0))
            for name, counts in sums.items()
        ]
        return sorted(rows, key=lambda row: (-row.histogram.quantile(0.99), -row.histogram.count, row[:2]))


def _goes_on(before: Figures, now: Figures, gap_ms: int) -> bool:
    """Whether they can be compared."""
    is_same = before.started_ms == now.started_ms and _bounds(before) == _bounds(now)
    return is_same and 0 <= now.now_ms - before.now_ms <= gap_ms


def _bounds(figures: Figures) -> list[list[float]]:
    return [figures.histograms[name].bounds for name in (REACHED, DELIVERED) if name in figures.histograms]


def _counts(figures: Figures) -> Iterator[tuple[tuple[Name, int], Counts]]:
    """By names and ids: the same name may come again for another topic or group."""
    for topic in figures.topics:
        if topic.shard_of:
            continue
        if topic.lateness:
            yield ((topic.name, ""), topic.topic_id), topic.lateness
        for group in topic.groups:
            if group.lateness:
                yield ((topic.name, group.name), group.group_id), group.lateness
