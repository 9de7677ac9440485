"""Stretches of message ids whose messages are all gone, which whoever goes through the MessageTable leaves out.

A message for a day in some years stays where it is in the table, and behind it lie the rows of all that came and went
since: holes of the file, terabytes of addresses. To read them costs a page fault for each 85 ids.

A message that is gone does not come back. There is one exception: a bulk job has the ids that were given to it before,
and its rows look as if they were gone until it is taken in. ``leave`` must hear of it before a row is filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from tickwheel_native import store as native_store
from tickwheel_native.arrays import Store

#: Ids from, to below.
Stretch: TypeAlias = tuple[int, int]

#: Shorter ones are read: that takes a few hundred microseconds.
LEAST_IDS: Final = 1 << 16
#: Of more only the longest are kept: each checkpoint and each description of the store lists them.
MOST: Final = 1_024


class EmptyRows:
    """The stretches that are known, as C sees them."""

    def __init__(self, native: Store, stretches: Iterable[Stretch] = ()) -> None:
        """``stretches``: in order and apart."""
        self._native = native
        self.put(stretches)

    def put(self, stretches: Iterable[Stretch]) -> None:
        """Takes these instead of all that were known: in order and apart."""
        found = list(stretches)
        if len(found) > MOST:
            found = sorted(sorted(found, key=lambda stretch: stretch[0] - stretch[1])[:MOST])
        assert all(start < end for start, end in found), "a stretch has ids"
        assert all(before[1] < after[0] for before, after in pairwise(found)), "they lie apart"
        #: In order.
        self.stretches: list[Stretch] = found
        self._array = np.array(found, np.uint64).reshape(-1)
        native_store.use_empty_rows(self._native, self._array)

    def leave(self, start: int, end: int) -> None:
        """Rows from ``start`` to below ``end`` are about to be filled: no stretch has a part of them any more."""
        assert start <= end, "what is filled ends where it begins, or later"
        if self.stretches and start < self.stretches[-1][1]:
            kept = [stretch for stretch in self.stretches if stretch[1] <= start or stretch[0] >= end]
            if len(kept) < len(self.stretches):
                self.put(kept)


class Look:
    """Finds the stretches while somebody goes through the table: call ``piece`` for each, in order, of at most
    ``LEAST_IDS``, and leave nothing out but gaps and stretches that are known."""

    def __init__(self, first_id: int) -> None:
        """``first_id``: where the first piece begins, or what is left out before it."""
        self._since = first_id
        self._found: list[Stretch] = []

    def piece(self, used: tuple[int, int] | None) -> None:
        """``used``: the first and the last message in it that are there; None: there is none."""
        if used is not None:
            assert self._since <= used[0] <= used[1], "pieces come in their order"
            self._note(used[0])
            self._since = used[1] + 1

    def found(self, end: int) -> list[Stretch]:
        """All of them, when the last piece ended at ``end``."""
        self._note(end)
        self._since = end
        return self._found

    def _note(self, end: int) -> None:
        if end - self._since >= LEAST_IDS:
            self._found.append((self._since, end))
