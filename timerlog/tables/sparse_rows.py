"""Rows that have no disk space while a log is replayed.

A log that was purged begins with what is left of it: the ids of its messages lie as far apart as their times. Nor do
a table's own holes, which a purge made, have disk space. A row in a hole must not be written before it has some: on a
full disk that would end the process, and on tmpfs it would be lost. So whoever replays is asked for it, a block of
rows at the first message that comes to it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tickwheel_native import lib
from tickwheel_native import store as native_store
from tickwheel_native.arrays import Store, UInt8s
from timerlog.tables.empty_rows import LEAST_IDS, Stretch
from timerlog.tables.table import Table

BLOCK_IDS: Final = lib.TW_SPARSE_IDS


class SparseRows:
    """Which blocks have disk space, as C sees them."""

    def __init__(self, native: Store, messages: Table) -> None:
        self._native, self._messages = native, messages
        self._has_space: UInt8s = np.zeros(0, np.uint8)
        self._left: Stretch = (0, 0)

    def expect(self, end: int) -> None:
        """From here on a row below ``end`` may lie in a hole, until ``done``."""
        assert end <= self._messages.capacity, "what has no addresses is asked for in another way"
        before, self._has_space = self._has_space, np.zeros(-(-end // BLOCK_IDS), np.uint8)
        self._has_space[: len(before)] = before[: len(self._has_space)]
        self._use(end)

    def leave_to(self, first: int, end: int) -> None:
        """In a table that has nothing from ``first`` on: rows up to ``end`` take no disk space yet."""
        self._messages.leave_to(end)
        self.expect(min(end, self._messages.capacity))
        self._left = first, min(end, self._messages.capacity)

    def fill(self, first: int, end: int) -> None:
        """Gives rows disk space, and all of their blocks. Raises ``DiskFull``."""
        end = min(end, int(self._native.sparse_end))
        if first < end:
            blocks = slice(first // BLOCK_IDS, -(-end // BLOCK_IDS))
            start, stop = blocks.start * BLOCK_IDS, min(blocks.stop * BLOCK_IDS, self._messages.capacity)
            self._messages.region.refill(*self._messages.span(max(start, self._messages.start), stop))
            self._has_space[blocks] = 1

    def given_back(self, first: int, end: int) -> None:
        """Rows lie in a hole from now on, by whole pages, and blocks with a part of them count as such."""
        known = int(self._native.sparse_end)
        if not known:
            return  # nothing is replayed
        if end > known:
            self.expect(self._messages.capacity)
            self._has_space[-(-known // BLOCK_IDS) :] = 1
        self._has_space[first // BLOCK_IDS : -(-end // BLOCK_IDS)] = 0

    def done(self) -> list[Stretch]:
        """Nothing is replayed any more. Returns stretches of ids in which no message came."""
        start, end = self._left
        blocks = np.flatnonzero(self._has_space[start // BLOCK_IDS : end // BLOCK_IDS]) + start // BLOCK_IDS
        starts = np.concatenate([[start], (blocks + 1) * BLOCK_IDS])
        ends = np.concatenate([blocks * BLOCK_IDS, [end]])
        is_long = ends - starts >= LEAST_IDS
        self._has_space, self._left = np.zeros(0, np.uint8), (0, 0)
        self._use(0)
        return list(zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True))

    def _use(self, end: int) -> None:
        assert end <= len(self._has_space) * BLOCK_IDS, "each row that is asked about lies in a block"
        native_store.use_sparse_rows(self._native, self._has_space, end)
