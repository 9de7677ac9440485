"""Transactions: sends to several topics, acks, cancels and reschedules in one commit record, whole or not at all.

Everything is judged first. Then the records that each part would have had on its own are staged one behind the other
inside one TRANSACTION record, whose checksum covers them all: a log that was torn anywhere inside holds none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tickwheel_native import Buffer, ffi, lib
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.deliver import Delivering
from timerlog.engine.produce import FRAME_HEAD_BYTES, Producing
from timerlog.engine.state import INTERNAL, Control, group_room_bytes
from timerlog.errors import StoreError, TransactionRefused, UnknownTopic
from timerlog.layout import MAX_BATCH, RECORD_HEAD_BYTES, RecordType

_SEND: Final = 12
_FIRST_EXCEPTION: Final = 32  # in a SEND_OK frame
_CODES: Final = (
    "", "duplicate", "body_too_large", "bad_time", "key_too_long", "headers_too_large", "order_key_too_long",
    "duplicate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JudgedSend:
    """A SEND payload that can be stored as it is."""

    payload: Buffer
    count: int
    log_bytes: int


class Transactions(Producing, Delivering):
    def judge_send(self, payload: Buffer, now_ms: int) -> JudgedSend:
        """Raises ``ValueError`` for a payload that does not add up, ``UnknownTopic``, ``TransactionRefused``."""
        codes, earlier = np.empty(MAX_BATCH, np.uint32), np.empty(MAX_BATCH, np.uint64)
        log_bytes = ffi.new("uint64_t *")
        count = lib.tw_send_check(
            self._native, ffi.from_buffer("uint8_t[]", payload), len(payload), now_ms,
            ffi.from_buffer("uint32_t[]", codes), ffi.from_buffer("uint64_t[]", earlier), log_bytes,
        )  # fmt: skip
        if count == -2:
            raise UnknownTopic("a transaction sends to a topic that does not exist")
        if count < 0:
            raise ValueError("the columns of a send do not add up")
        refused = np.flatnonzero(codes[:count])
        if len(refused):
            index = int(refused[0])
            reason = _CODES[int(codes[index])]
            which = f" (it is message {int(earlier[index])})" if earlier[index] else ""
            raise TransactionRefused(
                f"message {index} of a send cannot be stored: {reason}{which}",
                index=index,
                message_id=int(earlier[index]),
                reason=reason,
            )
        return JudgedSend(payload, int(count), int(log_bytes[0]))

    def committed(self, transaction_id: bytes) -> list[tuple[int, int]] | None:
        """What a transaction stored, if it was committed lately; None otherwise."""
        return self.tables.transactions.get(transaction_id)

    def commit_internal(
        self, topic_id: int, messages: Sequence[Outbound], controls: Sequence[Control], now_ms: int
    ) -> int:
        """Stores messages of the broker's own together with control records. Returns the first message's id. Raises
        ``DiskFull``, ``TransactionRefused``, ``TransactionTooLarge``: then nothing was done."""
        send = self.judge_send(send_payload(topic_id, messages), now_ms)
        return self.commit_records(INTERNAL, [send], controls, now_ms)[0][0]

    def commit_records(
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
        if is_answer:
            self.decided(self._to_be_stored(sends))
        more, answer = self._answer_controls()
        room_bytes = self._provide_for(sends, [*controls, *more])
        start, first_id = self._begin_group(transaction_id, room_bytes), self.tables.next_id
        try:
            results = self._stage(sends, controls, more, now_ms)
        except BaseException:
            lib.tw_unsend(self._native, first_id, start)
            raise
        lib.tw_group_end(self._native, start)
        self.log.touched()
        self.log.flush()
        self._applier.transaction_id = transaction_id
        for record, aux, payload in controls:
            self._applier.apply(record, aux, payload)
        self._applier.stored(results)
        self._remembered(self._answering, answer)
        return results

    def _to_be_stored(self, sends: Sequence[JudgedSend]) -> list[tuple[int, int]]:
        """(first id, count) that each send will have: judged sends are stored whole, one behind the other."""
        first_ids = np.cumsum([self.tables.next_id, *(send.count for send in sends)]).tolist()
        return [(first, send.count) for first, send in zip(first_ids, sends, strict=False)]

    def _stage(
        self, sends: Sequence[JudgedSend], controls: Sequence[Control], last: Sequence[Control], now_ms: int
    ) -> list[tuple[int, int]]:
        stored: list[tuple[int, int]] = []
        for send in sends:
            before = sum(count for _, count in stored)
            try:
                stored.append(self._stage_send(send, now_ms))
            except TransactionRefused as error:
                error.index += before
                raise
        results = np.array(stored, "<u8").tobytes()
        for control in [*controls, (RecordType.STORED, 0, results), *last]:
            self._add_to_group(*control)
        return stored

    def _provide_for(self, sends: Sequence[JudgedSend], controls: Sequence[Control]) -> int:
        """Room in the log and the tables, so that nothing can fail once the first record is staged; how many bytes of
        log."""
        room = group_room_bytes(controls) + RECORD_HEAD_BYTES + 8 + 16 * len(sends)
        room += sum(send.log_bytes for send in sends)
        self._check_room_for_group(room)
        if sends:
            with self.reserve.closed():
                self._promise_rows(self.tables.next_id + sum(send.count for send in sends) + 1)
                self.log.make_message_room(room)
        else:
            self.log.flush()
            self.log.ensure_room(room)
        return room

    def _stage_send(self, send: JudgedSend, now_ms: int) -> tuple[int, int]:
        first_id, payload = self.tables.next_id, send.payload
        frame = bytearray(FRAME_HEAD_BYTES) + bytes(payload)
        target = ffi.from_buffer("uint8_t[]", frame)
        lib.tw_finish_frame(target, len(payload), _SEND, 0)
        self._ingest_whole(target, len(frame), now_ms)
        count = self.tables.next_id - first_id
        if count != send.count:
            index = int.from_bytes(self._replies[_FIRST_EXCEPTION : _FIRST_EXCEPTION + 4].tobytes(), "little")
            raise TransactionRefused(
                "two messages of the transaction have the same key", index=index, reason="duplicate"
            )
        return first_id, count

    def _ingest_whole(self, frame: Any, count: int, now_ms: int) -> None:
        result = self._ingested
        while True:
            lib.tw_ingest(
                self._native, frame, count, now_ms, self._replies_pointer, len(self._replies), result
            )
            if result.consumed_bytes == count:
                return
            if result.stop != 13:  # only the key index grows on demand: everything else is there
                raise StoreError(f"a judged send stopped with {result.stop}")
            with self.reserve.closed():
                self.tables.grow_keys(int(result.need))
