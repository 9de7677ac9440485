"""The last transactions, so that one which a client repeats after a broken connection is not done twice."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: Far more than can be committed while a client still tries to repeat one of them.
CAPACITY: Final = 20_000


class RecentTransactions:
    """What each transaction stored, by the id that its client gave it: (first message id, count) of each send."""

    def __init__(self) -> None:
        # A plain dict, emptied from its front, takes longer and longer to find what is first.
        self._results: OrderedDict[bytes, list[tuple[int, int]]] = OrderedDict()

    def get(self, transaction_id: bytes) -> list[tuple[int, int]] | None:
        """None: this transaction was never committed, or long ago."""
        return self._results.get(transaction_id)

    def add(self, transaction_id: bytes, sends: list[tuple[int, int]]) -> None:
        """It was committed."""
        self._results[transaction_id] = sends
        if len(self._results) > CAPACITY:
            self._results.popitem(last=False)

    def discard(self, transaction_id: bytes) -> None:
        """It was not committed after all."""
        self._results.pop(transaction_id, None)

    def dump(self) -> list[tuple[bytes, list[tuple[int, int]]]]:
        """Everything, for a checkpoint."""
        return list(self._results.items())

    def load(self, entries: list[tuple[bytes, list[tuple[int, int]]]]) -> None:
        """What ``dump`` gave."""
        self._results = OrderedDict(entries)
