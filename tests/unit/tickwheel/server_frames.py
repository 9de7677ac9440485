"""The columnar answers and deliveries as a server encodes them. The broker's C does that in the product."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tickwheel.protocol.messages import AckOk, ItemException, SendOk, pack_column

_SEND_OK_HEAD: Final = struct.Struct("<QII")
_ACK_OK_HEAD: Final = struct.Struct("<II")
_EXCEPTION: Final = struct.Struct("<IIQ")
_DELIVER_HEAD: Final = struct.Struct("<II")


def _pack_exceptions(exceptions: Iterable[ItemException]) -> list[bytes]:
    return [_EXCEPTION.pack(*exception) for exception in exceptions]


def encode_send_ok(answer: SendOk) -> bytes:
    """The payload of SEND_OK."""
    head = _SEND_OK_HEAD.pack(answer.first_id, answer.stored, len(answer.exceptions))
    return b"".join((head, *_pack_exceptions(answer.exceptions)))


def encode_ack_ok(answer: AckOk) -> bytes:
    """The payload of ACK_OK."""
    head = _ACK_OK_HEAD.pack(answer.acked, len(answer.exceptions))
    return b"".join((head, *_pack_exceptions(answer.exceptions)))


class DeliverItem(NamedTuple):
    """One message of a DELIVER that is to be encoded."""

    id: int
    deliver_at_ms: int
    created_ms: int
    epoch: int
    priority: int
    key: bytes
    headers: bytes
    body: bytes
    order_key: bytes = b""


def encode_deliver(subscription: int, items: Sequence[DeliverItem]) -> bytes:
    """The payload of DELIVER."""
    ids, deliver_at_ms, created_ms, epochs, priorities, keys, headers, bodies, orders = zip(
        *items, strict=True
    )
    parts = [
        _DELIVER_HEAD.pack(subscription, len(items)),
        pack_column("Q", ids),
        pack_column("q", deliver_at_ms),
        pack_column("q", created_ms),
        pack_column("I", epochs),
        pack_column("I", map(len, bodies)),
        pack_column("H", map(len, keys)),
        pack_column("H", map(len, headers)),
        pack_column("H", map(len, orders)),
        bytes(priorities),
    ]
    for item in items:
        parts += (item.key, item.headers, item.order_key, item.body)
    return b"".join(parts)
