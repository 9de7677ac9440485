"""Messages one by one, for the paths that are not hot: reading one from the log, and making a SEND payload."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tickwheel_native import ffi
from timerlog.layout import MESSAGE_HEAD_BYTES

_SEND_HEAD: Final = struct.Struct("<IIIIq")
_KEYS, _HEADERS, _PRIORITIES, _ORDERS = 4, 8, 2, 32
_MESSAGE: Final = struct.Struct("<IIBBHIQqqHHI")


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message that the store itself sends."""

    body: bytes
    key: bytes = b""
    headers: bytes = b""
    order: bytes = b""
    priority: int = 50


@dataclass(frozen=True, slots=True)
class MessageView:
    """What the log holds of a message."""

    topic_id: int
    key: bytes
    headers: bytes
    order: bytes
    body: bytes
    priority: int
    deliver_at_ms: int
    created_ms: int

    @classmethod
    def read(cls, native: Any, message_id: int) -> MessageView:
        """Reads a message that the table has, whatever its state."""
        row = native.rows[message_id]
        position = int(row.position)
        if position >= native.staging_position:
            start = native.staging + (position - int(native.staging_position))
        else:
            start = ffi.cast("uint8_t *", native.log) + position
        record = bytes(ffi.buffer(start, int(row.record_bytes)))
        _, _, _, _, order_bytes, _, _, _, _, key_bytes, headers_bytes, _ = _MESSAGE.unpack_from(record)
        key_end = MESSAGE_HEAD_BYTES + key_bytes
        headers_end = key_end + headers_bytes
        order_end = headers_end + order_bytes
        return cls(
            topic_id=int(row.topic_id),
            key=record[MESSAGE_HEAD_BYTES:key_end],
            headers=record[key_end:headers_end],
            order=record[headers_end:order_end],
            body=record[order_end:],
            priority=int(row.priority),
            deliver_at_ms=int(row.deliver_at_ms),
            created_ms=int(row.created_ms),
        )


def send_payload(topic_id: int, messages: Sequence[Outbound], time_ms: int = 0) -> bytes:
    """The payload of a SEND; docs/protocol.md has its layout."""
    count = len(messages)
    columns = _KEYS | _HEADERS | _PRIORITIES | _ORDERS
    parts = [
        _SEND_HEAD.pack(topic_id, count, columns, 0, time_ms),
        struct.pack(f"<{count}I", *(len(message.body) for message in messages)),
        struct.pack(f"<{count}H", *(len(message.key) for message in messages)),
        struct.pack(f"<{count}H", *(len(message.headers) for message in messages)),
        struct.pack(f"<{count}H", *(len(message.order) for message in messages)),
        bytes(message.priority for message in messages),
        *(message.key for message in messages),
        *(message.headers for message in messages),
        *(message.order for message in messages),
        *(message.body for message in messages),
    ]
    return b"".join(parts)
