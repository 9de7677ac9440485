"""Small JSON files that say their format and carry a checksum: both are known before the rest is understood."""

from __future__ import annotations

import msgspec

from tickwheel_native import crc32c
from timerlog.errors import DECODE_ERRORS, UnsupportedFormat


class _Outside(msgspec.Struct, frozen=True):
    format: int
    crc32c: int
    content: msgspec.Raw


def seal(version: int, content: object) -> bytes:
    """The file's bytes."""
    body = msgspec.json.encode(content)
    return msgspec.json.encode(_Outside(version, _checksum(version, body), msgspec.Raw(body)))


def unseal(data: bytes, newest: int, what: str) -> bytes | None:
    """The content, as JSON; None when it is damaged. Raises ``UnsupportedFormat`` for one of a newer version."""
    try:
        outside = msgspec.json.decode(data, type=_Outside)
    except DECODE_ERRORS:
        return None
    body = bytes(outside.content)
    if _checksum(outside.format, body) != outside.crc32c:
        return None
    if outside.format > newest:
        raise UnsupportedFormat(f"{what} has format {outside.format}; this version reads up to {newest}")
    return body


def _checksum(version: int, body: bytes) -> int:
    return crc32c(b"%d " % version + body)
