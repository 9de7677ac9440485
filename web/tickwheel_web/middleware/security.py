"""Headers that every answer has."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_ENCODED: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class SecurityHeaders:
    """Nothing is a page, nothing may be kept, and nothing is to be guessed, unless an answer says so itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message.get("headers", ())}
                added = [(name, value) for name, value in _ENCODED if name not in own]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        await self._app(scope, receive, with_headers)
