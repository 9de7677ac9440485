"""An answer that messages depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tickwheel_web.ending import WRITE_S, while_there

_AT_ONCE_BYTES: Final = 64 * 1024
"""So much goes to the operating system without waiting for the client to read."""


class Handed(Response):
    """An answer with messages. ``take_back`` is called when it surely did not arrive."""

    def __init__(self, data: bytes, media_type: str, take_back: Callable[[], Awaitable[None]]) -> None:
        super().__init__(data, media_type=media_type)
        self._take_back = take_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        is_written = False
        rest = self.body
        try:
            with anyio.fail_after(WRITE_S):
                async with while_there(receive):
                    await send(
                        {
                            "type": "http.response.start",
                            "status": self.status_code,
                            "headers": self.raw_headers,
                        }
                    )
                    if len(rest) > _AT_ONCE_BYTES:
                        for part in (rest, b""):  # before it takes the second one, the first was written
                            await send({"type": "http.response.body", "body": part, "more_body": True})
                        rest = b""
                    await checkpoint()
            is_written = True
        except (ClientDisconnect, OSError):
            return
        finally:
            if not is_written:
                await self._take_back()
        await send({"type": "http.response.body", "body": rest, "more_body": False})
