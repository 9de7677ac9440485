"""What is remembered of the past, within bounds: why deliveries failed, and what the last transactions stored.

Failures are what subscribers said when they gave messages back, for the dead letters' history. They are kept in memory
for messages that are not done: a flood of failures forgets the oldest histories first, never the messages.
Transactions are known by their ids, so that one which a client repeats after a broken connection is not done twice. The
log holds what is kept here, and a replay gives the same.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

MAX_ERROR_CHARS: Final = 500
ATTEMPTS_KEPT: Final = 10
#: About so many characters of failures are kept in all.
CAPACITY_CHARS: Final = 1_000_000
#: Far more transactions than can be committed while a client still tries to repeat one of them.
MOST_TRANSACTIONS: Final = 20_000
_ENTRY_CHARS: Final = 40


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """One delivery that its subscriber gave back. By epoch, not by attempt: from which epoch on attempts are counted
    can change later, so only the epoch is the same when the log is replayed on newer tables."""

    epoch: int
    at_ms: int  #: when the message was to go on
    error: str


class Failures:
    """Histories by group and topic_seq."""

    def __init__(self) -> None:
        # A plain dict, emptied from its front, takes longer and longer to find what is first.
        self._histories: OrderedDict[tuple[int, int], list[Failure]] = OrderedDict()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._histories)

    def add(self, group_id: int, seq: int, failure: Failure) -> None:
        history = self._histories.setdefault((group_id, seq), [])
        history.append(failure)
        self._chars += _cost(failure)
        if len(history) > ATTEMPTS_KEPT:
            self._chars -= _cost(history.pop(0))
        while self._chars > CAPACITY_CHARS:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._histories))
        self.done(*oldest)

    def of(self, group_id: int, seq: int) -> list[Failure]:
        """The last failures of a message, oldest first."""
        return list(self._histories.get((group_id, seq), ()))

    def done(self, group_id: int, seq: int) -> None:
        """The group is done with the message."""
        self._chars -= sum(map(_cost, self._histories.pop((group_id, seq), ())))
        assert self._chars >= 0, "what is forgotten was counted"
        assert self._histories or not self._chars, "what is counted is kept"

    def done_range(self, group_id: int, first: int, count: int) -> None:
        """The group is done with all messages of a range."""
        for seq in self._known(group_id, first, count):
            self.done(group_id, seq)

    def shift(self, group_id: int, first: int, count: int) -> None:
        """The last delivery of each message of a range was no attempt: earlier ones keep their numbers as attempts when
        their epochs are one higher."""
        for seq in self._known(group_id, first, count):
            history = self._histories[group_id, seq]
            history[:] = [Failure(failure.epoch + 1, failure.at_ms, failure.error) for failure in history]

    def _known(self, group_id: int, first: int, count: int) -> list[int]:
        if count <= len(self._histories):
            return [seq for seq in range(first, first + count) if (group_id, seq) in self._histories]
        return [seq for group, seq in self._histories if group == group_id and first <= seq < first + count]

    def forget_group(self, group_id: int) -> None:
        """The group is gone."""
        for group, seq in [known for known in self._histories if known[0] == group_id]:
            self.done(group, seq)

    def dump(self) -> list[tuple[int, int, list[Failure]]]:
        """Everything, for a checkpoint."""
        return [(group_id, seq, history) for (group_id, seq), history in self._histories.items()]

    def load(self, entries: list[tuple[int, int, list[Failure]]]) -> None:
        """What ``dump`` gave."""
        self._histories = OrderedDict(((group_id, seq), list(history)) for group_id, seq, history in entries)
        self._chars = sum(_cost(failure) for history in self._histories.values() for failure in history)


def _cost(failure: Failure) -> int:
    return _ENTRY_CHARS + len(failure.error)


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
        if len(self._results) > MOST_TRANSACTIONS:
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
