"""Who a person is, as an authenticating proxy in front says it: in a header that is believed of listed peers alone."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tickwheel.errors import BadArgument
from tickwheel_web.middleware.forwarded import Proxies
from tickwheel_web.problems import Refused, answer_to

PERSON: Final = "tickwheel.person"
"""In the scope of a request: the name of the person. No client can write there."""

_NAME: Final = re.compile(r"[A-Za-z0-9-]+")


class Person:
    """Notes the name from the header when the other end of the connection itself is a listed proxy.

    It must stand outside of what believes X-Forwarded-For: an address that a header names is not the one that the
    connection comes from.
    """

    def __init__(self, app: ASGIApp, header: str, proxies: Proxies) -> None:
        self._app = app
        self._header = header.lower()
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http" and self._proxies.have(scope.get("client")):
            found = Headers(scope=scope).getlist(self._header)
            if len(found) > 1:  # one of them is the client's
                refused = Refused(
                    400,
                    "bad_request",
                    f"The header {self._header} is there {len(found)} times. The proxy must replace what clients send.",
                )
                await answer_to(refused, scope["path"])(scope, receive, send)
                return
            if found and found[0].strip():
                scope = {**scope, PERSON: found[0].strip()}
        await self._app(scope, receive, send)


def checked_name(header: str) -> str:
    """Of a header. Raises BadArgument."""
    if not _NAME.fullmatch(header):
        raise BadArgument(f"trusted_header: {header!r} is no name of a header, such as X-Forwarded-User.")
    return header
