"""What the broker counts itself, beside the engine."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final

import numpy as np

from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.frames import HEADER_BYTES
from tickwheel_broker.errors import error_frame

_CODE_OF_MESSAGE: Final = {
    2: "body_too_large",
    3: "bad_time",
    4: "key_too_long",
    5: "headers_too_large",
    6: "order_key_too_long",
}
"""Of the exceptions in SEND_OK, those that are refusals; 1, a duplicate, is none."""

_SEND_OK: Final = struct.Struct("<I20xII")
"""Of a whole SEND_OK frame: its payload's length; how many were stored, and how many exceptions there are."""
_EXCEPTIONS_OFFSET: Final = HEADER_BYTES + 16
_EXCEPTION: Final = np.dtype([("index", "<u4"), ("code", "<u4"), ("id", "<u8")])


class Counters:
    """Everything here only grows, but for `connections`."""

    def __init__(self) -> None:
        self.connections = 0
        self.refusals: Counter[str] = Counter()
        """By error code: what was refused to clients, be it a message, a request or a connection."""

    def refusal(self, correlation: int, error: TickwheelError) -> bytes:
        """The ERROR frame that tells a client of a refusal. Whatever is refused goes through here and is counted."""
        self.refusals[error.code] += 1
        return error_frame(correlation, error)

    def refused_messages(self, replies: bytes) -> None:
        """Count the messages that SEND_OK frames refuse one by one."""
        offset = 0
        while offset < len(replies):
            payload_bytes, _, exceptions = _SEND_OK.unpack_from(replies, offset)
            if exceptions:
                found = np.frombuffer(replies, _EXCEPTION, exceptions, offset + _EXCEPTIONS_OFFSET)
                for code, count in enumerate(np.bincount(found["code"]).tolist()):
                    if count and code in _CODE_OF_MESSAGE:
                        self.refusals[_CODE_OF_MESSAGE[code]] += count
            offset += HEADER_BYTES + payload_bytes
