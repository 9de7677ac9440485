"""Transactions: sends to several topics, acks, cancels and reschedules in one commit record, whole or not at all.

Everything is judged first. Then the records that each part would have had on its own are staged one behind the other
inside one TRANSACTION record, whose checksum covers them all: a log that was torn anywhere inside holds none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickwheel_native import log as native_log
from timerlog.commitlog.records import Control, Outbound, group_room_bytes, send_payload
from timerlog.engine.produce import JudgedSend, Produce
from timerlog.engine.space import Space
from timerlog.engine.state import INTERNAL, Engine, LogWriter
from timerlog.errors import TransactionRefused
from timerlog.layout import RECORD_HEAD_BYTES, RecordType


class Commit:
    """Writes transactions."""

    def __init__(self, engine: Engine, writer: LogWriter, space: Space, produce: Produce) -> None:
        self._writer, self._space, self._produce = writer, space, produce
        self._engine, self._tables = engine, engine.tables

    def committed(self, transaction_id: bytes) -> list[tuple[int, int]] | None:
        """What a transaction stored, if it was committed lately; None otherwise."""
        return self._tables.transactions.get(transaction_id)

    def write_internal(
        self, topic_id: int, messages: Sequence[Outbound], controls: Sequence[Control], now_ms: int
    ) -> int:
        """Stores messages of the broker's own together with control records. Returns the first message's id. Raises
        ``DiskFull``, ``TransactionRefused``, ``TransactionTooLarge``: then nothing was done."""
        send = self._produce.judge(send_payload(topic_id, messages), now_ms)
        return self.write(INTERNAL, [send], controls, now_ms)[0][0]

    def write(
        self,
        transaction_id: bytes,
        sends: Sequence[JudgedSend],
        controls: Sequence[Control],
        now_ms: int,
        *,
        is_answer: bool = False,
    ) -> list[tuple[int, int]]:
        """Writes and applies one TRANSACTION record, whose id has 16 bytes. Returns (first id, count) of each send;
        ``is_answer``: that is what a request is answered. Raises ``DiskFull``, ``TransactionRefused``,
        ``TransactionTooLarge``, ``BadTransactionId``: then nothing was done."""
        told = self._to_be_stored(sends) if is_answer else None
        if is_answer:
            self._writer.decided(told)
        more, answer = self._writer.answer_controls()
        room_bytes = self._provide_for(sends, [*controls, *more])
        start, first_id = self._writer.begin_group(transaction_id, room_bytes), self._tables.next_id
        try:
            results = self._stage(sends, controls, more, now_ms)
        except BaseException:
            native_log.unsend(self._engine.native, first_id, start)
            raise
        stored_until = first_id + sum(count for _, count in results)
        assert stored_until == self._tables.next_id, "ids of a transaction have no gap"
        assert told is None or told == results, "a request is answered what comes of it"
        self._writer.end_group(start, room_bytes)
        self._engine.applier.transaction_id = transaction_id
        for record, aux, payload in controls:
            self._engine.applier.apply(record, aux, payload)
        self._engine.applier.stored(results)
        self._writer.remembered(self._writer.answering, answer)
        return results

    def _to_be_stored(self, sends: Sequence[JudgedSend]) -> list[tuple[int, int]]:
        """(first id, count) that each send will have: judged sends are stored whole, one behind the other."""
        first_ids = np.cumsum([self._tables.next_id, *(send.count for send in sends)]).tolist()
        return [(first, send.count) for first, send in zip(first_ids, sends, strict=False)]

    def _stage(
        self, sends: Sequence[JudgedSend], controls: Sequence[Control], last: Sequence[Control], now_ms: int
    ) -> list[tuple[int, int]]:
        stored: list[tuple[int, int]] = []
        first_id = self._tables.next_id
        for send in sends:
            before = self._tables.next_id - first_id
            try:
                stored.append(self._produce.stage(send, now_ms))
            except TransactionRefused as error:
                error.index += before
                raise
        results = np.array(stored, "<u8").tobytes()
        for control in [*controls, (RecordType.STORED, 0, results), *last]:
            self._writer.add_to_group(*control)
        return stored

    def _provide_for(self, sends: Sequence[JudgedSend], controls: Sequence[Control]) -> int:
        """Room in the log and the tables, so that nothing can fail once the first record is staged; how many bytes of
        log."""
        room = group_room_bytes(controls) + RECORD_HEAD_BYTES + 8 + 16 * len(sends)
        room += sum(send.log_bytes for send in sends)
        self._writer.check_room_for_group(room)
        log, native = self._engine.log, self._engine.native
        if sends:
            with self._engine.reserve.closed():
                self._space.promise_rows(self._tables.next_id + sum(send.count for send in sends) + 1)
                log.make_message_room(room)
        else:
            log.flush()
            log.ensure_room(room)
        end = native.message_limit if sends else native.segment_end
        assert log.appended_position + room <= int(end), "what is to be staged has room in its segment"
        return room
