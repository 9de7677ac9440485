"""What the parts of the store share: the log, the tables, the wheel, and how a change is made.

Every change goes the same way: decide, make room, hand the record to the log, apply. Nothing is applied that the log
does not have, so a process that is killed between any two steps loses nothing and doubles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from tickwheel_native import Buffer, ffi, lib
from timerlog.commitlog.log import CommitLog
from timerlog.commitlog.records import AnsweredRecord, runs_pointer
from timerlog.engine.lateness import Lateness
from timerlog.errors import BadTransactionId, StoreError, TransactionTooLarge
from timerlog.files.held_space import Reserve, Spare
from timerlog.layout import (
    MAX_BATCH,
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
from timerlog.wheel.wheel import TimerWheel

#: A record holds at most so many runs, so that it always fits into a segment.
RUNS_A_RECORD: Final = 4096

Control: TypeAlias = tuple[RecordType, int, bytes]  # record, aux, payload
INTERNAL: Final = bytes(TRANSACTION_ID_BYTES)  #: the id of transactions that nobody repeats


def in_records(
    record: RecordType, aux: int, runs: Runs, pack: Callable[[Runs], bytes] = lambda runs: runs.tobytes()
) -> list[Control]:
    """Runs as control records, each of which fits into a segment; ``pack`` makes the payload of one."""
    return [
        (record, aux, pack(runs[start : start + RUNS_A_RECORD]))
        for start in range(0, len(runs), RUNS_A_RECORD)
    ]


def check_transaction_id(transaction_id: bytes) -> None:
    """Raises ``BadTransactionId`` for one by which a transaction could not be known again."""
    if len(transaction_id) != TRANSACTION_ID_BYTES or transaction_id == INTERNAL:
        raise BadTransactionId(
            f"{transaction_id[:32]!r} cannot be a transaction's id: "
            f"{TRANSACTION_ID_BYTES} bytes are needed, not all zero"
        )


class Core:
    """Holds the parts; the classes that inherit from it add the behaviour."""

    settings: StoreSettings
    log: CommitLog
    tables: Tables
    wheel: TimerWheel
    spare: Spare
    reserve: Reserve
    _applier: Applier
    _native: Any
    _runs_scratch: Runs
    #: The system topic: messages below this id have gone to the wheel or their topic.
    _enqueued_id: int
    #: Messages below this id are on disk.
    _durable_next_id: int
    #: The answer that is to be remembered with what is written now.
    _answering: Answering | None = None
    #: A table is gone that the last checkpoint names: a start would make all of them again.
    _table_is_gone: bool = False

    def _make_scratch(self) -> None:
        self._runs_scratch = np.empty(MAX_BATCH, RUN)

    def _runs(
        self, values: UInt64Array, epochs: UInt32Array | None = None, times: Int64Array | None = None
    ) -> Runs:
        """Compresses consecutive values of equal epoch and time. The result is valid until the next call."""
        if len(values) > len(self._runs_scratch):  # C writes as many runs as there are values
            self._runs_scratch = np.empty(len(values), RUN)
        count = lib.tw_runs(
            ffi.from_buffer("uint64_t[]", np.ascontiguousarray(values, np.uint64)),
            ffi.NULL
            if epochs is None
            else ffi.from_buffer("uint32_t[]", np.ascontiguousarray(epochs, np.uint32)),
            ffi.NULL
            if times is None
            else ffi.from_buffer("int64_t[]", np.ascontiguousarray(times, np.int64)),
            len(values),
            runs_pointer(self._runs_scratch),
        )
        return self._runs_scratch[:count]

    def _spread(self, deliver_at_ms: Int64Array, ids: UInt64Array) -> Int64Array:
        """When messages are due: at their time, or a part of their topic's spread later."""
        if not self.tables.has_spread:
            return deliver_at_ms
        ids, due_ms = np.ascontiguousarray(ids), np.empty(len(ids), np.int64)
        lib.tw_due_times(
            self._native, ffi.from_buffer("uint64_t[]", ids), len(ids), ffi.from_buffer("int64_t[]", due_ms)
        )
        spread: Int64Array = due_ms - self.tables.rows["deliver_at_ms"][ids] + deliver_at_ms
        return spread

    def lateness_ms(self, ids: UInt64Array, now_ms: int) -> Int64Array:
        """By how much it is past the time of messages; one sent with a time in the past was due when it came."""
        rows = self.tables.rows
        due_ms = self._spread(rows["deliver_at_ms"][ids], ids)
        late_ms: Int64Array = now_ms - np.maximum(due_ms, rows["created_ms"][ids])
        return np.maximum(late_ms, 0)

    def count_lateness(self, into: Lateness, ids: UInt64Array, now_ms: int) -> None:
        """Adds to a histogram by how much it is past the time of messages."""
        if len(ids):
            pointer = ffi.from_buffer("uint64_t[]", np.ascontiguousarray(ids))
            into.take(self._native, 0, pointer, ffi.NULL, len(ids), now_ms)

    def _room_for_runs(self, runs: int, head_bytes: int = 0) -> int:
        """The log bytes that records with so many runs take at most."""
        records = -(-runs // RUNS_A_RECORD)
        return runs * RUN.itemsize + records * (RECORD_HEAD_BYTES + head_bytes + 8)

    def _append_runs(self, record: RecordType, aux: int, runs: Runs) -> None:
        """Appends runs in one or more records, all or none, and hands them to the operating system. Raises
        ``DiskFull``."""
        self._append_all(in_records(record, aux, runs))

    def _append_all(self, records: Sequence[Control]) -> None:
        """Appends control records, all or none, and hands them to the operating system. Raises ``DiskFull``. A crash
        may leave the first ones alone: what holds only together goes into one group. An answer that was decided goes
        into one group with them."""
        if self._has_answer:
            self._append_group(records)
            return
        self.log.ensure_room(sum(RECORD_HEAD_BYTES + 8 + len(payload) for _, _, payload in records))
        for record, aux, payload in records:
            self.log.append(record, aux, payload)
        self.log.flush()

    def _append(self, record: RecordType, aux: int, payload: Buffer) -> None:
        """Appends one control record and hands it to the operating system, together with an answer that was
        decided."""
        if self._has_answer:
            self._append_group([(record, aux, bytes(payload))])
            return
        self.log.append(record, aux, payload)
        self.log.flush()

    # -- answers --

    @contextmanager
    def remembering(self, answering: Answering | None) -> Iterator[None]:
        """What is decided inside is written together with the change that makes it true. None: nothing is to be
        remembered."""
        before, self._answering = self._answering, answering
        try:
            yield
        except BaseException:
            if answering is not None:
                answering.forget_decided()
            raise
        finally:
            self._answering = before

    def decided(self, result: Any) -> None:
        """What comes of the change that is written next."""
        if self._answering is not None:
            self._answering.decided(result)

    def remember(self, answering: Answering, payload: bytes) -> None:
        """Sees to it that the whole answer is remembered. Raises ``DiskFull``."""
        if not answering.says(payload):
            self._append_answer(answering, answering.whole(self.log.appended_position, payload))

    def _append_answer(self, answering: Answering, record: AnsweredRecord) -> None:
        with self._plainly():
            self._append(RecordType.ANSWERED, 0, msgspec.msgpack.encode(record))
        self._remembered(answering, record)

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        before, self._answering = self._answering, None
        try:
            yield
        finally:
            self._answering = before

    @property
    def _has_answer(self) -> bool:
        return self._answering is not None and self._answering.has_decided

    def _answer_controls(self) -> tuple[list[Control], AnsweredRecord | None]:
        """The record of an answer that was decided, to be written now."""
        if self._answering is None or not self._answering.has_decided:
            return [], None
        record = self._answering.record(self.log.appended_position)
        return [(RecordType.ANSWERED, 0, msgspec.msgpack.encode(record))], record

    def _remembered(self, answering: Answering | None, record: AnsweredRecord | None) -> None:
        """The record is in the log."""
        if answering is not None and record is not None:
            answering.written(record)
            self._applier.answered(record)

    # -- records that hold together --

    def _append_group(self, records: Sequence[Control]) -> None:
        """Appends control records, and an answer that was decided, so that the log holds all or none. Raises
        ``DiskFull``, ``TransactionTooLarge``."""
        more, answer = self._answer_controls()
        records = [*records, *more]
        room_bytes = group_room_bytes(records)
        self._check_room_for_group(room_bytes)
        self.log.flush()
        self.log.ensure_room(room_bytes)
        start = self._begin_group(INTERNAL, room_bytes)
        try:
            for control in records:
                self._add_to_group(*control)
        except BaseException:
            lib.tw_unsend(self._native, self.tables.next_id, start)
            raise
        lib.tw_group_end(self._native, start)
        self.log.touched()
        self.log.flush()
        self._remembered(self._answering, answer)

    def _begin_group(self, transaction_id: bytes, room_bytes: int) -> int:
        """Starts a TRANSACTION record, for which room was made; returns where in staging. What ``_add_to_group`` adds
        lies in it, until ``tw_group_end``. Raises ``BadTransactionId``, ``StoreError``: then nothing was staged."""
        if len(transaction_id) != TRANSACTION_ID_BYTES:  # replay takes so many, whatever stands there
            raise BadTransactionId(f"a transaction's id has {len(transaction_id)} bytes")
        head = ffi.from_buffer("uint8_t[]", transaction_id)
        start = int(lib.tw_group_begin(self._native, RecordType.TRANSACTION, 0, head, len(head), room_bytes))
        if start < 0:
            raise StoreError(f"there is no room for a transaction of {room_bytes} bytes")
        return start

    def _add_to_group(self, record: RecordType, aux: int, payload: bytes) -> None:
        """Raises ``StoreError``: then the group must be taken back."""
        data = ffi.from_buffer("uint8_t[]", payload)
        if lib.tw_log_append(self._native, record, aux, data, len(data)) < 0:
            raise StoreError("a transaction needed more room than it had asked for")

    def _check_room_for_group(self, room_bytes: int) -> None:
        """Raises ``TransactionTooLarge`` for what never fits into one record."""
        most_bytes = self.log.largest_record_bytes
        if room_bytes > most_bytes:
            raise TransactionTooLarge(
                f"the transaction takes about {room_bytes} bytes of log; {most_bytes} are possible"
            )


def group_room_bytes(controls: Sequence[Control]) -> int:
    """The log bytes that a group of control records takes at most."""
    inside = sum(len(payload) + RECORD_HEAD_BYTES + 8 for _, _, payload in controls)
    return RECORD_HEAD_BYTES + TRANSACTION_ID_BYTES + inside
