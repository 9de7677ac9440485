"""What the parts of the engine share: its state, and how a change is written.

Every change goes the same way: decide, make room, hand the record to the log, apply. Nothing is applied that the log
does not have, so a process that is killed between any two steps loses nothing and doubles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import Buffer, delivery
from tickwheel_native import log as native_log
from timerlog.commitlog.healing import Healer
from timerlog.commitlog.log import CommitLog
from timerlog.commitlog.records import AnsweredRecord, Control, group_room_bytes, in_records
from timerlog.engine.changed import Changes
from timerlog.errors import BadTime, BadTransactionId, StoreError, TransactionTooLarge
from timerlog.files.held_space import Reserve, Spare
from timerlog.layout import (
    MAX_BATCH,
    MAX_TIME_MS,
    RECORD_HEAD_BYTES,
    RUN,
    TRANSACTION_ID_BYTES,
    Int64Array,
    RecordType,
    Runs,
    UInt32Array,
    UInt64Array,
)
from timerlog.settings import StoreSettings
from timerlog.tables.answers import Answering
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables
from timerlog.wheel.timers import MESSAGE_TIMER
from timerlog.wheel.wheel import TimerWheel

INTERNAL: Final = bytes(TRANSACTION_ID_BYTES)  #: the id of transactions that are never repeated
#: What is told of deliveries: the records' aux is the number of a group, which must be there.
_OF_DELIVERIES: Final = frozenset(
    {
        RecordType.LEASE,
        RecordType.ACK,
        RecordType.RELEASE,
        RecordType.NACK,
        RecordType.REDELIVER,
        RecordType.DEAD,
        RecordType.RETURNED,
    }
)


def check_transaction_id(transaction_id: bytes) -> None:
    """Raises ``BadTransactionId`` for one by which a transaction could not be known again."""
    if len(transaction_id) != TRANSACTION_ID_BYTES or transaction_id == INTERNAL:
        raise BadTransactionId(
            f"{transaction_id[:32]!r} cannot be a transaction's id: "
            f"{TRANSACTION_ID_BYTES} bytes are needed, not all zero"
        )


def check_time(time_ms: int) -> None:
    """Raises ``BadTime`` for one that no message can have."""
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise BadTime(f"{time_ms} is not between 0 and {MAX_TIME_MS}")


class Scratch:
    """Columns of one batch of messages of a group. They hold until the next call of a part that uses them."""

    def __init__(self) -> None:
        self.seqs = np.empty(MAX_BATCH, np.uint64)
        self.epochs = np.empty(MAX_BATCH, np.uint32)
        self.times = np.empty(MAX_BATCH, np.int64)
        self.codes = np.empty(MAX_BATCH, np.uint32)


class Engine:
    """The state: each part of the store holds it. What most lines of a part work on has a short name there."""

    def __init__(
        self,
        *,
        settings: StoreSettings,
        log: CommitLog,
        tables: Tables,
        applier: Applier,
        wheel: TimerWheel,
        reserve: Reserve,
        spare: Spare,
        healer: Healer | None = None,
    ) -> None:
        """``healer``: of a log that is a copy."""
        self.settings = settings
        self.healer = healer
        self.log = log
        self.tables = tables
        self.applier = applier
        self.wheel = wheel
        self.reserve = reserve
        self.spare = spare
        #: What C sees of the tables and the log.
        self.native: Any = tables.native
        self.scratch = Scratch()
        self.changes = Changes()
        #: The system topic: EnqueueGet has taken all messages below this id.
        self.enqueued_id = tables.next_id
        #: Messages below this id are on disk.
        self.durable_next_id = tables.next_id
        #: A table is gone that the last checkpoint names: a start would make all of them again.
        self.table_is_gone = False
        self._runs_scratch: Runs = np.empty(MAX_BATCH, RUN)

    def runs(
        self, values: UInt64Array, epochs: UInt32Array | None = None, times: Int64Array | None = None
    ) -> Runs:
        """Compresses consecutive values of equal epoch and time. The result is valid until the next call."""
        assert epochs is None or len(epochs) == len(values), "each value has its epoch"
        assert times is None or len(times) == len(values), "each value has its time"
        if len(values) > len(self._runs_scratch):  # C writes as many runs as there are values
            self._runs_scratch = np.empty(len(values), RUN)
        count = delivery.runs(
            np.ascontiguousarray(values, np.uint64),
            None if epochs is None else np.ascontiguousarray(epochs, np.uint32),
            None if times is None else np.ascontiguousarray(times, np.int64),
            self._runs_scratch,
        )
        runs = self._runs_scratch[:count]
        assert delivery.runs_values(runs) == len(values), "each value is in one run"
        return runs

    def damaged(self, ids: UInt64Array) -> UInt64Array:
        """Those of some messages whose record does not match its checksum: it may have lain there for years since it
        was looked at last."""
        assert int(ids.max(initial=0)) < self.tables.next_id, "only messages that were accepted have a record"
        found = np.empty(len(ids), np.uint64)
        return found[: delivery.damaged(self.native, ids, found)]

    def are_lost(self, damaged: UInt64Array) -> npt.NDArray[np.bool_]:
        """Which of these messages, whose records are damaged, nothing can bring back. The others are being had again:
        they are to be looked at later."""
        if self.healer is None:
            return np.ones(len(damaged), np.bool_)
        return self.healer.lost(np.ascontiguousarray(self.tables.rows["position"][damaged]))

    def spread(self, deliver_at_ms: Int64Array, ids: UInt64Array) -> Int64Array:
        """When messages are due: at their time, or a part of their topic's spread later."""
        assert len(deliver_at_ms) == len(ids), "each message has its time"
        if not self.tables.has_spread:
            return deliver_at_ms
        ids, due_ms = np.ascontiguousarray(ids), np.empty(len(ids), np.int64)
        delivery.due_times(self.native, ids, due_ms)
        spread: Int64Array = due_ms - self.tables.rows["deliver_at_ms"][ids] + deliver_at_ms
        assert (spread >= deliver_at_ms).all(), "no message is due before its time"
        return spread

    def runs_of(self, values: UInt64Array, epochs: UInt32Array, times: Int64Array) -> Runs:
        """Runs that stay valid."""
        return self.runs(values, epochs, times).copy()

    def link(self, due_ms: Int64Array, refs: UInt64Array, epochs: UInt32Array, owner: int) -> None:
        """Puts timers of one owner, a group or MESSAGE_TIMER, on the wheel, before the change that needs them: a timer
        without its change is harmless, a change without its timer would never end. One that is not ahead of the wheel,
        because the clock went back a little, goes off at the wheel's next tick. Raises ``DiskFull``."""
        groups, last_ref = self.tables.groups, int(refs.max(initial=0))
        assert owner == MESSAGE_TIMER or owner in groups, "a lease that ends is of a group that is there"
        if owner == MESSAGE_TIMER:
            assert last_ref < self.tables.next_id, "only messages that were accepted wait for their time"
        elif len(refs):
            assert last_ref < int(self.native.groups[owner].allocated), "only what has a row is leased"
        self.changes.timers_moved = True
        self.wheel.link(due_ms, refs, epochs, np.full(len(refs), owner, np.uint32))


class LogWriter:
    """Hands control records to the log, together with the answer to the request that they carry out."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._log, self._native = engine, engine.log, engine.native
        #: The answer that is to be remembered with what is written now.
        self.answering: Answering | None = None

    def append_runs(self, record: RecordType, aux: int, runs: Runs) -> None:
        """Appends runs in one or more records, all or none, and hands them to the operating system. Raises
        ``DiskFull``."""
        self.append_all(in_records(record, aux, runs))

    def append_all(self, records: Sequence[Control]) -> None:
        """Appends control records, all or none, and hands them to the operating system. Raises ``DiskFull``. A crash
        may leave the first ones alone: what holds only together goes into one group. An answer that was decided goes
        into one group with them."""
        if self._has_answer:
            self.append_group(records)
            return
        assert all(self._has_its_group(record, aux) for record, aux, _ in records), "each group is there"
        room_bytes = sum(RECORD_HEAD_BYTES + 8 + len(payload) for _, _, payload in records)
        self._log.ensure_room(room_bytes)
        start = self._log.appended_position
        for record, aux, payload in records:
            self._log.append(record, aux, payload)
        taken_bytes = self._log.appended_position - start
        assert taken_bytes <= room_bytes, "records take at most the room that was made for them"
        self._log.flush()

    def append(self, record: RecordType, aux: int, payload: Buffer) -> None:
        """Appends one control record and hands it to the operating system, together with an answer that was
        decided."""
        if self._has_answer:
            self.append_group([(record, aux, bytes(payload))])
            return
        assert self._has_its_group(record, aux), "what is told of deliveries is of a group that is there"
        self._log.append(record, aux, payload)
        self._log.flush()

    def _has_its_group(self, record: RecordType, aux: int) -> bool:
        return record not in _OF_DELIVERIES or aux in self._engine.tables.groups

    def end(self, record: RecordType, ids: UInt64Array) -> None:
        """Ends messages by one of the records of ``ENDS``. Raises ``DiskFull``: then nothing was changed."""
        self.append(record, 0, ids.tobytes())
        self._engine.applier.end(record, ids)

    # -- answers --

    @contextmanager
    def remembering(self, answering: Answering | None) -> Iterator[None]:
        """What is decided inside is written together with the change that makes it true. None: nothing is to be
        remembered."""
        before, self.answering = self.answering, answering
        try:
            yield
        except BaseException:
            if answering is not None:
                answering.forget_decided()
            raise
        finally:
            self.answering = before

    def decided(self, result: Any) -> None:
        """What comes of the change that is written next."""
        if self.answering is not None:
            self.answering.decided(result)

    def remember(self, answering: Answering, payload: bytes) -> None:
        """Sees to it that the whole answer is remembered. Raises ``DiskFull``."""
        if not answering.says(payload):
            record = answering.whole(self._log.appended_position, payload)
            with self.remembering(None):
                self.append(RecordType.ANSWERED, 0, msgspec.msgpack.encode(record))
            self.remembered(answering, record)
            assert answering.says(payload), "what is remembered is what was answered"

    @property
    def _has_answer(self) -> bool:
        return self.answering is not None and self.answering.has_decided

    def answer_controls(self) -> tuple[list[Control], AnsweredRecord | None]:
        """The record of an answer that was decided, to be written now."""
        if self.answering is None or not self.answering.has_decided:
            return [], None
        record = self.answering.record(self._log.appended_position)
        return [(RecordType.ANSWERED, 0, msgspec.msgpack.encode(record))], record

    def remembered(self, answering: Answering | None, record: AnsweredRecord | None) -> None:
        """The record is in the log."""
        if answering is not None and record is not None:
            answering.written(record)
            self._engine.applier.answered(record)

    # -- records that hold together --

    def append_group(self, records: Sequence[Control]) -> None:
        """Appends control records, and an answer that was decided, so that the log holds all or none. Raises
        ``DiskFull``, ``TransactionTooLarge``."""
        more, answer = self.answer_controls()
        records = [*records, *more]
        room_bytes = group_room_bytes(records)
        self.check_room_for_group(room_bytes)
        self._log.flush()
        self._log.ensure_room(room_bytes)
        start = self.begin_group(INTERNAL, room_bytes)
        try:
            for control in records:
                self.add_to_group(*control)
        except BaseException:
            native_log.unsend(self._native, self._engine.tables.next_id, start)
            raise
        self.end_group(start, room_bytes)
        self.remembered(self.answering, answer)

    def write_together(self, records: Sequence[Control]) -> None:
        """Appends control records so that the log holds all or none, and applies them. Raises ``DiskFull``,
        ``TransactionTooLarge``: then nothing was done."""
        if len(records) == 1:
            record, aux, payload = records[0]
            self.append(record, aux, payload)
        else:
            self.append_group(records)
        for record, aux, payload in records:
            self._engine.applier.apply(record, aux, payload)

    def begin_group(self, transaction_id: bytes, room_bytes: int) -> int:
        """Starts a TRANSACTION record, for which room was made; returns where in staging. What ``add_to_group`` adds
        lies in it, until ``end_group``. Raises ``BadTransactionId``, ``StoreError``: then nothing was staged."""
        if len(transaction_id) != TRANSACTION_ID_BYTES:  # replay takes so many, whatever stands there
            raise BadTransactionId(f"a transaction's id has {len(transaction_id)} bytes")
        assert not self._native.staging_bytes, "a transaction begins where nothing is staged"
        start = native_log.group_begin(self._native, RecordType.TRANSACTION, 0, transaction_id, room_bytes)
        if start < 0:
            raise StoreError(f"there is no room for a transaction of {room_bytes} bytes")
        return start

    def end_group(self, start: int, room_bytes: int) -> None:
        """The group is whole: hands it to the operating system."""
        taken_bytes = int(self._native.staging_bytes) - start
        assert taken_bytes <= room_bytes, "a transaction takes at most the room that was made for it"
        assert taken_bytes % 8 == 0, "what follows a transaction begins at a multiple of 8"
        native_log.group_end(self._native, start)
        self._log.touched()
        self._log.flush()

    def add_to_group(self, record: RecordType, aux: int, payload: bytes) -> None:
        """Raises ``StoreError``: then the group must be taken back."""
        assert record not in (RecordType.TRANSACTION, RecordType.END), "a transaction holds no other one"
        assert self._has_its_group(record, aux), "what is told of deliveries is of a group that is there"
        if native_log.append(self._native, record, aux, payload) < 0:
            raise StoreError("a transaction needed more room than it had asked for")

    def check_room_for_group(self, room_bytes: int) -> None:
        """Raises ``TransactionTooLarge`` for what never fits into one record."""
        most_bytes = self._log.largest_record_bytes
        if room_bytes > most_bytes:
            raise TransactionTooLarge(
                f"the transaction takes about {room_bytes} bytes of log; {most_bytes} are possible"
            )
