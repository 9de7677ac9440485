"""The columnar payloads: SEND, SEND_OK, DELIVER, ACK and ACK_OK.

All work is done by column, so that a batch of a thousand messages costs a few calls and not a few thousand.
``docs/protocol.md`` has the layouts. Every ``decode_…`` raises BadFrame, and nothing else, for any bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from itertools import accumulate, pairwise
from operator import add
from typing import Final, NamedTuple

import msgspec

from tickwheel.protocol.errors import BadFrame
from tickwheel.protocol.frames import Buffer
from tickwheel.protocol.limits import DEFAULT_PRIORITY

_SEND_HEAD: Final = struct.Struct("<IIIIq")
_SINGLE: Final = struct.Struct("<IIIIqIH")
_SINGLE_LATER: Final = struct.Struct("<IIIIqqIH")
_KEY_SIZE_BYTES: Final = 2
_SEND_OK_HEAD: Final = struct.Struct("<QII")
_ACK_OK_HEAD: Final = struct.Struct("<II")
_EXCEPTION: Final = struct.Struct("<IIQ")
_TWO_U32: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")

SEND_HEAD_BYTES: Final = _SEND_HEAD.size
SEND_COLUMN_BYTES_MAX: Final = 8 + 4 + 2 + 2 + 2 + 1
"""The most bytes that the columns of one message take in SEND, beside its key, headers and body."""
_DELIVER_COLUMN_BYTES: Final = 8 + 8 + 8 + 4 + 4 + 2 + 2 + 2 + 1
TOPIC_PRIORITY: Final = 256
"""In SEND, one priority for all: that of the topic's settings."""


class Column(IntFlag):
    """The bits of ``columns`` in SEND."""

    DELIVER_AT = 1
    PRIORITY = 2
    KEYS = 4
    HEADERS = 8
    RELATIVE = 16
    ORDER_KEYS = 32
    ALL = 63


# Arithmetic on enumerations is slow, and this is done for each frame.
_DELIVER_AT: Final = int(Column.DELIVER_AT)
_PRIORITY: Final = int(Column.PRIORITY)
_KEYS: Final = int(Column.KEYS)
_HEADERS: Final = int(Column.HEADERS)
_RELATIVE: Final = int(Column.RELATIVE)
_ORDER_KEYS: Final = int(Column.ORDER_KEYS)

_COLUMNS_AT: Final = 8
_TELL_DIFFERENCES: Final = 64
"""A bit among those of the columns."""


class SendCode(IntEnum):
    """Why a message of a SEND was not stored as a new one."""

    DUPLICATE = 1
    BODY_TOO_LARGE = 2
    BAD_TIME = 3
    KEY_TOO_LONG = 4
    HEADERS_TOO_LARGE = 5
    ORDER_KEY_TOO_LONG = 6
    DUPLICATE_DIFFERS = 7
    """As DUPLICATE, and what is there has another body, other headers, or another time or ordering key."""


class AckCode(IntEnum):
    """Why an ack was not counted."""

    ALREADY_ACKED = 1
    STALE_RECEIPT = 2
    NOT_FOUND = 3
    NEVER_DELIVERED = 4
    CANCELLED = 5


class ItemException(NamedTuple):
    """What SEND_OK and ACK_OK say of one item: ``position`` in the request, ``code``, and a message id."""

    position: int
    code: int
    id: int


def pack_column(letter: str, values: Iterable[int]) -> bytes:
    """A little-endian column. ``letter`` is that of ``struct``: B, H, I, Q or q."""
    numbers = tuple(values)
    return struct.pack(f"<{len(numbers)}{letter}", *numbers)


def unpack_column(letter: str, column: bytes) -> tuple[int, ...]:
    """The values of a whole column."""
    return _unpack_column(letter, len(column) // struct.calcsize("<" + letter), column, 0)


def _unpack_column(letter: str, count: int, payload: bytes, offset: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{count}{letter}", payload, offset)


# SEND ---------------------------------------------------------------------------------------------


class SendColumns(msgspec.Struct, frozen=True):
    """The messages of one SEND frame, by column.

    ``deliver_at_ms`` and ``priority`` are one number for all, or a packed column (``i64`` and ``u8``
    little-endian). With ``relative`` the times are delays in milliseconds from the broker's now.
    """

    bodies: Sequence[Buffer]
    deliver_at_ms: int | bytes = 0
    relative: bool = False
    priority: int | bytes = DEFAULT_PRIORITY
    keys: Sequence[bytes] | None = None
    headers: Sequence[bytes] | None = None
    order_keys: Sequence[bytes] | None = None

    @property
    def flags(self) -> int:
        """The bits of `Column` that say which columns there are."""
        return (
            _RELATIVE * self.relative
            | _DELIVER_AT * isinstance(self.deliver_at_ms, bytes)
            | _PRIORITY * isinstance(self.priority, bytes)
            | _KEYS * (self.keys is not None)
            | _HEADERS * (self.headers is not None)
            | _ORDER_KEYS * (self.order_keys is not None)
        )


def encode_send(topic_id: int, columns: SendColumns, *, tell_differences: bool = False) -> bytes:
    """The payload of SEND; see ``retarget_send``. The caller has checked sizes: ``struct.error`` means that it has
    not."""
    count = len(columns.bodies)
    deliver_at_ms, priority = columns.deliver_at_ms, columns.priority
    one_time = 0 if isinstance(deliver_at_ms, bytes) else deliver_at_ms
    one_priority = DEFAULT_PRIORITY if isinstance(priority, bytes) else priority
    flags = columns.flags | _TELL_DIFFERENCES * tell_differences
    parts: list[Buffer] = [_SEND_HEAD.pack(topic_id, count, flags, one_priority, one_time)]
    if isinstance(deliver_at_ms, bytes):
        parts.append(deliver_at_ms)
    parts.append(pack_column("I", map(len, columns.bodies)))
    if columns.keys is not None:
        parts.append(pack_column("H", map(len, columns.keys)))
    if columns.headers is not None:
        parts.append(pack_column("H", map(len, columns.headers)))
    if columns.order_keys is not None:
        parts.append(pack_column("H", map(len, columns.order_keys)))
    if isinstance(priority, bytes):
        parts.append(priority)
    parts.extend(columns.keys or ())
    parts.extend(columns.headers or ())
    parts.extend(columns.order_keys or ())
    parts.extend(columns.bodies)
    return b"".join(parts)


def single_send_columns(
    topic_id: int, *, body_bytes: int, key_bytes: int, time_ms: int, relative: bool, tell_differences: bool
) -> bytes:
    """What stands before key and body in the SEND of a message with the topic's priority and nothing else, as
    ``encode_send`` has it. ``key_bytes`` 0: it has no key; ``time_ms`` 0: no time."""
    flags = _RELATIVE * relative | _KEYS * (key_bytes > 0) | _TELL_DIFFERENCES * tell_differences
    if time_ms:
        flags |= _DELIVER_AT
        columns = _SINGLE_LATER.pack(topic_id, 1, flags, TOPIC_PRIORITY, 0, time_ms, body_bytes, key_bytes)
    else:
        columns = _SINGLE.pack(topic_id, 1, flags, TOPIC_PRIORITY, 0, body_bytes, key_bytes)
    return columns if key_bytes else columns[:-_KEY_SIZE_BYTES]


def retarget_send(payload: bytes, topic_id: int, *, tell_differences: bool = False) -> bytes:
    """The same SEND for another ``topic_id``: after a reconnect the topic may have another one. ``tell_differences``:
    duplicates that differ are to be told apart, by a broker that can."""
    head, columns = _U32.pack(topic_id), payload[_COLUMNS_AT]
    wanted = columns | _TELL_DIFFERENCES if tell_differences else columns & ~_TELL_DIFFERENCES
    if wanted == columns and payload.startswith(head):
        return payload
    with memoryview(payload) as view, view[4:_COLUMNS_AT] as count, view[_COLUMNS_AT + 1 :] as rest:
        return b"".join((head, count, bytes((wanted,)), rest))


class _Cursor:
    """Reads a payload from front to back and refuses to pass its end."""

    def __init__(self, payload: bytes, offset: int) -> None:
        self.payload = payload
        self.offset = offset

    def take(self, size_bytes: int) -> bytes:
        end = self.offset + size_bytes
        if end > len(self.payload):
            raise BadFrame("A payload ends before its columns do.")
        taken = self.payload[self.offset : end]
        self.offset = end
        return taken

    def column(self, letter: str, count: int) -> tuple[int, ...]:
        return _unpack_column(letter, count, self.take(count * struct.calcsize("<" + letter)), 0)

    def pieces(self, sizes: Iterable[int]) -> list[bytes]:
        return [self.take(size) for size in sizes]


def decode_send(payload: bytes) -> tuple[int, SendColumns]:
    """``(topic_id, columns)`` of a SEND payload. Raises BadFrame."""
    if len(payload) < SEND_HEAD_BYTES:
        raise BadFrame("A SEND is shorter than its head.")
    topic_id, count, bits, one_priority, one_time = _SEND_HEAD.unpack_from(payload)
    if count < 1 or bits > Column.ALL or one_priority > TOPIC_PRIORITY:
        raise BadFrame("The head of a SEND has values out of range.")
    if count * 4 > len(payload):
        raise BadFrame("A SEND claims more messages than it has room for.")
    flags, cursor = Column(bits), _Cursor(payload, SEND_HEAD_BYTES)
    times = cursor.take(8 * count) if Column.DELIVER_AT in flags else None
    body_sizes = cursor.column("I", count)
    key_sizes = cursor.column("H", count) if Column.KEYS in flags else None
    headers_sizes = cursor.column("H", count) if Column.HEADERS in flags else None
    order_sizes = cursor.column("H", count) if Column.ORDER_KEYS in flags else None
    priorities = cursor.take(count) if Column.PRIORITY in flags else None
    keys = None if key_sizes is None else cursor.pieces(key_sizes)
    headers = None if headers_sizes is None else cursor.pieces(headers_sizes)
    order_keys = None if order_sizes is None else cursor.pieces(order_sizes)
    bodies = cursor.pieces(body_sizes)
    if cursor.offset != len(payload):
        raise BadFrame("A SEND is longer than its columns say.")
    columns = SendColumns(
        bodies=bodies,
        deliver_at_ms=one_time if times is None else times,
        relative=Column.RELATIVE in flags,
        priority=one_priority if priorities is None else priorities,
        keys=keys,
        headers=headers,
        order_keys=order_keys,
    )
    return topic_id, columns


# SEND_OK and ACK_OK -------------------------------------------------------------------------------


class SendOk(msgspec.Struct, frozen=True):
    """The answer to SEND: the messages that are no exceptions have the ids ``first_id``, ``first_id + 1``,
    …"""

    first_id: int
    stored: int
    exceptions: tuple[ItemException, ...] = ()


class AckOk(msgspec.Struct, frozen=True):
    """The answer to ACK: how many acks counted, and what became of the others."""

    acked: int
    exceptions: tuple[ItemException, ...] = ()


def _unpack_exceptions(payload: bytes, count: int, offset: int) -> tuple[ItemException, ...]:
    if len(payload) != offset + count * _EXCEPTION.size:
        raise BadFrame("The length of an answer does not fit the number of its exceptions.")
    if not count:
        return ()
    exceptions = tuple(map(ItemException._make, _EXCEPTION.iter_unpack(payload[offset:])))
    if any(left.position >= right.position for left, right in pairwise(exceptions)):
        raise BadFrame("The exceptions of an answer are not in order.")
    return exceptions


def decode_send_ok(payload: bytes) -> SendOk:
    """Reads SEND_OK. Raises BadFrame."""
    if len(payload) < _SEND_OK_HEAD.size:
        raise BadFrame("A SEND_OK is shorter than its head.")
    first_id, stored, count = _SEND_OK_HEAD.unpack_from(payload)
    return SendOk(first_id, stored, _unpack_exceptions(payload, count, _SEND_OK_HEAD.size))


def decode_ack_ok(payload: bytes) -> AckOk:
    """Reads ACK_OK. Raises BadFrame."""
    if len(payload) < _ACK_OK_HEAD.size:
        raise BadFrame("An ACK_OK is shorter than its head.")
    acked, count = _ACK_OK_HEAD.unpack_from(payload)
    return AckOk(acked, _unpack_exceptions(payload, count, _ACK_OK_HEAD.size))


# DELIVER ------------------------------------------------------------------------------------------


class Delivery(msgspec.Struct, frozen=True):
    """A batch that was delivered. A column is unpacked when it is asked for.

    ``payload`` is the whole DELIVER payload; the four columns of sizes (bytes) are unpacked, because
    checking the frame needs them.
    """

    subscription: int
    count: int
    payload: bytes
    body_bytes: tuple[int, ...]
    key_bytes: tuple[int, ...]
    headers_bytes: tuple[int, ...]
    order_bytes: tuple[int, ...]
    attempts: tuple[int, ...] | None = None
    """Which attempt of its message each delivery is, up to 65,535; None: the subscription did not ask for it."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The id of each message."""
        return _unpack_column("Q", self.count, self.payload, 8)

    @property
    def deliver_at_ms(self) -> tuple[int, ...]:
        """When each message was due."""
        return _unpack_column("q", self.count, self.payload, 8 + 8 * self.count)

    @property
    def created_ms(self) -> tuple[int, ...]:
        """When the broker received each message."""
        return _unpack_column("q", self.count, self.payload, 8 + 16 * self.count)

    @property
    def epochs(self) -> tuple[int, ...]:
        """1 at the first delivery of each message to the group, one more at each redelivery."""
        return _unpack_column("I", self.count, self.payload, 8 + 24 * self.count)

    @property
    def priorities(self) -> bytes:
        """The priority of each message, 0 to 255."""
        start = 8 + 38 * self.count
        return self.payload[start : start + self.count]

    @property
    def ack_columns(self) -> tuple[bytes, bytes]:
        """Ids (u64) and epochs (u32) as they stand in the frame: just what an ACK of the batch needs."""
        ids_end = 8 + 8 * self.count
        epochs_start = 8 + 24 * self.count
        return self.payload[8:ids_end], self.payload[epochs_start : epochs_start + 4 * self.count]

    def ends(self) -> list[int]:
        """Where in ``payload`` each message (key, headers, ordering key, body) ends."""
        sizes = map(add, map(add, self.key_bytes, self.headers_bytes), self.body_bytes)
        if any(self.order_bytes):
            sizes = map(add, sizes, self.order_bytes)
        first = 8 + _DELIVER_COLUMN_BYTES * self.count
        ends = list(accumulate(sizes, initial=first))
        del ends[0]
        return ends


def decode_deliver(payload: bytes) -> Delivery:
    """Reads DELIVER. Raises BadFrame."""
    if len(payload) < 8:
        raise BadFrame("A DELIVER is shorter than its head.")
    subscription, count = _TWO_U32.unpack_from(payload)
    columns_end = 8 + _DELIVER_COLUMN_BYTES * count
    if count < 1 or columns_end > len(payload):
        raise BadFrame("The columns of a DELIVER do not fit its length.")
    body_bytes = _unpack_column("I", count, payload, 8 + 28 * count)
    key_bytes = _unpack_column("H", count, payload, 8 + 32 * count)
    headers_bytes = _unpack_column("H", count, payload, 8 + 34 * count)
    order_bytes = _unpack_column("H", count, payload, 8 + 36 * count)
    blob_bytes = sum(body_bytes) + sum(key_bytes) + sum(headers_bytes) + sum(order_bytes)
    attempts_at = columns_end + blob_bytes
    attempts = None
    if attempts_at + 2 * count == len(payload):
        attempts = _unpack_column("H", count, payload, attempts_at)
    elif attempts_at != len(payload):
        raise BadFrame("The length of a DELIVER is not what its columns say.")
    return Delivery(
        subscription=subscription,
        count=count,
        payload=payload,
        body_bytes=body_bytes,
        key_bytes=key_bytes,
        headers_bytes=headers_bytes,
        order_bytes=order_bytes,
        attempts=attempts,
    )


# FETCH_OK -----------------------------------------------------------------------------------------


class FetchOk(msgspec.Struct, frozen=True):
    """The answer to FETCH: perhaps no messages. In the delivery's head stands the group in place of a subscription."""

    delivery: Delivery
    attempts: tuple[int, ...]
    """Which attempt of its message each delivery is, up to 65,535."""

    @property
    def group_id(self) -> int:
        """What acks of it name."""
        return self.delivery.subscription


def decode_fetch_ok(payload: bytes) -> FetchOk:
    """Reads FETCH_OK. Raises BadFrame."""
    if len(payload) == _TWO_U32.size and not payload[4:].strip(b"\0"):
        (group_id, _) = _TWO_U32.unpack(payload)
        return FetchOk(
            Delivery(
                subscription=group_id,
                count=0,
                payload=payload,
                body_bytes=(),
                key_bytes=(),
                headers_bytes=(),
                order_bytes=(),
            ),
            (),
        )
    if len(payload) < _TWO_U32.size:
        raise BadFrame("A FETCH_OK is shorter than its head.")
    delivery = decode_deliver(payload)
    if delivery.attempts is None:
        raise BadFrame("The columns of a FETCH_OK do not fit its length.")
    return FetchOk(delivery, delivery.attempts)


def encode_no_messages(group_id: int) -> bytes:
    """The payload of a FETCH_OK without messages."""
    return _TWO_U32.pack(group_id, 0)


# ACK ----------------------------------------------------------------------------------------------


class AckColumns(msgspec.Struct, frozen=True):
    """The acks of one ACK frame: message ids, and the epochs under which they were delivered."""

    group_id: int
    ids: tuple[int, ...]
    epochs: tuple[int, ...]


def encode_ack(group_id: int, ids: bytes, epochs: bytes) -> bytes:
    """The payload of ACK, from packed columns: ``ids`` is u64[n], ``epochs`` u32[n]."""
    return b"".join((_TWO_U32.pack(group_id, len(epochs) // 4), ids, epochs))


def decode_ack(payload: bytes) -> AckColumns:
    """Reads ACK. Raises BadFrame."""
    if len(payload) < 8:
        raise BadFrame("An ACK is shorter than its head.")
    group_id, count = _TWO_U32.unpack_from(payload)
    if count < 1 or len(payload) != 8 + 12 * count:
        raise BadFrame("The length of an ACK is not what its count says.")
    ids = _unpack_column("Q", count, payload, 8)
    return AckColumns(group_id, ids, _unpack_column("I", count, payload, 8 + 8 * count))
