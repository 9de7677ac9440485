"""Who asks when a proxy is in between: X-Forwarded-For is believed of proxies that are listed, and of no others."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, TypeAlias

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tickwheel.errors import BadArgument

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

UNIX: Final = "unix"
"""Stands for who comes by a Unix socket."""


class Proxies:
    """Those that are believed."""

    def __init__(self, believed: Sequence[str]) -> None:
        """``believed``: addresses, networks, ``unix``. Raises BadArgument."""
        self._unix = UNIX in believed
        try:
            self._networks = [ipaddress.ip_network(one) for one in believed if one != UNIX]
        except ValueError as error:
            raise BadArgument(
                f"forwarded_from: {error}.", advice="Use addresses, networks such as 10.0.0.0/8, and unix."
            ) from None

    def have(self, client: tuple[str, int] | None) -> bool:
        """Whether the other end of a connection is one of them."""
        return self._unix if client is None else self.are(_address(client[0]))

    def are(self, address: _Address | None) -> bool:
        """Whether an address is that of one of them."""
        return address is not None and any(address in network for network in self._networks)


class Forwarded:
    """Puts the address of who asks in place of the proxy's, and knows from X-Forwarded-Proto whether TLS was used.

    Each proxy appends whom it has heard, so the list is read from its end: the first one that is no proxy of ours is
    who asks. What stands before it may be made up.
    """

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http" and self._proxies.have(scope.get("client")):
            lists = Headers(scope=scope).getlist("x-forwarded-for")
            found = self._first_stranger([one.strip() for part in lists for one in part.split(",")])
            if found:
                scope = {**scope, "client": (found, 0)}
            if _last(Headers(scope=scope).getlist("x-forwarded-proto")) == "https":
                scope = {**scope, "scheme": "https"}
        await self._app(scope, receive, send)

    def _first_stranger(self, addresses: list[str]) -> str:
        """Empty: there is none. Where all are ours, the one that began."""
        found = ""
        for text in reversed(addresses):
            address = _address(text)
            if address is None:
                break
            found = str(address)
            if not self._proxies.are(address):
                break
        return found


def _last(lists: list[str]) -> str:
    """What the proxy next to us has said."""
    return lists[-1].rpartition(",")[2].strip().lower() if lists else ""


def _address(text: str) -> _Address | None:
    """Also of one with a port, as some proxies write it; of an IPv4 address written as IPv6 the former."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
