"""Names that stand twice in one object of JSON. Parsers differ in what they make of that: no request may depend on it.

What a message's `body` holds is stored as it came, and not judged.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

_BODY: Final = "body"
_LARGE_BYTES: Final = 4 * 1024
_BLANKS: Final = b" \t\r\n"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class _Repeated(str):
    """A name, in the place of the object in which it stands twice."""

    __slots__ = ()


def repeated_name(data: bytes, *, is_lines: bool = False) -> str | None:
    """The first one that is found; None: there is none. ``data``: JSON that can be read; with ``is_lines`` a value on
    each line. Raises RecursionError."""
    is_array = data.lstrip(_BLANKS)[:1] == b"["
    try:
        if is_lines:
            objects = _OBJECT.decode_lines(data)
        else:
            objects = _OBJECTS.decode(data) if is_array else [_OBJECT.decode(data)]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _searched(data, is_lines=is_lines)
    # An object keeps one of two values: it is shorter then. So it is where a name was written with escapes.
    brackets = 0 if is_array and not is_lines else max(len(objects), 1) + 1
    if _length(msgspec.json.encode(objects)) - brackets != _length(data):
        return _searched(data, is_lines=is_lines)
    return _inside(objects)


def _length(data: bytes) -> int:
    return len(data.translate(None, _BLANKS))


def _inside(objects: list[dict[str, msgspec.Raw]]) -> str | None:
    """The first name that stands twice in what the objects hold."""
    for one in objects:
        one.pop(_BODY, None)
    if msgspec.json.encode(objects).count(b"{") == len(objects):  # as a rule
        return None
    values = (bytes(value) for one in objects for value in one.values())
    nested = (repeated_name(value) for value in values if b"{" in value)
    return next((name for name in nested if name is not None), None)


def _searched(data: bytes, *, is_lines: bool) -> str | None:
    """By looking at each object: slow."""
    data = data if is_lines else _without_body(data)
    for text in data.decode(errors="replace").split("\n") if is_lines else [data.decode(errors="replace")]:
        if text.strip() and (name := _first(_loaded(text))) is not None:
            return name
    return None


def _without_body(data: bytes) -> bytes:
    """An object whose large `body`, which is not judged, is null."""
    if len(data) < _LARGE_BYTES:
        return data
    try:
        body = bytes(_OBJECT.decode(data).get(_BODY, b""))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return data
    return data.replace(body, b"null") if len(body) > _LARGE_BYTES and data.count(body) == 1 else data


def _loaded(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_members, parse_int=str, parse_float=str, parse_constant=str)


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            return _Repeated(name)
        members[name] = value
    return members


def _first(value: Any) -> str | None:
    if isinstance(value, _Repeated):
        return str(value)
    if isinstance(value, dict):
        value = [inside for name, inside in value.items() if name != _BODY]
    if not isinstance(value, list):
        return None
    return next((name for name in map(_first, value) if name is not None), None)
