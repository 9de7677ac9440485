"""Headers of messages as the broker keeps them, read."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tickwheel.protocol.errors import RemoteProtocolError

_HEADERS: Final = msgspec.msgpack.Decoder(dict[str, Any])


def headers_of(message_id: int, headers_bytes: bytes) -> dict[str, Any]:
    """The headers of a stored message. Raises RemoteProtocolError if another client wrote no valid ones."""
    if not headers_bytes:
        return {}
    try:
        return _HEADERS.decode(headers_bytes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(
            f"The headers of message {message_id} are not a MessagePack map: {error}.",
            advice="Correct the client that sent it.",
        ) from None
