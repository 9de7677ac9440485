"""What the broker's figures were during the last day: a sample each few seconds, in a ring of fixed size.

Counters and histograms are kept as the broker has them, which is added up since its start; what happened between two
moments is the difference of two samples. Where samples are missing, because nobody was logged in or this process or the
broker was started anew, nothing is known, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tickwheel.stats import Figures, Histogram
from tickwheel.watching.between import LATENESS, Between
from tickwheel.watching.by_name import LatenessByName
from tickwheel.watching.numbers import Numbers, numbers_of
from tickwheel_web.dashboard.figures.traffic import Traffic

EVERY_S: Final = 5.0
DAY_SAMPLES: Final = 17_280

_MS: Final = 1_000
_MISSING: Final = 3
"""With so many intervals between two samples, some are missing."""

Column = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Point:
    """One of several equal spans of time; ``between`` is None where nothing is known."""

    since_ms: int
    until_ms: int
    between: Between | None


class History:
    """The ring. It takes memory when it gets its first sample: 7 MB for a day."""

    def __init__(self, *, every_s: float = EVERY_S, samples: int = DAY_SAMPLES) -> None:
        self._most = samples
        self._gap_ms = int(every_s * _MS * _MISSING)
        self.by_name = LatenessByName(gap_ms=self._gap_ms)
        self.traffic = Traffic(gap_ms=self._gap_ms)
        self._bounds: dict[str, list[float]] = {}
        self._clear()

    def __len__(self) -> int:
        return min(self._taken, self._most)

    def _clear(self) -> None:
        self._taken = 0
        self._times_ms: Column = np.zeros(0, np.int64)

    def _begin(self, bounds: dict[str, list[float]]) -> None:
        """With the first sample, and when the broker counts in other buckets than before."""
        self._bounds = bounds
        self._taken = 0
        self._times_ms = np.zeros(self._most, np.int64)
        self._started_ms: Column = np.zeros(self._most, np.int64)
        self._numbers = np.zeros((self._most, len(Numbers._fields)), np.float64)
        self._counts = {
            name: np.zeros((self._most, len(bounds[name]) + 1), np.int64)
            for name in LATENESS
            if name in bounds
        }

    def add(self, figures: Figures) -> None:
        """A sample. One that is not later than the last one is left out: the broker's clock was set back."""
        bounds = {name: figures.histograms[name].bounds for name in LATENESS if name in figures.histograms}
        if not self._taken or bounds != self._bounds:
            self._begin(bounds)
        elif figures.now_ms <= self._last_ms - self._gap_ms:
            self._begin(bounds)  # it was set back by so much that nothing here is comparable
        elif figures.now_ms <= self._last_ms:
            return
        self.by_name.add(figures)
        self.traffic.add(figures)
        place = self._taken % self._most
        self._times_ms[place] = figures.now_ms
        self._started_ms[place] = figures.started_ms
        self._numbers[place] = numbers_of(figures)
        for name, counts in self._counts.items():
            counts[place] = figures.histograms[name].counts
        self._taken += 1

    @property
    def last_ms(self) -> int | None:
        """The broker's time of the last sample; None: there is none."""
        return self._last_ms if self._taken else None

    @property
    def _last_ms(self) -> int:
        return int(self._times_ms[(self._taken - 1) % self._most])

    def lately(self, span_s: float) -> Between | None:
        """Since so many seconds before the last sample, or since the first one after that; None: nothing is known."""
        if len(self) < 2:
            return None
        places, times_ms = self._in_order()
        return self._between(places, times_ms, self._first_since(times_ms, self._last_ms - span_s * _MS), -1)

    def points(self, span_s: float, count: int, now_ms: int) -> list[Point]:
        """The time until now in so many equal spans."""
        return list(self._points(span_s, count, now_ms))

    def _points(self, span_s: float, count: int, now_ms: int) -> Iterator[Point]:
        step_ms = int(span_s * _MS) // count
        edges = [now_ms - step_ms * number for number in range(count, -1, -1)]
        if not self._taken:
            yield from (Point(since, until, None) for since, until in pairwise(edges))
            return
        places, times_ms = self._in_order()
        at = np.searchsorted(times_ms, edges, side="right") - 1
        for number in range(count):
            first, last = int(at[number]), int(at[number + 1])
            known = (
                first >= 0
                and edges[number] - times_ms[first] <= self._gap_ms
                and edges[number + 1] - times_ms[last] <= self._gap_ms
            )
            between = self._between(places, times_ms, first, last) if known else None
            yield Point(edges[number], edges[number + 1], between)

    def _in_order(self) -> tuple[Column, Column]:
        """The places of the samples from the oldest on, and their times."""
        places = np.arange(max(0, self._taken - self._most), self._taken, dtype=np.int64) % self._most
        return places, self._times_ms[places]

    def _first_since(self, times_ms: Column, since_ms: float) -> int:
        """The first sample since then behind the last gap."""
        gaps = np.flatnonzero(np.diff(times_ms) > self._gap_ms)
        first = int(gaps[-1]) + 1 if len(gaps) else 0
        return max(first, int(np.searchsorted(times_ms, since_ms)))

    def _between(self, places: Column, times_ms: Column, first: int, last: int) -> Between | None:
        """None: there is no time between them, or the broker was started in between."""
        before, after = int(places[first]), int(places[last])
        if before == after or self._started_ms[before] != self._started_ms[after]:
            return None
        return Between(
            int(times_ms[first]),
            int(times_ms[last]),
            Numbers(*(self._numbers[after] - self._numbers[before]).tolist()),
            Numbers(*self._numbers[after].tolist()),
            {
                name: Histogram(self._bounds[name], (counts[after] - counts[before]).tolist(), 0.0)
                for name, counts in self._counts.items()
            },
        )
