"""Headers of messages, and bodies that are JSON, read as the broker keeps them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tickwheel.protocol.errors import RemoteProtocolError

_HEADERS: Final = msgspec.msgpack.Decoder(dict[str, Any])


def json_of(message_id: int, body: bytes) -> Any:
    """The body of a stored message, which is JSON. Raises RemoteProtocolError."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(
            f"The body of message {message_id} is no JSON: {error}.",
            advice="Look at its body; send_json sends JSON.",
        ) from None


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
