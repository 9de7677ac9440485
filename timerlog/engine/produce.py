"""Sending: SEND frames from a socket's bytes into the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from tickwheel_native import Buffer, delivery, ingest, lib
from tickwheel_native.arrays import uint8s
from timerlog.engine.space import Space
from timerlog.engine.state import Engine
from timerlog.errors import DiskFull, StoreError, TransactionRefused, UnknownTopic
from timerlog.layout import MAX_BATCH

FRAME_HEAD_BYTES: Final = 16
_REPLY_BYTES: Final = 32
_EXCEPTION_BYTES: Final = 16
_REPLIES_BYTES: Final = 2 * 16 * MAX_BATCH + 4096


class Stop(IntEnum):
    """Why ``ingest`` stopped where it did."""

    NEED_MORE = lib.TW_STOP_NEED_MORE  #: what is left is not a whole frame
    OTHER_FRAME = lib.TW_STOP_OTHER_FRAME  #: a frame of another type, for the caller
    BAD_CRC = lib.TW_STOP_BAD_CRC
    FRAME_TOO_LARGE = lib.TW_STOP_FRAME_TOO_LARGE
    BAD_FRAME = lib.TW_STOP_BAD_FRAME  #: a SEND whose columns do not add up; nothing of it was stored
    UNKNOWN_TOPIC = lib.TW_STOP_UNKNOWN_TOPIC
    DISK_FULL = 6  #: not from C: nothing of the frame was stored
    FORBIDDEN = lib.TW_STOP_FORBIDDEN  #: the caller may not send to this topic


_SEND: Final = 12
_FIRST_EXCEPTION: Final = 32  # in a SEND_OK frame
_CODES: Final = (
    "", "duplicate", "body_too_large", "bad_time", "key_too_long", "headers_too_large", "order_key_too_long",
    "duplicate",
)  # fmt: skip
_WITH_FRAME: Final = (Stop.OTHER_FRAME, Stop.BAD_FRAME, Stop.UNKNOWN_TOPIC, Stop.DISK_FULL, Stop.FORBIDDEN)


class Need(IntEnum):
    """What the C function asks for before it goes on with the next frame."""

    FLUSH = lib.TW_STOP_NEED_FLUSH
    DISK = lib.TW_STOP_NEED_DISK
    ROWS = lib.TW_STOP_NEED_ROWS
    KEYS = lib.TW_STOP_NEED_KEYS
    REPLIES = lib.TW_STOP_NEED_REPLIES


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of a socket's bytes. ``replies`` (whole SEND_OK frames) may be sent once the log is durable up to
    ``position``. ``stop_frame``, for the stops that name a frame: (type, correlation, payload); its bytes are among
    the consumed ones. ``exceptions``: messages in ``replies`` that were not stored."""

    consumed_bytes: int
    messages: int
    replies: bytes
    position: int
    stop: Stop
    stop_frame: tuple[int, int, memoryview] | None
    exceptions: int = 0
    stop_flags: int = 0  #: of the frame: the three bytes behind its type
    refused: DiskFull | None = None  #: why there is no room for it


class SendRights:
    """To which topics a caller may send. Each is asked about once: numbers of topics are never given again."""

    def __init__(self, topics_capacity: int, may_send: Callable[[int], bool]) -> None:
        self.allowed = np.zeros(topics_capacity, np.uint8)
        self._may_send = may_send

    def ask(self, topic_id: int) -> bool:
        """Whether it may; a yes is remembered."""
        if topic_id >= len(self.allowed) or not self._may_send(topic_id):
            return False
        self.allowed[topic_id] = 1
        return True


@dataclass(frozen=True, slots=True)
class JudgedSend:
    """A SEND payload that can be stored as it is."""

    payload: Buffer
    count: int
    log_bytes: int


class Produce:
    """Takes sends in: whole frames from a socket, and sends that were judged before and are stored as a part of a
    transaction."""

    def __init__(self, engine: Engine, space: Space) -> None:
        self._engine, self._space = engine, space
        self._tables, self._native = engine.tables, engine.native
        self._replies = np.empty(_REPLIES_BYTES, np.uint8)
        self._ingested = ingest.new_result()
        self._codes, self._earlier = np.empty(MAX_BATCH, np.uint32), np.empty(MAX_BATCH, np.uint64)

    def ingest(self, data: Buffer, now_ms: int, rights: SendRights | None = None) -> Ingested:
        """Stores every whole SEND frame at the head of ``data``, in one pass of C, up to the first other frame. With
        ``rights``, only those to topics that they allow."""
        if rights is None:
            return self._ingest(data, now_ms, None)
        ingest.only_to(self._native, rights.allowed)
        try:
            return self._ingest(data, now_ms, rights)
        finally:
            ingest.only_to(self._native, None)

    def _ingest(self, data: Buffer, now_ms: int, rights: SendRights | None) -> Ingested:
        self._native.is_full = 0
        source = uint8s(data)
        consumed, messages, frames = 0, 0, 0
        first_id = self._tables.next_id
        result = self._ingested
        replies: list[bytes] = []
        refused: DiskFull | None = None
        while True:
            ingest.ingest(self._native, source, consumed, now_ms, self._replies, result)
            payload_offset = consumed + int(result.stop_payload_offset)
            consumed += int(result.consumed_bytes)
            messages += int(result.messages)
            frames += int(result.frames)
            if result.reply_bytes:
                replies.append(self._replies[: result.reply_bytes].tobytes())
            stop = int(result.stop)
            if stop == Stop.FORBIDDEN:
                assert rights is not None, "C forbids only what it was told to"
                if rights.ask(
                    int.from_bytes(memoryview(data)[payload_offset : payload_offset + 4], "little")
                ):
                    continue
                consumed += FRAME_HEAD_BYTES + int(result.stop_payload_bytes)
            if stop < Need.FLUSH:
                break
            try:
                with self._engine.reserve.closed():
                    self._provide(stop, int(result.need), data, payload_offset)
            except DiskFull as error:
                if not self._native.is_full:  # the answer of a repeated send must be that of the first time
                    self._native.is_full = 1
                    continue
                stop = Stop.DISK_FULL
                # Its frames, and those of its context, lead back to this one: a cycle with views of the caller's bytes,
                # which Python 3.11 may crash on when it collects them.
                refused = error.with_traceback(None)
                refused.__cause__ = refused.__context__ = None
                consumed += FRAME_HEAD_BYTES + int(result.stop_payload_bytes)
                break
        if messages:
            self._engine.log.touched()
        frame, flags = None, 0
        if stop in _WITH_FRAME:
            flags = int.from_bytes(memoryview(data)[payload_offset - 7 : payload_offset - 4], "little")
            payload = memoryview(data)[payload_offset : payload_offset + int(result.stop_payload_bytes)]
            frame = (int(result.stop_type), int(result.stop_correlation), payload)
        answer = b"".join(replies)
        exceptions = (len(answer) - frames * _REPLY_BYTES) // _EXCEPTION_BYTES
        assert consumed <= len(source), "nothing is consumed that has not come"
        stored = self._tables.next_id - first_id
        assert stored == messages - exceptions, "each message has an id or an exception"
        position = self._engine.log.appended_position
        return Ingested(
            consumed, messages, answer, position, Stop(stop), frame,
            exceptions=exceptions, stop_flags=flags, refused=refused,
        )  # fmt: skip

    def _provide(self, need: int, amount: int, data: Buffer, payload_offset: int) -> None:
        """Provides what the next frame needs, before anything of it is stored. Raises ``DiskFull``."""
        match need:
            case Need.FLUSH:
                self._engine.log.flush()
            case Need.DISK:
                self._engine.log.flush()
                self._engine.log.make_room(amount)
            case Need.ROWS:
                self._space.promise_rows(amount)
            case Need.KEYS:
                self._tables.make_room_for_keys(_count_of(data, payload_offset))
            case Need.REPLIES:
                pass  # the replies so far were taken out of the buffer
            case _:
                raise StoreError(f"unknown need {need}")

    # -- as a part of a transaction --

    @contextmanager
    def without(self, leaving: Collection[int]) -> Iterator[None]:
        """What is judged or staged meanwhile is so as if these messages were cancelled: their keys are free."""
        ids = np.array(sorted(leaving), np.uint64)
        assert not self._native.leaving_count, "messages leave for one transaction at a time"
        ingest.without(self._native, ids)
        try:
            yield
        finally:
            ingest.without(self._native, None)

    def judge(self, payload: Buffer, now_ms: int) -> JudgedSend:
        """Whether a SEND payload can be stored as it is, all of it. Raises ``ValueError`` for one that does not add up,
        ``UnknownTopic``, ``TransactionRefused``."""
        codes, earlier = self._codes, self._earlier
        count, log_bytes = ingest.send_check(self._native, payload, now_ms, codes, earlier)
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
        return JudgedSend(payload, int(count), int(log_bytes))

    def stage(self, send: JudgedSend, now_ms: int) -> tuple[int, int]:
        """Stores a judged send, for which there is room, in the transaction that is being staged: (first id, count).
        Raises ``TransactionRefused``: then the transaction must be taken back."""
        first_id, payload = self._tables.next_id, send.payload
        staged_before = int(self._native.staging_bytes)
        frame = bytearray(FRAME_HEAD_BYTES) + bytes(payload)
        delivery.finish_frame(frame, len(payload), _SEND, 0)
        self._ingest_whole(frame, now_ms)
        taken_bytes = int(self._native.staging_bytes) - staged_before
        assert taken_bytes <= send.log_bytes, "a send takes at most what it was judged to take"
        count = self._tables.next_id - first_id
        if count != send.count:
            index = int.from_bytes(self._replies[_FIRST_EXCEPTION : _FIRST_EXCEPTION + 4].tobytes(), "little")
            raise TransactionRefused(
                "two messages of the transaction have the same key", index=index, reason="duplicate"
            )
        return first_id, count

    def _ingest_whole(self, frame: bytearray, now_ms: int) -> None:
        source, result = uint8s(frame), self._ingested
        while True:
            ingest.ingest(self._native, source, 0, now_ms, self._replies, result)
            if result.consumed_bytes == len(frame):
                return
            if result.stop != Need.KEYS:  # only the key index grows on demand: everything else is there
                raise StoreError(f"a judged send stopped with {result.stop}")
            with self._engine.reserve.closed():
                self._tables.make_room_for_keys(_count_of(frame, FRAME_HEAD_BYTES))


def _count_of(data: Buffer, payload_offset: int) -> int:
    """How many messages a SEND payload says that it has."""
    return int.from_bytes(memoryview(data)[payload_offset + 4 : payload_offset + 8], "little")
