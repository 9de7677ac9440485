"""HTTP for a broker: the application that ``tickwheel web`` serves, to be mounted in your own (docs/how-to/http.md).

>>> import tickwheel.web
>>> api = tickwheel.web.app("tickwheel://127.0.0.1:7411")

Needs ``pip install 'tickwheel[web]'``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tickwheel.client.client import Client
from tickwheel.client.security import CERTIFICATE_VARIABLE
from tickwheel.client.url import Urls
from tickwheel.errors import BadArgument, WebMissing

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tickwheel_web.application import Trusted

__all__ = ["app"]


def app(
    url: Urls | None = None,
    *,
    ca_file: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    plain_token: bool = False,
    max_request_bytes: int = 8 * 1024 * 1024,
    request_timeout: float = 30.0,
    max_polls: int = 32,
    max_streams: int = 64,
    cors_origins: Sequence[str] = (),
    forwarded_from: Sequence[str] = (),
    hosts: Sequence[str] = (),
    read_only: bool = False,
    hide_bodies: bool = False,
    hide_headers: Sequence[str] = (),
    lateness_threshold: float = 1.0,
    trusted_header: str = "",
    trusted_from: Sequence[str] = (),
    trusted_users: str | os.PathLike[str] = "",
) -> Starlette:
    """An ASGI application: the HTTP API at ``/v1``, and the dashboard's pages. It passes requests on to the broker at
    ``url``, with the token that each brings, or with which somebody has logged in.

    It works on asyncio and on trio, and only inside its lifespan. It has no token of its own, and takes none from the
    environment. Where the broker would know this process without one, by a ``certificate``, each request must bring
    one. On the broker's Unix socket it names the address of who asks.

    ``max_request_bytes``, ``request_timeout`` (seconds): what the body of a request may have and take. ``max_polls`` of
    a token, and ``max_streams`` of all, may wait for messages at a time. ``cors_origins``: of pages that may use it
    from browsers; those of other sites are refused. ``forwarded_from``: addresses and networks of proxies whose
    X-Forwarded-For is believed; ``unix``: of who comes by a Unix socket. ``hosts``: names of this server, besides
    localhost and addresses; ``"*"``: any. Under others there are no pages, and no API of a broker that wants no token.
    ``read_only``: all that is no GET is refused. ``hide_bodies``, ``hide_headers``: what of messages no page shows.
    ``lateness_threshold`` (seconds): what is later is shown as late.
    ``trusted_header``: in it proxies of ``trusted_from`` (as ``forwarded_from``) write who looks at pages, and that is
    done with the token that the file ``trusted_users`` has for this name. The others are those of ``Client``. Raises
    WebMissing, BadArgument, ConfigError.
    """
    try:
        from tickwheel_web.application import make
        from tickwheel_web.dashboard.page import Hiding
        from tickwheel_web.limits import limits_of
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "jinja2"):
            raise
        raise WebMissing from error

    secured = partial(Client, url, name="web", ca_file=ca_file, certificate=certificate, key=key)
    make_client, names_addresses = _clients(partial(secured, plain_token=plain_token))
    is_known = bool(certificate if certificate is not None else os.environ.get(CERTIFICATE_VARIABLE))
    waiting = {"max_polls": max_polls, "max_streams": max_streams}
    limits = limits_of(max_request_bytes=max_request_bytes, request_timeout=request_timeout, **waiting)
    return make(
        make_client,
        limits,
        needs_token=is_known,
        names_addresses=names_addresses,
        cors_origins=cors_origins,
        forwarded_from=forwarded_from,
        hosts=hosts,
        hiding=Hiding(hide_bodies, frozenset(name.lower() for name in hide_headers)),
        is_read_only=read_only,
        threshold_s=lateness_threshold,
        trusted=_trusted(trusted_header, trusted_from, trusted_users),
    )


def _trusted(header: str, peers: Sequence[str], users: str | os.PathLike[str]) -> Trusted | None:
    """None: no proxy is. Raises BadArgument."""
    given = [bool(header), bool(peers), bool(users)]
    if len(set(given)) > 1:
        raise BadArgument(
            "Of trusted_header, trusted_from and trusted_users some are given, and some are not.",
            advice="Give the header, of whom it is believed, and the file with the tokens; or none of them.",
        )
    if not all(given):
        return None
    from tickwheel_web.application import Trusted

    return Trusted(header, peers, Path(users))


def _clients(make_client: Callable[..., Client]) -> tuple[Callable[[str, str], Client], bool]:
    """Makes the client of a token for an address, and says whether the broker believes the address."""
    names_addresses = "tickwheel+unix://" in make_client(token="").url

    def client(token: str, address: str) -> Client:
        return make_client(token=token, peer=address if names_addresses else "")

    return client, names_addresses
