"""Histograms that are filled a batch at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickwheel_native import delivery

#: Upper bounds for how late something was, in ms: finest where the goals lie.
LATENESS_MS: Final = (
    *(0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000),
    *(10_000, 30_000, 60_000, 600_000, 3_600_000, 86_400_000),
)


class Histogram:
    """Counts values by upper bounds, which are inclusive; what is above the last one is counted too."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = np.zeros(len(bounds) + 1, np.int64)  #: one for each bound, and one for what is above
        self.sum = 0.0
        self._edges = np.array(bounds, np.float64)

    def observe(self, value: float) -> None:
        """Takes one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: npt.NDArray[Any]) -> None:
        """Takes a batch of values."""
        places = np.searchsorted(self._edges, values, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += float(values.sum())

    @property
    def count(self) -> int:
        """How many values there were."""
        return int(self.counts.sum())


class Lateness(Histogram):
    """How late messages are, in ms; C looks at each of them."""

    def __init__(self) -> None:
        super().__init__(LATENESS_MS)
        self._bounds = np.array(LATENESS_MS, np.int64)

    def take(
        self,
        store: Any,
        group_id: int,
        values: npt.NDArray[np.uint64],
        epochs: npt.NDArray[np.uint32] | None,
        now_ms: int,
    ) -> int:
        """Takes messages of a ``tw_store``: ids, or numbers in a group's topic; with epochs, the first deliveries
        among them. Returns how many were taken."""
        taken, sum_ms = delivery.count_lateness(
            store, group_id, values, epochs, now_ms, self._bounds, self.counts
        )
        self.sum += sum_ms
        return taken
