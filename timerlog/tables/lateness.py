"""Histograms: of any values, and of how late messages are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickwheel_native import delivery

#: Upper bounds for how late something was, in ms: finest where the goals lie.
LATENESS_MS: Final = (
    *(0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000),
    *(10_000, 30_000, 60_000, 600_000, 3_600_000, 86_400_000),
)


_LEAST_KEPT: Final = 64


class Histogram:
    """Counts values by upper bounds, which are inclusive; what is above the last one is counted too."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = np.zeros(len(bounds) + 1, np.int64)  #: one for each bound, and one for what is above
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Takes one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

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
        assert epochs is None or len(epochs) == len(values), "each delivery has its epoch"
        taken, sum_ms = delivery.count_lateness(
            store=store,
            group_id=group_id,
            values=values,
            epochs=epochs,
            now_ms=now_ms,
            bounds=self._bounds,
            counts=self.counts,
        )
        assert 0 <= taken <= len(values), "each message counts once, at most"
        self.sum += sum_ms
        return taken


class LatenessOf(Lateness):
    """Of everything together, and of each of many things: topics, or groups. C looks at a message once: what a batch
    has is added to both."""

    def __init__(self, alive: Container[int]) -> None:
        """``alive``: the ids of those that there are now. What others had stays in the whole, and is forgotten else."""
        super().__init__()
        self._alive = alive
        self._batch = Lateness()
        self._of: dict[int, npt.NDArray[np.int64]] = {}
        self._most = _LEAST_KEPT

    def take_of(
        self,
        one: int,
        store: Any,
        group_id: int,
        values: npt.NDArray[np.uint64],
        epochs: npt.NDArray[np.uint32] | None,
        now_ms: int,
    ) -> int:
        """As ``take``, of one thing."""
        batch = self._batch
        batch.counts[:] = 0
        batch.sum = 0.0
        taken = batch.take(store, group_id, values, epochs, now_ms)
        if taken:
            self.counts += batch.counts
            self.sum += batch.sum
            own = self._of.get(one)
            if own is None:
                own = self._begin(one)
            own += batch.counts
        return taken

    def of(self, ids: Iterable[int]) -> list[int]:
        """The counts of some of them together; empty: there are none."""
        found = [self._of[one] for one in ids if one in self._of]
        counts: list[int] = np.sum(found, axis=0).tolist() if found else []
        return counts

    def _begin(self, one: int) -> npt.NDArray[np.int64]:
        if len(self._of) >= self._most:
            self._of = {known: counts for known, counts in self._of.items() if known in self._alive}
            self._most = max(_LEAST_KEPT, 2 * len(self._of))
        self._of[one] = np.zeros_like(self.counts)
        return self._of[one]
