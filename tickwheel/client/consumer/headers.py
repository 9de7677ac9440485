"""Headers of messages as the broker keeps them, read."""

from __future__ import annotations

from typing import Any

import msgspec

from tickwheel.protocol.errors import RemoteProtocolError


def headers_of(message_id: int, headers_bytes: bytes) -> dict[str, Any]:
    """The headers of a stored message. Raises RemoteProtocolError if another client wrote no valid ones."""
    if not headers_bytes:
        return {}
    try:
        return msgspec.msgpack.decode(headers_bytes, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"The headers of message {message_id} are no map: {error}.") from None
