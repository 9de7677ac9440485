"""Answers are compressed for those who can read that."""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Receive, Scope, Send

_ACCEPTS = b"accept-encoding"


class Compression(GZipMiddleware):
    """As Starlette has it; programs that do not ask for it cost nothing."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if any(name == _ACCEPTS for name, _ in scope.get("headers", ())):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)
