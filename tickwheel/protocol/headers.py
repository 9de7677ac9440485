"""Headers of messages as they are read by what must not stop for any of them: anything may have written them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from tickwheel.protocol.errors import RemoteProtocolError

_DEEPEST: Final = 100
_PLAIN: Final = (str, int, bool, type(None))


class WithHeaders(Protocol):
    """A message of any kind."""

    @property
    def headers(self) -> dict[str, Any]:
        """Raises RemoteProtocolError for what is no map of MessagePack."""


def readable_headers(message: WithHeaders) -> dict[str, Any] | None:
    """None: another client has written what cannot be read."""
    try:
        return message.headers
    except RemoteProtocolError:
        return None


def shown_headers(message: WithHeaders) -> dict[str, Any] | None:
    """As JSON can have them; None as in ``readable_headers``."""
    headers = readable_headers(message)
    if headers is None or all(type(value) in _PLAIN for value in headers.values()):
        return headers
    return {name: as_json(value) for name, value in headers.items()}


def as_json(value: Any, depth: int = 0) -> Any:
    """What MessagePack has and JSON has not becomes a text.

    >>> as_json({1: [b"\\x00", 1.5]})
    {'1': ['AA==', 1.5]}
    """
    if type(value) in _PLAIN:
        return value
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {
            name if isinstance(name, str) else str(name): as_json(one, depth + 1)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [as_json(one, depth + 1) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "base64": base64.b64encode(value.data).decode()}
    return value if isinstance(value, float) else str(value)


def _moment(value: datetime) -> str:
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:
        return str(value)
