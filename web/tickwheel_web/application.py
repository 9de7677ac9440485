"""The ASGI application: routes from the tables, one client for each token, problems for all that fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tickwheel.errors import ShuttingDown, TickwheelError
from tickwheel.sharing.clients import Clients, Open
from tickwheel_web import reading
from tickwheel_web.credit import Credits
from tickwheel_web.dashboard.page import Hiding
from tickwheel_web.dashboard.site import Dashboard
from tickwheel_web.ending import Ending
from tickwheel_web.endpoints import Asked, Endpoint, Parts, Shared
from tickwheel_web.limits import Limits
from tickwheel_web.middleware.compression import Compression
from tickwheel_web.middleware.cors import Cors, checked
from tickwheel_web.middleware.forwarded import Forwarded, Proxies
from tickwheel_web.middleware.guard import Guard
from tickwheel_web.middleware.people import People
from tickwheel_web.middleware.person import Person, checked_name
from tickwheel_web.middleware.reading_only import ReadingOnly
from tickwheel_web.middleware.security import SecurityHeaders
from tickwheel_web.openapi import encoded
from tickwheel_web.problems import Refused, answer_to
from tickwheel_web.shapes import JSON
from tickwheel_web.table import ENDPOINTS

_log = logging.getLogger("tickwheel.web")
_COMPRESSED_BYTES: Final = 1_024
_HIDES_NOTHING: Final = Hiding()


@dataclass(frozen=True)
class Trusted:
    """What lets people in to the pages whom a proxy in front has asked who they are."""

    header: str
    """It has their names."""
    peers: Sequence[str]
    """Of whom it is believed, as ``Proxies`` has them."""
    users: Path
    """The file with their tokens."""


class Place:
    """One path: its methods, and how a request is answered."""

    def __init__(self, rows: Sequence[Endpoint], clients: Clients, guard: Guard, shared: Shared) -> None:
        self._rows: dict[str, Endpoint] = {row.method: row for row in rows}
        self._clients = clients
        self._guard = guard
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it. Every failure has an answer; what is a defect is logged besides."""
        request = Request(scope, receive, send)
        is_answered = False
        try:
            self._guard.check_call(request)
            row = self._rows["GET" if request.method == "HEAD" else request.method]
            reading.refuse_conditions(request, row.headers or {})
            token = reading.token(request)
            query = reading.query(row.query, request)
            body = b""
            if row.requests is not None:
                if "*/*" not in row.requests:
                    reading.need_media_type(request, list(row.requests))
                limits = self._shared.limits
                body = await reading.read_body(request, limits.request_bytes, limits.request_s)
            address = reading.address(request)
            async with self._clients.client(token, address) as client:  # until the answer is written
                self._guard.check_broker(request, wants_token=client.grants is not None)
                asked = Asked(request, client, query, body, token or address, self._shared)
                response = await row.answering(asked)
                is_answered = True
                await response(scope, receive, send)
        except (Refused, TickwheelError) as error:
            if is_answered:
                raise
            await answer_to(error, request.url.path)(scope, receive, send)
        except Exception as error:
            if is_answered:
                raise
            _log.exception("a request met a defect")
            await (await _defect(request, error))(scope, receive, send)


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router refuses."""
    assert isinstance(error, HTTPException)
    code = {404: "no_such_path", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    told = {
        404: "There is no such path. GET /openapi.json lists them all.",
        405: f"{request.method} is not among the methods of this path.",
    }
    refused = Refused(
        error.status_code, code, told.get(error.status_code, error.detail), headers=error.headers
    )
    return answer_to(refused, request.url.path)


def _wants_page(request: Request) -> bool:
    """Whether a browser asks."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


async def _defect(request: Request, error: Exception | None = None) -> Response:
    """A defect of ours; the server logs it."""
    refused = Refused(500, "internal", "The web process met a defect of its own. Its log has the details.")
    return answer_to(refused, request.url.path)


async def _document(request: Request) -> Response:
    return Response(_DOCUMENT, media_type=JSON)


_DOCUMENT: Final = encoded()


def _not_running() -> ShuttingDown:
    return ShuttingDown(
        "The web application is not running.",
        advice="Run its lifespan: docs/how-to/http.md says how when it is mounted in another one.",
    )


def _middleware(
    cors_origins: Sequence[str],
    person: tuple[str, Proxies] | None,
    proxies: Proxies | None,
    *,
    is_read_only: bool,
) -> list[Middleware]:
    """From the outside in."""
    return [
        Middleware(SecurityHeaders),
        *([Middleware(Cors, cors_origins)] if cors_origins else []),
        *([] if person is None else [Middleware(Person, *person)]),
        *([] if proxies is None else [Middleware(Forwarded, proxies)]),
        *([Middleware(ReadingOnly)] if is_read_only else []),
        Middleware(Compression, minimum_size=_COMPRESSED_BYTES),
    ]


def make(
    open_client: Open,
    limits: Limits,
    *,
    needs_token: bool,
    names_addresses: bool,
    cors_origins: Sequence[str] = (),
    forwarded_from: Sequence[str] = (),
    hosts: Sequence[str] = (),
    hiding: Hiding = _HIDES_NOTHING,
    is_read_only: bool = False,
    trusted: Trusted | None = None,
    threshold_s: float = 1.0,
) -> Starlette:
    """The application. ``needs_token``, ``names_addresses``: as ``Clients`` has them. ``hosts``: as ``Guard``
    has them. Raises BadArgument."""
    proxies = Proxies(forwarded_from) if forwarded_from else None
    clients = Clients(
        open_client=open_client,
        needs_token=needs_token,
        names_addresses=names_addresses,
        not_running=_not_running,
    )
    shared = Shared(limits, Ending(), Credits())
    guard = Guard(hosts, checked(cors_origins))
    person = None if trusted is None else (checked_name(trusted.header), Proxies(trusted.peers))
    people = None if trusted is None else People(trusted.users)
    dashboard = Dashboard(
        clients=clients,
        limits=limits,
        ending=shared.ending,
        guard=guard,
        hiding=hiding,
        is_read_only=is_read_only,
        threshold_s=threshold_s,
        people=people,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with clients.running(), dashboard.running():
            yield

    async def http_problem(request: Request, error: Exception) -> Response:
        is_api = request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/v1/")
        is_missing = isinstance(error, HTTPException) and error.status_code == 404
        if is_api or not is_missing or not _wants_page(request):
            return await _http_problem(request, error)
        return dashboard.missing(request)

    app = Starlette(
        routes=[
            *_routes(clients, guard, shared),
            Route("/openapi.json", _document, methods=["GET"]),
            *dashboard.routes(),
        ],
        middleware=_middleware(cors_origins, person, proxies, is_read_only=is_read_only),
        exception_handlers={HTTPException: http_problem, Exception: _defect},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.ending = shared.ending
    app.state.compile = dashboard.compile
    return app


def _routes(clients: Clients, guard: Guard, shared: Shared) -> list[Route]:
    rows: dict[str, list[Endpoint]] = {}
    for row in ENDPOINTS:
        rows.setdefault(row.path, []).append(row)
    return [
        Parts(path, Place(rows_of, clients, guard, shared), methods=[row.method for row in rows_of])
        for path, rows_of in rows.items()
    ]
