"""What keeps pages of other sites out, which a browser shows beside ours: names that they give our address, forms that
they send here, and what they load from here."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from tickwheel_web.problems import Refused

ANY: Final = "*"
"""Among the names: all of them. Who is in front of us knows them."""
_OTHERS: Final = ("cross-site", "same-site")
"""What browsers say of a request that a page of another origin has made."""
_READS: Final = ("GET", "HEAD")


class Hosts:
    """The names under which we may be asked.

    A page of another site can give its own name our address, and would then be of our origin (DNS rebinding). It
    cannot do so with an address in place of a name, nor with ``localhost``.

    >>> hosts = Hosts(["broker.example"])
    >>> [hosts.have(name) for name in ("broker.example:7413", "LOCALHOST:7413", "127.0.0.1", "[::1]:7413")]
    [True, True, True, True]
    >>> hosts.have("shop.example"), hosts.have(""), Hosts(["*"]).have("shop.example")
    (False, False, True)
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    def have(self, host: str) -> bool:
        """Whether a Host header names one of them."""
        if ANY in self._names:
            return True
        name = _name_of(host)
        return name in self._names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


class Guard:
    """One rule for pages and API.

    Under a name that is not known there are no pages, and no API of a broker that wants no token: where it wants
    one, a page of another site has none. What a page of another origin has a browser send is refused, unless it is
    the API that it calls, and the origin is listed; a link to a page is no harm. Programs send none of the headers
    that are looked at here but Host.
    """

    def __init__(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """``hosts``: besides localhost and addresses. ``origins``: those that may use the API (CORS)."""
        self._hosts = Hosts(hosts)
        self._origins = frozenset(origins)

    def check_page(self, request: Request) -> None:
        """Of a request for a page, or for what belongs to one. Raises Refused (403, 421)."""
        self._check_host(request)
        if request.method in _READS:
            _check_link(request)
        else:
            _check_form(request)

    def check_call(self, request: Request) -> None:
        """Of a call of the API: which page has made it. Raises Refused (403)."""
        origin = request.headers.get("origin", "")
        if origin not in self._origins and _is_foreign(request, origin):
            raise Refused(
                403,
                "foreign_origin",
                "A page of another site has made this request. Nothing was done. If it may use the API, add its "
                "origin to the setting web_cors_origins (cors_origins of tickwheel.web.app).",
            )

    def check_broker(self, request: Request, *, wants_token: bool) -> None:
        """Of a call, as soon as it is known whether the broker wants tokens. Raises Refused (421)."""
        if not wants_token:
            self._check_host(request)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not self._hosts.have(host):
            raise Refused(
                421,
                "unknown_host",
                f"This process does not know the name {_name_of(host)!r}, by which a page of another site might have "
                "led a browser here. If it is one of this machine or of its proxy, add it to the setting web_hosts "
                "(hosts of tickwheel.web.app).",
            )


def _check_form(request: Request) -> None:
    """It must come from a page of ours: then a browser says so."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin", "")
    if site == "same-origin" if site is not None else _is_own(origin, request):
        return
    raise Refused(
        403,
        "foreign_origin",
        "This form was sent by a page of another site, or by a program. Nothing was done.",
    )


def _check_link(request: Request) -> None:
    """Another site may link to a page, and not load it by a script or as a picture: the broker would work for it."""
    site, mode = request.headers.get("sec-fetch-site", ""), request.headers.get("sec-fetch-mode", "navigate")
    if site in _OTHERS and mode != "navigate":
        raise Refused(403, "foreign_origin", "This page was asked for by a page of another site.")


def _is_foreign(request: Request, origin: str) -> bool:
    """Whether a browser says that a page of another origin has made this request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in _OTHERS
    return bool(origin) and not _is_own(origin, request)


def _is_own(origin: str, request: Request) -> bool:
    host = request.headers.get("host", "")
    return bool(host) and origin.partition("://")[2].lower() == host.lower()


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
