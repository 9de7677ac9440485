"""A small HTTP listener for who watches the broker: `/livez`, `/readyz` and `/metrics`.

Hypercorn's server for trio speaks HTTP on each connection. The connections are accepted here, because their number must
be bounded and because each TLS handshake takes the certificate of that moment; hypercorn can do neither.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tickwheel_broker import logs
from tickwheel_broker.monitoring.metrics import Metrics
from tickwheel_broker.monitoring.vitals import DiskSight, Reason
from tickwheel_broker.monitoring.watched import Drain, Sight
from tickwheel_broker.net.listeners import GONE_BEFORE_ACCEPT
from tickwheel_broker.net.open_files import most_of_http
from tickwheel_broker.security.access import Access

MAX_CONNECTIONS: Final = 64
"""At a time. Each costs a file and some memory; when there are so many, the oldest that asks nothing is closed for the
next one, so that probes are answered however many others connect."""

READ_TIMEOUT_S: Final = 3
"""Short: a probe that waits for a place must not take a broker for one that hangs. Probes usually give up at 5 s."""

KEEP_ALIVE_S: Final = 5.0
"""Short, because hypercorn keeps the place of a client that left for so long."""

CONNECTION_S: Final = 300.0
"""The longest life of a connection: a client that sends a byte now and then must not keep its place."""

MAX_DRAIN_S: Final = 3_600.0
"""So long, at most, a node stays out that was drained."""

DRAIN_ANSWER_S = 25.0
"""So long an answer to /drain may take: less than clients wait for it."""

_NOT_SERVING: Final = Reason("not_owner", "another node of the cluster serves, or none does yet")
_RETRY_S: Final = 0.1
_JSON: Final = "application/json"

_log = logs.get_logger("web")


class Pages:
    """The answers."""

    def __init__(self, sight: Sight, access: Access, drain: Drain | None = None) -> None:
        """`drain`: of a node of a cluster."""
        self._sight = sight
        self._access = access
        self._drain = drain
        self._disk = DiskSight(sight.settings.data_dir)
        self._metrics = Metrics(sight, self._disk)

    def app(self) -> Starlette:
        """The three pages as an ASGI application, and what a node of a cluster can be asked to do."""
        pages: dict[str, Callable[[Request], Any]] = {
            "/livez": self._live, "/readyz": self._ready, "/metrics": self._scrape,
        }  # fmt: skip
        routes = [Route(path, page) for path, page in pages.items()]
        if self._drain is not None:
            routes.append(Route("/drain", self._hand_over, methods=["POST"]))
        return Starlette(routes=routes)

    async def _live(self, request: Request) -> Response:
        """That there is an answer says that the event loop turns."""
        is_alive = self._sight.is_alive
        return PlainTextResponse("ok\n" if is_alive else "not alive\n", 200 if is_alive else 503)

    async def _ready(self, request: Request) -> Response:
        disk = await self._disk.look_now()
        # Only now: meanwhile the broker of a node may have ended, and its store with it.
        watched, standing = self._sight.watched, self._sight.standing
        reasons = [_NOT_SERVING] if watched is None else watched.vitals.reasons(disk)
        body: dict[str, Any] = {"ready": not reasons}
        if standing is not None:
            body |= standing.as_json()
        if await self._is_known(request):
            told = list(reasons)
            if standing is not None and standing.dangers:  # which does not make it unready: it serves
                told.append(Reason("log_not_safe", f"of the topic in Kafka, {'; '.join(standing.dangers)}"))
            body["reasons"] = [reason._asdict() for reason in told]
        return Response(msgspec.json.encode(body) + b"\n", 503 if reasons else 200, media_type=_JSON)

    async def _scrape(self, request: Request) -> Response:
        if not await self._is_known(request):
            if self._sight.watched is not None:
                self._sight.watched.counters.refusals["login_required"] += 1
            return _who_are_you("query:* or admin:*")
        text, content_type = await self._metrics.scrape(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type, "cache-control": "no-store"})

    async def _hand_over(self, request: Request) -> Response:
        """POST /drain?seconds=60: the answer comes when the node owns nothing any more."""
        if not await self._is_known(request, ("admin",)):
            return _who_are_you("admin:*")
        try:
            seconds = float(request.query_params.get("seconds", "60"))
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= MAX_DRAIN_S:
            return PlainTextResponse(f"seconds must be above 0 and at most {MAX_DRAIN_S:g}.\n", 400)
        assert self._drain is not None
        standing = self._sight.standing
        assert standing is not None
        with trio.move_on_after(DRAIN_ANSWER_S):
            await self._drain(seconds)
            return Response(msgspec.json.encode(standing.as_json()) + b"\n", media_type=_JSON)
        if standing.replicator is not None and not standing.replicator.is_current:
            reason = "Kafka does not confirm its last records: check Kafka"
        else:
            reason = "its clients have until drain_timeout to finish"
        return PlainTextResponse(
            f"The node has begun to hand over, and has not done so in {DRAIN_ANSWER_S:g} s: {reason}. It goes on "
            "to hand over; see /readyz.\n",
            503,
        )

    async def _is_known(self, request: Request, permissions: Sequence[str] = ("query", "admin")) -> bool:
        peer = "unknown" if request.client is None else f"{request.client.host}:{request.client.port}"
        return await self._access.lets_in(request.headers.get("authorization", ""), peer, permissions)


def _who_are_you(grants: str) -> Response:
    return PlainTextResponse(
        f"A token with the grant {grants} is needed.\n", 401, {"WWW-Authenticate": 'Bearer realm="tickwheel"'}
    )


@dataclass(eq=False, slots=True)
class _Place:
    """One connection."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    requests: int = 0
    """That are being answered."""


_PLACE: Final[ContextVar[_Place]] = ContextVar("place")


class WebServer:
    """Serves the pages on its listeners."""

    def __init__(
        self,
        sight: Sight,
        access: Access,
        context: Callable[[], ssl.SSLContext] | None = None,
        drain: Drain | None = None,
    ) -> None:
        """`context` gives what a TLS handshake that begins now uses; None: no TLS."""
        self._pages: Any = Pages(
            sight, access, drain
        ).app()  # starlette and hypercorn describe ASGI in types of their own
        answer: Any = self._answer
        self._app = wrap_app(answer, 0, "asgi")
        self._context = context
        self._config = _config()
        self._worker = WorkerContext(None)
        self._most = most_of_http(MAX_CONNECTIONS)
        self._places: dict[_Place, None] = {}  # the oldest first
        self._place_left = trio.lowlevel.ParkingLot()

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Serve until cancelled; closing the listeners is the caller's business."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            stream = await _accept_one(listener)
            while len(self._places) >= self._most and not self._close_idle():
                await self._place_left.park()
            place = _Place()
            self._places[place] = None
            nursery.start_soon(self._serve, stream, place)

    def _close_idle(self) -> bool:
        """Closes the oldest connection that is not being answered; whether there was one."""
        for place in self._places:
            if not place.requests:
                place.scope.cancel()
                del self._places[place]
                return True
        return False

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """The application; meanwhile its connection is not idle."""
        place = _PLACE.get()
        place.requests += 1
        try:
            await self._pages(scope, receive, send)
        finally:
            place.requests -= 1

    async def _serve(self, stream: trio.SocketStream, place: _Place) -> None:
        _PLACE.set(place)
        try:
            over: Any = stream
            if self._context is not None:
                over = trio.SSLStream(stream, self._context(), server_side=True, https_compatible=True)
            place.scope.deadline = trio.current_time() + CONNECTION_S
            with place.scope:
                await TCPServer(self._app, self._config, self._worker, ConnectionState({}), over)
        except Exception:
            # One client's connection; the broker goes on.
            _log.exception("an HTTP connection ended by a defect")
        finally:
            self._places.pop(place, None)
            self._place_left.unpark_all()
            await trio.aclose_forcefully(stream)


async def _accept_one(listener: trio.SocketListener) -> trio.SocketStream:
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in GONE_BEFORE_ACCEPT:
                _log.error("cannot accept HTTP connections", reason=error.strerror)
                await trio.sleep(_RETRY_S)


def _config() -> Config:
    """Hypercorn without logs of its own, with limits that it has not by default."""
    config = Config()
    config.alpn_protocols = ["http/1.1"]
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.read_timeout = READ_TIMEOUT_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.ssl_handshake_timeout = READ_TIMEOUT_S
    config.graceful_timeout = 0
    return config
