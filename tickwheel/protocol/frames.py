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
_COPIED_BYTES: Final = 4096
"""A payload up to this size is copied once more, which is faster than a second checksum."""

_HEADER: Final = struct.Struct("<IIBBHI")
_LENGTH_AND_CRC: Final = struct.Struct("<II")
_CHECKED_HEADER: Final = struct.Struct("<BBHI")


class FrameType(IntEnum):
    """The types of version 1. An answer has the name of its request and ``_OK``; PING alone is answered by PONG."""

    HELLO = 1
    HELLO_OK = 2
    PING = 3
    PONG = 4
    ERROR = 5
    GOAWAY = 6
    PROBE = 7
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
    FETCH = 110
    FETCH_OK = 111
    END_FETCH = 112
    END_FETCH_OK = 113
    HISTORY = 114
    HISTORY_OK = 115
    EVENTS = 116
    EVENTS_OK = 117
    SET_GROUP = 118
    SET_GROUP_OK = 119
    FIGURES = 120
    FIGURES_OK = 121
    CLIENTS = 122
    CLIENTS_OK = 123
    DISCONNECT = 124
    DISCONNECT_OK = 125
    AUDIT = 126
    AUDIT_OK = 127
    ENDPOINTS = 140
    ENDPOINTS_OK = 141
    SET_ENDPOINT = 142
    SET_ENDPOINT_OK = 143
    DELETE_ENDPOINT = 144
    DELETE_ENDPOINT_OK = 145
    ENABLE_ENDPOINT = 146
    ENABLE_ENDPOINT_OK = 147
    TEST_ENDPOINT = 148
    TEST_ENDPOINT_OK = 149
    ATTEMPTS = 150
    ATTEMPTS_OK = 151
    TELL_ENDPOINTS = 152
    TELL_ENDPOINTS_OK = 153


ANSWER_OF: Final[dict[FrameType, FrameType]] = {
    FrameType.PING: FrameType.PONG,
    **{FrameType[one.name.removesuffix("_OK")]: one for one in FrameType if one.name.endswith("_OK")},
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
    if len(payload) <= _COPIED_BYTES:
        checked += payload
        return _LENGTH_AND_CRC.pack(len(payload), crc32c(checked)) + checked
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
