"""Pages of other origins that browsers let use the API (CORS): those that are listed, and no others.

Never with credentials: the API knows no cookies, and a page that has a token sends it by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tickwheel.errors import BadArgument

_ORIGIN: Final = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?")
_METHODS: Final = "GET, POST, PUT, PATCH, DELETE"
_SHOWN: Final = "ETag, Location, Retry-After, Tickwheel-Truncated, WWW-Authenticate"
_MAX_AGE_S: Final = 600


def checked(origins: Sequence[str]) -> Sequence[str]:
    """Raises BadArgument for what no browser says."""
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None:
            raise BadArgument(
                f"cors_origins: {origin!r} is no origin.",
                advice="Write it like https://shop.example or http://localhost:5173, without a path; there is no *.",
            )
    return origins


class Cors:
    """Answers what browsers ask first, and marks answers for pages that may read them."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        origin = asked.get("origin", "")
        if (
            origin in self._origins
            and scope["method"] == "OPTIONS"
            and "access-control-request-method" in asked
        ):
            await _before(asked, origin)(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if origin in self._origins:
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Access-Control-Expose-Headers"] = _SHOWN
            await send(message)

        await self._app(scope, receive, marked)


def _before(asked: Headers, origin: str) -> Response:
    """The answer to a preflight. Which headers are sent is checked where they are read."""
    headers = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Max-Age": str(_MAX_AGE_S),
        "Vary": "Origin, Access-Control-Request-Headers",
    }
    if wanted := asked.get("access-control-request-headers"):
        headers["Access-Control-Allow-Headers"] = wanted
    return Response(status_code=204, headers=headers)
