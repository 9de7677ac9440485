"""Large JSON, taken in pieces: whatever holds the interpreter does so for a few milliseconds only.

msgspec decodes with the interpreter held, so a thread alone helps nobody. Here it is given no more than some 64 KiB of
an array at a time, and what would be refused anyway is refused before it is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from tickwheel.errors import HeadersTooLarge
from tickwheel_web.problems import Refused

PIECE_BYTES: Final = 64 * 1024
"""What is larger is taken in pieces, in a thread."""
MAX_ENTRIES: Final = 10_000
MAX_HEADERS_JSON_BYTES: Final = 256 * 1024
"""Headers may have 32 KiB as MessagePack, which is six times as much where each character is escaped."""
_MANY_COMMAS: Final = 50_000
"""What has fewer is decoded within a few milliseconds, however long it is."""
_UNREAD: Final = frozenset({"body", "text", "base64"})
"""Fields that are kept as they are: a text costs little, and `body` is not looked into."""
_BLANKS: Final = b" \t\r\n"
_BETWEEN_OBJECTS: Final = re.compile(rb"\}[ \t\r\n]*(,)(?=[ \t\r\n]*\{)")
_BETWEEN_ANY: Final = re.compile(rb"(,)(?=[ \t\r\n]*[^ \t\r\n\]])")
_TRIES: Final = 32
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Arrays that together have the elements of this array, in their order. What is no array is one piece."""
    data = data.strip(_BLANKS)
    if data[:1] != b"[":
        yield data
        return
    start = 1
    while (end := _end_of_piece(data, start)) is not None:
        yield b"[%b]" % data[start:end]
        start = end + 1
    yield data if start == 1 else b"[" + data[start:]


def _end_of_piece(data: bytes, start: int) -> int | None:
    """The place of a comma between two elements. Whether it is one shows what stands before it: only between two
    elements is that an array when it is closed. None: there is none, or the rest is small."""
    size = PIECE_BYTES
    while start + size < len(data):
        tries = max(1, _TRIES * PIECE_BYTES // size)
        for comma in (_BETWEEN_OBJECTS, _BETWEEN_ANY):
            for found in islice(comma.finditer(data, start + size, start + 3 * size), tries):
                if _has_elements(b"[%b]" % data[start : found.start(1)]):
                    return found.start(1)
        size *= 2
    return None


def _has_elements(array: bytes) -> bool:
    try:
        return bool(_RAWS.decode(array))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def lines_of(data: bytes) -> Iterator[bytes]:
    """Whole lines that together are these lines."""
    start = 0
    while start + PIECE_BYTES < len(data) and (end := data.find(b"\n", start + PIECE_BYTES)) >= 0:
        yield data[start : end + 1]
        start = end + 1
    yield data[start:]


def check_fields(kind: type[msgspec.Struct], data: bytes, at: str = "") -> None:
    """Of an object that is large: whether its fields may be decoded. Raises Refused, HeadersTooLarge; whatever else is
    wrong is left to who decodes it."""
    try:
        found = _unread(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    others = data.count(b",")
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if value is UNSET:
            continue
        raw = bytes(value)
        others -= raw.count(b",")
        if name not in _UNREAD:
            _check_field(name, raw, f"{at}/{name}")
    if others > _MANY_COMMAS:  # decoding them would only tell which of them is the first
        raise Refused(
            400, "bad_json", "The object has fields that it cannot have, or the same ones again.", pointer=at
        )


def _check_field(name: str, raw: bytes, pointer: str) -> None:
    if name == "headers" and len(raw) > MAX_HEADERS_JSON_BYTES:
        raise HeadersTooLarge(
            f"The headers have {len(raw):,} bytes of JSON; more than {MAX_HEADERS_JSON_BYTES:,} are never allowed."
        )
    if raw.startswith(b"[") and raw.count(b",") > _MANY_COMMAS:
        count = 0
        for piece in pieces_of(raw):
            count += len(_RAWS.decode(piece))
            if count > MAX_ENTRIES:
                raise Refused(
                    400,
                    "bad_argument",
                    f"There are more than {MAX_ENTRIES:,} of them. Send up to {MAX_ENTRIES:,} at a time.",
                    pointer=pointer,
                )


@cache
def _unread(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    """The same fields, none of them decoded."""
    fields: list[tuple[str, Any, Any]] = [
        (name, msgspec.Raw | UnsetType, UNSET) for name in kind.__struct_encode_fields__
    ]
    return msgspec.json.Decoder(msgspec.defstruct(f"Unread{kind.__name__}", fields))
