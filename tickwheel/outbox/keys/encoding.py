"""What keys, values and counters look like as bytes.

A counter is stored as decimal digits (``b"-42"``), as in Redis, so that whatever shows the table shows the number.
There is one spelling of each number: no ``+``, no spaces, no leading zeros.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from tickwheel.client.checks import many_ids, shown, whole_or_none
from tickwheel.outbox.keys.errors import BadKey, BadLimit, BadValue, CounterOverflow, NotAnInteger

Key: TypeAlias = bytes | str

MAX_KEY_BYTES: Final = 1024
"""Two keys and two numbers must fit into one entry of an index: 3,072 bytes in InnoDB, 2,704 in PostgreSQL."""
MAX_VALUE_BYTES: Final = 4 << 20
"""MariaDB refuses statements longer than 16 MiB, and drivers write some bytes as two."""

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_MIN: Final = -(1 << 63)
_MAX: Final = (1 << 63) - 1


def key_bytes(key: Key) -> bytes:
    """A key as it is stored. Raises BadKey."""
    raw = bound_bytes(key)
    if not raw:
        raise BadKey("A key is empty.")
    return raw


def bound_bytes(key: Key) -> bytes:
    """Where a range of keys begins or ends: a key, or ``b""``, which is before all keys. Raises BadKey."""
    if isinstance(key, str):
        try:
            raw = key.encode()
        except UnicodeEncodeError:
            raise BadKey(
                f"The key {shown(key)} has half a surrogate pair and so no UTF-8.", advice="Pass it as bytes."
            ) from None
    elif isinstance(key, bytes | bytearray | memoryview):
        raw = bytes(key)
    else:
        raise BadKey(f"A key is {type(key).__name__}, which is neither bytes nor str.")
    if len(raw) > MAX_KEY_BYTES:
        raise BadKey(f"A key has {len(raw)} bytes, more than {MAX_KEY_BYTES}.")
    return raw


def end_bytes(end: Key | None) -> bytes | None:
    """The end of a range of keys, which is not in it; None: there is none."""
    return None if end is None else bound_bytes(end)


def value_bytes(value: bytes) -> bytes:
    """A value as it is stored. Raises BadValue."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise BadValue(f"A value is {type(value).__name__}, not bytes.")
    raw = bytes(value)
    if len(raw) > MAX_VALUE_BYTES:
        raise BadValue(f"A value has {len(raw)} bytes, more than {MAX_VALUE_BYTES}.")
    return raw


def int64(number: int) -> int:
    """The number, if it is an integer of 64 bits. Raises NotAnInteger, CounterOverflow."""
    found = whole_or_none(number)
    if found is None:
        raise NotAnInteger(f"{shown(number)} is no integer.", advice="Use an int.")
    if not _MIN <= found <= _MAX:
        raise CounterOverflow(f"{shown(number)} has more than 64 bits.")
    return found


def decode_integer(key: bytes, value: bytes) -> int:
    """The number that a counter's value is. Raises NotAnInteger."""
    if _INTEGER.fullmatch(value) is None or not _MIN <= int(value) <= _MAX:
        shown = value if len(value) <= 40 else value[:40] + b"..."
        raise NotAnInteger(f"The value of {key!r} is {shown!r}, which is no integer.")
    return int(value)


def encode_integer(number: int) -> bytes:
    """A counter's value."""
    return b"%d" % number


def added(key: bytes, number: int, by: int) -> int:
    """The sum. Raises CounterOverflow."""
    total = number + by
    if not _MIN <= total <= _MAX:
        raise CounterOverflow(f"{key!r} is {number}; adding {by} makes more than 64 bits.")
    return total


def limit_of(limit: int, name: str) -> int:
    """A number of results. Raises BadLimit unless it is an integer from 1 to 2^63 - 1."""
    found = whole_or_none(limit)
    if found is None or not 0 < found <= _MAX:
        raise BadLimit(f"{name} is {shown(limit)}, not an integer greater than 0 of 63 bits.")
    return found


def sequences_of(sequences: object) -> list[int] | None:
    """The numbers of failed operations; None: all. Raises BadArgument."""
    return None if sequences is None else many_ids(sequences, "sequences")


def prefix_range(prefix: Key) -> tuple[bytes, bytes | None]:
    """Start and end of the keys that begin with a prefix: the end is the next key that does not."""
    start = bound_bytes(prefix)
    head = start.rstrip(b"\xff")
    return start, (head[:-1] + bytes([head[-1] + 1]) if head else None)


def prefixes_of(key: Key, separator: bytes = b"/") -> Sequence[bytes]:
    """The successive prefixes of a key: of ``a/b/c`` they are ``a/`` and ``a/b/``."""
    raw = key_bytes(key)
    if not isinstance(separator, bytes) or not separator:
        raise BadKey(f"The separator is {shown(separator)}.", advice="Use bytes: b'/'")
    parts = raw.split(separator)[:-1]
    return [separator.join(parts[: count + 1]) + separator for count in range(len(parts))]
