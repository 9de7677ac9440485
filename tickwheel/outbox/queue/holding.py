"""What a process holds of a queue: which messages of a claim are its own still, as far as it knows.

The database decides, by id and epoch. What is kept here says which leases to extend, what to give back at the end, and
that a message that was just finished is not to be taken for one that was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from sqlalchemy import event
from sqlalchemy.engine import Connection

from tickwheel.outbox.database import Database
from tickwheel.outbox.errors import DatabaseUnavailable, LeaseLost
from tickwheel.outbox.queue.sql import QueueSql, Receipt, Row
from tickwheel.outbox.transactions import Transaction, require_transaction


class State(Enum):
    """What is known of a message here."""

    HELD = auto()
    FINISHING = auto()
    """Its deletion is on its way."""
    DELETED = auto()
    """A transaction of the user's deleted it and was about to commit. If that failed, it may be deleted again."""
    DELETED_ALONE = auto()
    """The same, by itself: a later deletion of the rest of the batch does not mean it."""
    DONE = auto()
    RELEASED = auto()
    LOST = auto()


class Holding:
    """The messages of one claim. Worker threads and the event loop use it at the same time."""

    def __init__(self, database: Database, sql: QueueSql, rows: Sequence[Row], until_s: float) -> None:
        self.database = database
        self.sql = sql
        self._epochs = {row.id: row.epoch for row in rows}
        self._states = dict.fromkeys(self._epochs, State.HELD)
        self._transactions: dict[int, object] = {}
        """In which of the user's transactions a message was deleted last."""
        self._may_be_done: dict[int, float] = {}
        """The connection broke while they were deleted: until when nobody else can have claimed them."""
        self.is_extended = True
        """Whether a consumer extends the leases."""
        self.until_s = until_s
        """When the leases end at the earliest, if they are not extended; by ``time.monotonic``."""
        self._lock = threading.Lock()

    def receipts(self, *states: State, ids: Iterable[int] | None = None) -> list[Receipt]:
        """Id and epoch of the messages, among ``ids``, in one of these states."""
        with self._lock:
            chosen = self._epochs if ids is None else ids
            return [(id_, self._epochs[id_]) for id_ in chosen if self._states[id_] in states]

    def lost_ids(self) -> tuple[int, ...]:
        """What another consumer has taken over."""
        return tuple(id_ for id_, _ in self.receipts(State.LOST))

    def missed(self, ids: Iterable[int]) -> list[int]:
        """Told by a heartbeat that these are not in the table as ours; the ids among them that are lost."""
        with self._lock:
            lost = []
            for id_ in ids:
                if self._states[id_] is State.HELD:
                    was_deleted = id_ in self._transactions
                    self._states[id_] = State.DELETED if was_deleted else State.LOST
                    lost += [] if was_deleted else [id_]
            return lost

    def delete(self, connection: Transaction, ids: Sequence[int], *, is_batch: bool) -> None:
        """Deletes in the user's transaction: of a batch what is not settled otherwise. Raises LeaseLost."""
        connection = require_transaction(connection)
        transaction = connection.get_transaction()
        states = [State.HELD, State.DELETED, State.LOST] if is_batch else list(State)
        with self._lock:
            again = {id_ for id_ in ids if self._transactions.get(id_) is transaction}
        wanted = [receipt for receipt in self.receipts(*states, ids=ids) if receipt[0] not in again]
        if not wanted:
            return
        gone = self.sql.delete(connection, wanted)
        self._raise_lost(id_ for id_, _ in wanted if id_ not in gone)
        with self._lock:
            self._transactions.update(dict.fromkeys(gone, transaction))

        def committing(committed: Connection) -> None:
            if committed.get_transaction() is transaction:  # not a later one of the same connection
                self._set(gone, State.DELETED if is_batch else State.DELETED_ALONE, only=State.HELD)

        event.listen(connection, "commit", committing, once=True)

    def done(self, ids: Sequence[int], *, is_batch: bool) -> None:
        """Deletes in a transaction of its own. Raises LeaseLost for those that are not held any more, after it has
        deleted the others; DatabaseUnavailable, after which it may be called again: before the lease has ended that
        tells whether the first call was done, later what is gone counts as not held."""
        wanted = self.receipts(State.HELD, ids=ids)
        lost = self.receipts(State.LOST, *[State.RELEASED] * (not is_batch), ids=ids)
        until_s = self.until_s  # leases that are extended meanwhile are others
        self._set([id_ for id_, _ in wanted], State.FINISHING)
        gone: set[int] = set()
        try:
            if wanted:
                gone = self.database.run(lambda connection: self._delete_own(connection, wanted))
        except DatabaseUnavailable:
            self._may_be_done.update(dict.fromkeys((id_ for id_, _ in wanted), until_s))
            raise
        finally:
            self._set(gone, State.DONE)
            self._set([id_ for id_, _ in wanted], State.HELD, only=State.FINISHING)
        self._raise_lost(id_ for id_, _ in (*wanted, *lost) if id_ not in gone)

    def _delete_own(self, connection: Connection, wanted: Sequence[Receipt]) -> set[int]:
        gone = self.sql.delete(connection, wanted)
        # If the answer to a first time was lost, what is not there any more was done then; but once its lease may have
        # ended, perhaps by who claimed it after that.
        asked = [id_ for id_, _ in wanted if id_ not in gone and id_ in self._may_be_done]
        absent = set(asked) - self.sql.present(connection, asked)
        now_s = time.monotonic()
        return gone | {id_ for id_ in absent if now_s < self._may_be_done[id_]}

    def release(self, ids: Sequence[int], delay_ns: int = 0) -> None:
        """Gives back what is held. Raises DatabaseUnavailable."""
        wanted = self.receipts(State.HELD, ids=ids)
        if wanted:
            self._set([id_ for id_, _ in wanted], State.RELEASED)
            try:
                self.database.run(lambda connection: self.sql.release(connection, wanted, delay_ns))
            except BaseException:
                self._set([id_ for id_, _ in wanted], State.HELD)
                raise

    def extend(self, ids: Sequence[int], lease_ns: int) -> None:
        """Leases again from now on. Raises LeaseLost."""
        wanted, until_s = self.receipts(State.HELD, ids=ids), time.monotonic() + lease_ns / 1e9
        missed = self.database.run(lambda connection: self.sql.extend(connection, wanted, lease_ns))
        self.until_s = until_s
        self._raise_lost(self.missed(missed))

    def _raise_lost(self, ids: Iterable[int]) -> None:
        lost = sorted(ids)
        if lost:
            self._set(lost, State.LOST, only=State.HELD)
            names = ", ".join(map(str, lost[:5])) + (", …" if len(lost) > 5 else "")
            raise LeaseLost(f"{len(lost):,} of the messages are not held any more: {names}.", ids=lost)

    def _set(self, ids: Iterable[int], state: State, *, only: State | None = None) -> None:
        with self._lock:
            for id_ in ids:
                if only is None or self._states[id_] is only:
                    self._states[id_] = state
