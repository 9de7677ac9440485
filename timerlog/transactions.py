"""Transactions: sends to several topics, acks, cancels and reschedules in one commit record, whole or not at all.

Everything is judged first. Then the records that each part would have had on its own are staged one behind the other
inside one TRANSACTION record, whose checksum covers them all: a log that was torn anywhere inside holds none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from native import Buffer, ffi, lib
from timerlog.delivering import Delivering
from timerlog.errors import StoreError, TransactionRefused, TransactionTooLarge, UnknownTopic
from timerlog.layout import MAX_BATCH, RECORD_HEAD_BYTES, TRANSACTION_ID_BYTES, RecordType
from timerlog.messages import Outbound, send_payload
from timerlog.producing import FRAME_HEAD_BYTES, Producing

Control = tuple[RecordType, int, bytes]  # record, aux, payload
_NO_ROOM: Final = "a transaction needed more room than it had asked for"
INTERNAL: Final = bytes(TRANSACTION_ID_BYTES)
_SEND: Final = 12
_CODES: Final = (
    "", "duplicate", "body_too_large", "bad_time", "key_too_long", "headers_too_large", "order_key_too_long"
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
            raise TransactionRefused(f"message {index} of a send cannot be stored: {reason}{which}")
        return JudgedSend(payload, int(count), int(log_bytes[0]))

    def committed(self, transaction_id: bytes) -> list[tuple[int, int]] | None:
        """What a transaction stored, if it was committed lately; None otherwise."""
        return self.tables.transactions.get(transaction_id)

    def commit_internal(
        self, topic_id: int, messages: Sequence[Outbound], controls: Sequence[Control], now_ms: int
    ) -> int:
        """Stores messages of the broker's own together with control records. Returns the first message's id. Raises
        ``DiskFull``: then nothing was done."""
        send = self.judge_send(send_payload(topic_id, messages), now_ms)
        return self.commit_records(INTERNAL, [send], controls, now_ms)[0][0]

    def commit_records(
        self, transaction_id: bytes, sends: Sequence[JudgedSend], controls: Sequence[Control], now_ms: int
    ) -> list[tuple[int, int]]:
        """Writes and applies one TRANSACTION record. Returns (first id, count) of each send. Raises ``DiskFull``,
        ``TransactionTooLarge``: then nothing was done."""
        self._provide_for(sends, controls)
        start, first_id = int(self._native.staging_bytes), self.tables.next_id
        try:
            results = self._stage(transaction_id, sends, controls, now_ms)
        except BaseException:
            lib.tw_unsend(self._native, first_id, start)
            raise
        self.log.touched()
        self.log.flush()
        self._applier.transaction_id = transaction_id
        for record, aux, payload in controls:
            self._applier.apply(record, aux, payload)
        self._applier.stored(results)
        return results

    def _stage(
        self, transaction_id: bytes, sends: Sequence[JudgedSend], controls: Sequence[Control], now_ms: int
    ) -> list[tuple[int, int]]:
        head = ffi.from_buffer("uint8_t[]", transaction_id)
        start = int(lib.tw_group_begin(self._native, RecordType.TRANSACTION, 0, head, len(head), 0))
        if start < 0:
            raise StoreError(_NO_ROOM)
        stored = [self._stage_send(send, now_ms) for send in sends]
        results = np.array(stored, "<u8").tobytes()
        for record, aux, payload in [*controls, (RecordType.STORED, 0, results)]:
            data = ffi.from_buffer("uint8_t[]", payload)
            if lib.tw_log_append(self._native, record, aux, data, len(data)) < 0:
                raise StoreError(_NO_ROOM)
        lib.tw_group_end(self._native, start)
        return stored

    def _provide_for(self, sends: Sequence[JudgedSend], controls: Sequence[Control]) -> None:
        """Room in the log and the tables, so that nothing can fail once the first record is staged."""
        room = RECORD_HEAD_BYTES + TRANSACTION_ID_BYTES + 16 * len(sends) + 64
        room += sum(send.log_bytes for send in sends)
        room += sum(len(payload) + RECORD_HEAD_BYTES + 8 for _, _, payload in controls)
        if room > self.log.largest_record_bytes:
            raise TransactionTooLarge(
                f"the transaction takes about {room} bytes of log; {self.log.largest_record_bytes} are possible"
            )
        self.tables.ensure_rows(self.tables.next_id + sum(send.count for send in sends) + 1)
        if sends:
            self.log.make_message_room(room)
        else:
            self.log.flush()
            self.log.ensure_room(room)

    def _stage_send(self, send: JudgedSend, now_ms: int) -> tuple[int, int]:
        first_id, payload = self.tables.next_id, send.payload
        frame = bytearray(FRAME_HEAD_BYTES) + bytes(payload)
        target = ffi.from_buffer("uint8_t[]", frame)
        lib.tw_finish_frame(target, len(payload), _SEND, 0)
        self._ingest_whole(target, len(frame), now_ms)
        count = self.tables.next_id - first_id
        if count != send.count:
            raise TransactionRefused("two messages of the transaction have the same key")
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
            self.tables.grow_keys(int(result.need))
