"""Frames: a 16-byte header with length, CRC32C, type and correlation, then the payload.

>>> frame = encode_frame(FrameType.PING, 7)
>>> reader = FrameReader(max_frame_bytes=1024)
>>> reader.feed(frame[:10]); reader.next_frame() is None
True
>>> reader.feed(frame[10:]); reader.next_frame()
Frame(type=3, correlation=7, payload=b'', flags=0)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from tickwheel.protocol.errors import BadCrc, BadFrame, FrameTooLarge
from tickwheel_native import crc32c

HEADER_BYTES: Final = 16
HAS_IDENTITY: Final = 1
"""A flag: the payload of this request begins with its identity; see ``identity``."""
IS_REPEATED: Final = 2
"""A flag: it was written to an earlier connection, too."""

_HEADER: Final = struct.Struct("<IIBBHI")
_LENGTH_AND_CRC: Final = struct.Struct("<II")
_CHECKED_HEADER: Final = struct.Struct("<BBHI")


class FrameType(IntEnum):
    """The types of version 1; an answer's name is that of its request and ``_OK``."""

    HELLO = 1
    HELLO_OK = 2
    PING = 3
    PONG = 4
    ERROR = 5
    GOAWAY = 6
    OPEN_TOPIC = 10
    OPEN_TOPIC_OK = 11
    SEND = 12
    SEND_OK = 13
    SUBSCRIBE = 20
    SUBSCRIBE_OK = 21
    DELIVER = 22
    ACK = 23
    ACK_OK = 24
    UNSUBSCRIBE = 25
    UNSUBSCRIBE_OK = 26
    NACK = 27
    NACK_OK = 28
    CANCEL = 30
    CANCEL_OK = 31
    RESCHEDULE = 32
    RESCHEDULE_OK = 33
    REDELIVER = 34
    REDELIVER_OK = 35
    TRANSACTION = 36
    TRANSACTION_OK = 37
    CHANGE = 38
    CHANGE_OK = 39
    STATS = 40
    STATS_OK = 41
    TOPICS = 42
    TOPICS_OK = 43
    WHEEL = 44
    WHEEL_OK = 45
    QUERY = 46
    QUERY_OK = 47
    SET_TOPIC = 50
    SET_TOPIC_OK = 51
    GET_TOPIC = 52
    GET_TOPIC_OK = 53
    DELETE_TOPIC = 54
    DELETE_TOPIC_OK = 55
    SCHEDULES = 60
    SCHEDULES_OK = 61
    SET_SCHEDULE = 62
    SET_SCHEDULE_OK = 63
    DELETE_SCHEDULE = 64
    DELETE_SCHEDULE_OK = 65
    TRIGGER_SCHEDULE = 66
    TRIGGER_SCHEDULE_OK = 67
    PURGE = 70
    PURGE_OK = 71
    REPLAY_DEAD = 72
    REPLAY_DEAD_OK = 73
    DECIDE = 74
    DECIDE_OK = 75
    PREPARE = 76
    PREPARE_OK = 77
    DROP = 78
    DROP_OK = 79
    REVOKE = 80
    LEASE = 81
    EXTEND = 82
    EXTEND_OK = 83
    BROWSE = 84
    BROWSE_OK = 85
    RETURN = 86
    RETURN_OK = 87
    CREDIT = 88
    CREDIT_OK = 89
    PLAN_JOB = 90
    PLAN_JOB_OK = 91
    RESERVE_IDS = 92
    RESERVE_IDS_OK = 93
    ADOPT_JOB = 94
    ADOPT_JOB_OK = 95
    GROUPS = 100
    GROUPS_OK = 101
    CREATE_GROUP = 102
    CREATE_GROUP_OK = 103
    DELETE_GROUP = 104
    DELETE_GROUP_OK = 105
    SEEK_GROUP = 106
    SEEK_GROUP_OK = 107
    GET_MESSAGES = 108
    GET_MESSAGES_OK = 109


ANSWER_OF: Final[dict[FrameType, FrameType]] = {
    FrameType.HELLO: FrameType.HELLO_OK,
    FrameType.PING: FrameType.PONG,
    FrameType.OPEN_TOPIC: FrameType.OPEN_TOPIC_OK,
    FrameType.SEND: FrameType.SEND_OK,
    FrameType.SUBSCRIBE: FrameType.SUBSCRIBE_OK,
    FrameType.ACK: FrameType.ACK_OK,
    FrameType.UNSUBSCRIBE: FrameType.UNSUBSCRIBE_OK,
    FrameType.CANCEL: FrameType.CANCEL_OK,
    FrameType.RESCHEDULE: FrameType.RESCHEDULE_OK,
    FrameType.STATS: FrameType.STATS_OK,
    FrameType.TOPICS: FrameType.TOPICS_OK,
    FrameType.WHEEL: FrameType.WHEEL_OK,
    FrameType.SCHEDULES: FrameType.SCHEDULES_OK,
    FrameType.SET_SCHEDULE: FrameType.SET_SCHEDULE_OK,
    FrameType.DELETE_SCHEDULE: FrameType.DELETE_SCHEDULE_OK,
    FrameType.TRIGGER_SCHEDULE: FrameType.TRIGGER_SCHEDULE_OK,
    FrameType.QUERY: FrameType.QUERY_OK,
    FrameType.NACK: FrameType.NACK_OK,
    FrameType.REDELIVER: FrameType.REDELIVER_OK,
    FrameType.TRANSACTION: FrameType.TRANSACTION_OK,
    FrameType.CHANGE: FrameType.CHANGE_OK,
    FrameType.SET_TOPIC: FrameType.SET_TOPIC_OK,
    FrameType.GET_TOPIC: FrameType.GET_TOPIC_OK,
    FrameType.DELETE_TOPIC: FrameType.DELETE_TOPIC_OK,
    FrameType.PURGE: FrameType.PURGE_OK,
    FrameType.REPLAY_DEAD: FrameType.REPLAY_DEAD_OK,
    FrameType.DECIDE: FrameType.DECIDE_OK,
    FrameType.PREPARE: FrameType.PREPARE_OK,
    FrameType.DROP: FrameType.DROP_OK,
    FrameType.EXTEND: FrameType.EXTEND_OK,
    FrameType.RETURN: FrameType.RETURN_OK,
    FrameType.CREDIT: FrameType.CREDIT_OK,
    FrameType.PLAN_JOB: FrameType.PLAN_JOB_OK,
    FrameType.RESERVE_IDS: FrameType.RESERVE_IDS_OK,
    FrameType.ADOPT_JOB: FrameType.ADOPT_JOB_OK,
    FrameType.BROWSE: FrameType.BROWSE_OK,
    FrameType.GROUPS: FrameType.GROUPS_OK,
    FrameType.CREATE_GROUP: FrameType.CREATE_GROUP_OK,
    FrameType.DELETE_GROUP: FrameType.DELETE_GROUP_OK,
    FrameType.SEEK_GROUP: FrameType.SEEK_GROUP_OK,
    FrameType.GET_MESSAGES: FrameType.GET_MESSAGES_OK,
}
"""The type that answers each request (or ERROR does)."""


class Frame(NamedTuple):
    """One whole frame whose checksum was right. ``type`` may be a number that ``FrameType`` does not know."""

    type: int
    correlation: int
    payload: bytes
    flags: int = 0


Buffer = bytes | bytearray | memoryview


def encode_frame(
    frame_type: int, correlation: int, payload: Buffer | Iterable[Buffer] = b"", flags: int = 0
) -> bytes:
    """One frame. ``payload`` is one buffer, or the pieces to be joined to one."""
    if not isinstance(payload, bytes):
        payload = bytes(payload) if isinstance(payload, bytearray | memoryview) else b"".join(payload)
    checked = _CHECKED_HEADER.pack(frame_type, flags, 0, correlation)
    crc = crc32c(payload, crc32c(checked))
    return b"".join((_LENGTH_AND_CRC.pack(len(payload), crc), checked, payload))


class FrameReader:
    """Cuts a byte stream into frames.

    It holds at most one incomplete frame, so at most ``max_frame_bytes``.
    """

    def __init__(self, max_frame_bytes: int, known_flags: int = 0) -> None:
        """``known_flags``: those that frames may have; only requests have any."""
        self.max_frame_bytes = max_frame_bytes
        self._known_flags = known_flags
        self._buffer = bytearray()
        self._start = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and are not yet part of a returned frame."""
        return len(self._buffer) - self._start

    def feed(self, data: Buffer) -> None:
        """Adds received bytes; ``next_frame`` then returns what they complete."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more bytes come.

        Raises FrameTooLarge, BadCrc or BadFrame: the stream cannot be read on after any of them.
        """
        available = len(self._buffer) - self._start
        if available < HEADER_BYTES:
            return None
        payload_bytes, crc, frame_type, flags, reserved, correlation = _HEADER.unpack_from(
            self._buffer, self._start
        )
        # Judged before the payload arrives, so that a hostile length cannot make us buffer it.
        total_bytes = HEADER_BYTES + payload_bytes
        if total_bytes > self.max_frame_bytes:
            raise FrameTooLarge(
                f"A frame of {total_bytes:,} bytes arrived; at most {self.max_frame_bytes:,} are allowed."
            )
        if available < total_bytes:
            return None
        payload = self._checked_payload(crc, total_bytes)
        if flags & ~self._known_flags or reserved:
            raise BadFrame("A frame has flags that version 1 of the protocol does not know.")
        self._start += total_bytes
        return Frame(frame_type, correlation, payload, flags)

    def _checked_payload(self, crc: int, total_bytes: int) -> bytes:
        with memoryview(self._buffer) as view, view[self._start + 8 : self._start + total_bytes] as checked:
            if crc32c(checked) != crc:
                raise BadCrc
            return bytes(checked[8:])
