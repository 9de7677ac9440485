"""From a row of a message table to the message that the broker gets."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from tickwheel.client.columns import (
    JSON_HEADERS,
    check_name,
    encode_one_body,
    encode_one_headers,
    encode_one_key,
    encode_one_order_key,
)
from tickwheel.outbox.errors import BadTable
from tickwheel.outbox.json_bodies import BODY_COLUMNS
from tickwheel.outbox.sequence import SEQUENCE
from tickwheel.protocol.errors import BadTime, BadTopicName, KeyTooLong
from tickwheel.protocol.limits import DEFAULT_PRIORITY, MAX_KEY_BYTES, MAX_PRIORITY, MAX_TIME_MS

if TYPE_CHECKING:
    from tickwheel.protocol.bodies.requests import HelloOk

BOOKKEEPING: Final = ("priority", "epoch", "time_next", "time_acked", SEQUENCE)
"""The columns of a message table that are no part of its messages."""
OWN_TOPICS: Final = "tickwheel."
"""How the names of topics begin that are Tickwheel's own."""
_NS_A_MS: Final = 1_000_000
_SUFFIX_BYTES: Final = 32
"""What a key leaves free for a name that is used a second time."""


@dataclass(slots=True)
class Marked:
    """What the marker of a batch remembers of each row, in this order. ``fingerprint`` changes when the user changes
    anything in the row but its time and its priority."""

    id: Any
    deliver_at_ms: int
    priority: int
    fingerprint: int
    key: str


@dataclass(slots=True)
class Outgoing(Marked):
    """A row, as the broker gets it. ``is_renamed``: its usual key belongs to another message."""

    body: bytes
    headers: dict[str, Any] | None
    order_key: str | None
    topic: str = ""
    """Empty: that of the relay."""
    is_renamed: bool = False

    @property
    def size_bytes(self) -> int:
        """About how much it adds to a frame."""
        return len(self.body) + (256 if self.headers is None else 1024)

    def check(self, limits: HelloOk) -> None:
        """Raises what the broker would refuse it for."""
        encode_one_body(self.body, limits)
        encode_one_key(self.key, limits)
        if not self.is_renamed and len(self.key.encode()) > MAX_KEY_BYTES - _SUFFIX_BYTES:
            raise KeyTooLong(f"The key of a row may have {MAX_KEY_BYTES - _SUFFIX_BYTES} bytes at most.")
        if self.headers:
            encode_one_headers(self.headers, limits)
        if self.order_key is not None:
            encode_one_order_key(self.order_key, limits)
        if self.deliver_at_ms > MAX_TIME_MS:
            raise BadTime(f"The row is due in {self.deliver_at_ms:,} ms since 1970, after the year 9999.")
        if self.topic:
            check_name(self.topic)
            if self.topic.startswith(OWN_TOPICS):
                raise BadTopicName(f"{self.topic} is a topic of Tickwheel's own.")


class RowReader:
    """Which columns become what."""

    def __init__(
        self,
        *,
        table: sa.Table,
        columns: Sequence[str] | None = None,
        body: str | None = None,
        headers: Sequence[str] | None = None,
        order_key: str | None = None,
        key: str | None = None,
        topic: str | None = None,
        sequence: sa.ColumnElement[Any] | None = None,
    ) -> None:
        """``columns``: those of the message, the id among them; all of the user's if None. ``sequence``: what orders
        rows of one time as they were written, by default their ids. Raises BadTable."""
        self.table = table
        self.sequence = table.c.id if sequence is None else sequence
        _check_columns(table, [name for name in (*BOOKKEEPING, "id") if name != SEQUENCE])
        user = [column.name for column in table.columns if column.name not in BOOKKEEPING]
        chosen = user if columns is None else list(columns)
        _check_columns(table, chosen)
        if body is None:
            body = next((name for name in BODY_COLUMNS if name in chosen), None)
        named = [name for name in (body, order_key, key, topic) if name is not None]
        _check_columns(table, [*named, *(headers or ())])
        self.body = body
        self._is_json = body is not None and isinstance(table.c[body].type, sa.JSON)
        # Who chose the headers has chosen these; a table without a body becomes an object that has none.
        self._says_json = self._is_json and headers is None
        self.order_key = order_key
        self.key = key
        self.topic = topic
        self._chosen = chosen
        left = [name for name in chosen if name not in (*named, "id")]
        self.headers = list(headers) if headers is not None else left if body is not None else []
        read = dict.fromkeys([*chosen, *named, *self.headers])
        self._read = [name for name in read if name != "id"]
        self.shape = zlib.crc32("\0".join(self._read).encode())
        """Fingerprints can be compared between readers of the same shape only."""

    def select(self) -> sa.Select[Any]:
        """What to select: id, time_next, priority, time_acked, the place in the sequence, then the columns of the
        message."""
        table = self.table
        place = self.sequence.label("tickwheel_place")
        fixed = [table.c.id, table.c.time_next, table.c.priority, table.c.time_acked, place]
        return sa.select(*fixed, *(table.c[name] for name in self._read))

    def outgoing(self, row: Any) -> Outgoing:
        """The message of a row of ``select``."""
        row_id, time_next, priority, values = row[0], int(row[1]), row[2], tuple(row[5:])
        named = {"id": row_id, **dict(zip(self._read, values, strict=True))}
        order_key = None if self.order_key is None else named[self.order_key]
        key = None if self.key is None else named[self.key]
        topic = None if self.topic is None else named[self.topic]
        return Outgoing(
            id=row_id,
            body=self._body(named),
            headers=self._headers(named),
            order_key=None if order_key in (None, "", b"") else text_of(order_key),
            priority=DEFAULT_PRIORITY if priority is None else min(max(int(priority), 0), MAX_PRIORITY),
            deliver_at_ms=max(0, -(-time_next // _NS_A_MS)),  # rounded up: never early
            key=key_of(self.table.name, row_id) if key in (None, "", b"") else text_of(key),
            fingerprint=zlib.crc32(repr(values).encode(errors="surrogatepass")),
            topic="" if topic is None else text_of(topic),
        )

    def _headers(self, named: Mapping[str, Any]) -> dict[str, Any] | None:
        said = JSON_HEADERS if self._says_json else {}
        return {**said, **{name: _plain(named[name]) for name in self.headers}} or None

    def _body(self, named: Mapping[str, Any]) -> bytes:
        if self.body is None:
            return msgspec.json.encode({name: named[name] for name in self._chosen}, enc_hook=str)
        value = named[self.body]
        if value is None and not self._is_json:
            return b""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if self._is_json:
            return msgspec.json.encode(value, enc_hook=str)
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str)


def _check_columns(table: sa.Table, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise BadTable(f"{table.name} has no column {', '.join(missing)}.")


def _plain(value: Any) -> Any:
    """A value of a header, as MessagePack has it: times, decimals and UUIDs are text."""
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, enc_hook=str)


def text_of(value: Any) -> str:
    """A value as part of a key."""
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def key_of(table: str, row_id: Any) -> str:
    """The broker's key of a row: ``<table>:<id>``, with a hash for what is too long."""
    key = f"{table}:{text_of(row_id)}"
    if len(key.encode()) <= MAX_KEY_BYTES - _SUFFIX_BYTES:
        return key
    return f"{table[:40]}:{hashlib.sha256(key.encode()).hexdigest()}"


# -- ids, as they are kept at the broker --

_TEXTS: Final[dict[str, Any]] = {
    "uuid": UUID,
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}


def pack_id(value: Any) -> Any:
    """An id, as MessagePack has it. Raises BadTable for a type that cannot be told from its text."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = Decimal(value)
    if isinstance(value, int | str | bytes) and not isinstance(value, bool):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    kind = type(value).__name__.lower()
    if kind not in _TEXTS:
        raise BadTable(f"The relay cannot remember ids of the type {kind}.", advice="Use numbers or texts.")
    return [kind, value.isoformat() if isinstance(value, date) else str(value)]


def unpack_id(packed: Any) -> Any:
    """The inverse of ``pack_id``."""
    if isinstance(packed, list):
        kind, text = packed
        return _TEXTS[kind](text)
    return packed
