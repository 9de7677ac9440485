"""The chains of ``native/delivery.c``: messages that wait, one behind the other, for each priority."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.twins.store import LAST, Array, TwinStore


class Chain:
    """The first and last item of each priority's chain, a bit for each chain that holds something, and the link from
    each item to the next. Items are numbered by topic_seq + 1."""

    def __init__(self, struct_: Any, items: Array, first: str, last: str, lanes: str, link: str) -> None:
        self.first, self.last, self.lanes = struct_[first], struct_[last], struct_[lanes]
        self.links = items[link]

    def append(self, priority: int, seq: int) -> None:
        self.links[seq] = 0
        if self.last[priority]:
            self.links[int(self.last[priority]) - 1] = seq + 1
        else:
            self.first[priority] = seq + 1
        self.last[priority] = seq + 1
        self.mark(priority)

    def prepend(self, priority: int, seq: int) -> None:
        self.links[seq] = self.first[priority]
        self.first[priority] = seq + 1
        if not self.last[priority]:
            self.last[priority] = seq + 1
        self.mark(priority)

    def pop(self, priority: int) -> int | None:
        """The topic_seq of the first item."""
        if not self.first[priority]:
            return None
        seq = int(self.first[priority]) - 1
        self.first[priority] = self.links[seq]
        if not self.first[priority]:
            self.last[priority] = 0
            self.lanes[priority // 64] &= np.uint64(LAST ^ 1 << priority % 64)
        return seq

    def mark(self, priority: int) -> None:
        self.lanes[priority // 64] |= np.uint64(1 << priority % 64)


def retry_chain(store: TwinStore, group_id: int) -> Chain:
    group, rows = store.groups[group_id], store.deliveries[group_id]
    return Chain(group, rows, "retry_first", "retry_last", "retry_lanes", "retry_next")
