"""`tickwheel web`: the application on uvicorn, with limits that uvicorn has not by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import anyio
import httptools
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tickwheel_web.ending import OWN_PATIENCE, WRITE_S
from tickwheel_web.large.aside import take_short_turns
from tickwheel_web.limits import REQUEST_TIMEOUT_S
from tickwheel_web.middleware.security import HEADERS
from tickwheel_web.problems import MEDIA_TYPE, Refused, encode, headers_of, phrase_of, problem_of

MAX_CONNECTIONS: Final = 1_024
MAX_HEADER_BYTES: Final = 16 * 1024
KEEP_ALIVE_S: Final = 75
DRAIN_S: Final = 10
LINGER_S: Final = 1.0
"""So long a client that was refused may go on writing."""
MAX_LINGERING: Final = 8
ORPHAN_DRAIN_S: Final = 1
"""The broker is probably gone as well, and nothing can be done any more."""
MORE_HANDSHAKES: Final = 16
"""So many more than the connections may be under way: of one too many it can only be said when TLS is spoken."""
AFTER_REFUSAL_S: Final = 0.1
_FRAMING: Final = (b"content-length", b"transfer-encoding")
_PARSED_BYTES: Final = 4 * 1024
"""At a time: no more requests than there are in so many bytes wait for their turn."""
_STDIN: Final = 0
_JOINED_BYTES: Final = 64 * 1024
"""To copy more than this costs more than a second call of the system."""


def _nothing() -> None:
    """By default."""


def _no() -> bool:
    """By default."""
    return False


@dataclass(frozen=True)
class Serving:
    """How to serve."""

    max_connections: int = MAX_CONNECTIONS
    are_files_scarce: Callable[[], bool] = _no
    """Whether what may still be opened is kept for others than connections of clients, such as those to the broker."""
    max_header_bytes: int = MAX_HEADER_BYTES
    request_s: float = REQUEST_TIMEOUT_S
    """So long the head of a request may take, what is left of its body when it was answered, and a TLS handshake."""
    write_s: float = WRITE_S
    """So long a client may take nothing of its answer."""
    tls: ssl.SSLContext | None = None
    """For all but Unix sockets."""
    ends_with_stdin: bool = False
    """When standard input ends, so does the server: who started it is gone."""
    ready: Callable[[], None] = _nothing
    """It can be reached."""
    reload: Callable[[], None] = _nothing
    """At SIGHUP."""


class Alarm:
    """Rings once, some time after it was set, unless it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after_s: float, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._after_s = after_s
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """From now on; one that is set stays as it is."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._after_s, self._go)

    def stop(self) -> None:
        """It does not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go(self) -> None:
        self._timer = None
        self._ring()


class Joined(asyncio.Transport):
    """A connection on which the head of an answer leaves together with the beginning of its body: one call of the
    system, and the client wakes once. Where no body follows at once, the head leaves in the next turn of the loop."""

    def __init__(
        self, connection: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_head: Callable[[], bool]
    ) -> None:
        """``is_head``: whether what is written now is the head of an answer."""
        super().__init__()
        self._connection = connection
        self._loop = loop
        self._is_head = is_head
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As a transport has it."""
        if self._is_head():
            self._leave()
            self._head = bytes(data)
            self._loop.call_soon(self._leave)
            return
        if self._head and len(data) <= _JOINED_BYTES:
            data, self._head = self._head + data, b""
        self._leave()
        if data:
            self._connection.write(data)

    def _leave(self) -> None:
        """The head leaves, if it has not."""
        if self._head:
            head, self._head = self._head, b""
            self._connection.write(head)

    def close(self) -> None:
        """As a transport has it: what was written leaves before."""
        self._leave()
        self._connection.close()

    def can_write_eof(self) -> bool:
        """As a transport has it."""
        return self._connection.can_write_eof()

    def write_eof(self) -> None:
        """As a transport has it: what was written leaves before."""
        self._leave()
        self._connection.write_eof()

    def abort(self) -> None:
        """As a transport has it."""
        self._head = b""
        self._connection.abort()

    def is_closing(self) -> bool:
        """As a transport has it."""
        return self._connection.is_closing()

    def resume_reading(self) -> None:
        """As a transport has it."""
        self._connection.resume_reading()

    def get_write_buffer_size(self) -> int:
        """As a transport has it."""
        return len(self._head) + self._connection.get_write_buffer_size()


class Reading(FlowControl):
    """Of a connection. Nothing more is read while requests wait for their turn."""

    def __init__(self, connection: asyncio.Transport, is_enough: Callable[[], bool]) -> None:
        super().__init__(connection)
        self._is_enough = is_enough

    def resume_reading(self) -> None:
        """As uvicorn has it, which would read on with each request that it answers, and keep what it has read."""
        if not self._is_enough():
            super().resume_reading()


class Protocol(HttpToolsProtocol):
    """One connection. What is refused before there is a request is a problem, too. A client that keeps silent, or reads
    nothing, loses its connection.

    The parser is strict where bytes could be taken for two different requests; what it leaves to others is checked
    here: the size of a head, ``Host``, and fields behind a body, which are forgotten.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], serving: Serving
    ) -> None:
        super().__init__(config, state, app_state)
        self.parser = self._parser()
        self._serving = serving
        self._head = Alarm(self.loop, serving.request_s, self._too_slow)
        self._rest = Alarm(self.loop, serving.request_s, self._hang_up)
        """Of a body whose request was answered before it had come."""
        self._unread = Alarm(self.loop, serving.write_s, self._look_at_unread)
        self._unread_bytes = 0
        self._answered: RequestResponseCycle | None = None
        """Whose request is being answered, or was last; ``cycle`` is the one that was read last."""
        self._begun: RequestResponseCycle | None = None
        """Whose answer was begun last."""
        self._is_in_body = False
        """Between the head of a request and its end."""
        self._unparsed_bytes = 0
        """Since the parser has told something: of a head that is not whole, or of fields behind a body."""
        self._held = b""
        """It was read, and is parsed when no request waits for its turn."""
        self._framing: list[tuple[bytes, bytes]] = []
        """How the body is found of a request that wishes for another protocol, until a new parser knows."""
        self._lingering = Alarm(self.loop, LINGER_S, self._hang_up)
        self._is_deaf = False
        """What comes is forgotten."""
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses one connection too many."""
        super().connection_made(transport)
        # What is written has left us, or is waited for. With 0 asyncio's TLS would wait without end.
        transport.set_write_buffer_limits(high=1, low=0)
        self.transport = Joined(transport, self.loop, self._begins_answer)
        self.flow = Reading(transport, self._has_enough)
        serving = self._serving
        if len(self.connections) > serving.max_connections or serving.are_files_scarce():
            self._refuse(Refused(503, "too_many_connections", "There are too many connections. Try again."))
            return
        self._head.set()

    def _begins_answer(self) -> bool:
        """Whether what is written now is the first of the answer: its head."""
        answered = self._answered
        if answered is None or answered is self._begun or not answered.response_started:
            return False
        self._begun = answered
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._is_deaf = True
        for alarm in (self._head, self._rest, self._unread, self._lingering):
            alarm.stop()
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A head that was begun must end in time, and be short enough."""
        if self._is_deaf or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        data, self._held = self._held + data, b""
        while data and not self.pipeline:
            self._unparsed_bytes += len(data[:_PARSED_BYTES])
            try:
                self._feed(data[:_PARSED_BYTES])
            except httptools.HttpParserError:
                self._meet_garbage()
                return
            data = data[_PARSED_BYTES:]
            if self._unparsed_bytes > self._serving.max_header_bytes:
                self._meet_garbage()
                return
        self._held = data
        if self._is_in_body or self._is_answering():
            self._head.stop()
        else:
            self._head.set()

    def _read_on(self) -> None:
        """What is held, and then what has not been read."""
        self.data_received(b"")
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _has_enough(self) -> bool:
        return bool(self.pipeline or self._held)

    def _feed(self, data: bytes) -> None:
        """Only HTTP/1.1 is spoken here, so a wish for another protocol is passed over. Raises HttpParserError."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            if self._framing:
                self._begin_body()

    def _begin_body(self) -> None:
        """httptools takes what follows such a wish for no body, but for the other protocol, or the next request. Java's
        client wishes for HTTP/2 with each request, so there often is a body: another parser is told how to find it."""
        self.parser = self._parser()
        fields = b"".join(b"%b: %b\r\n" % field for field in self._framing)
        self.parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")

    def _parser(self) -> httptools.HttpRequestParser:
        """Without uvicorn's leniency: what follows a request that is the last one is no request."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=False)
        return parser

    def _is_answering(self) -> bool:
        return self._answered is not None and not self._answered.response_complete

    def on_message_begin(self) -> None:
        """A request."""
        if not self._framing:
            super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head, unless it is not as it must be."""
        if self._framing:  # it was told before, to another parser
            self._framing = []
            return
        if self._unparsed_bytes > self._serving.max_header_bytes:  # of the head and what came with it
            size_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size_bytes > self._serving.max_header_bytes:
                raise httptools.HttpParserError("a head that is too large")
        if not self.url.startswith(b"/"):
            raise httptools.HttpParserError("a target that is no path")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise httptools.HttpParserError("not one Host")
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self._framing = [field for field in self.headers if field[0] in _FRAMING]
        self.headers = []  # so fields behind the body are not taken for such that a proxy has checked
        self._is_in_body = True
        self._unparsed_bytes = 0

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._framing:
            return
        self._is_in_body = False
        self._unparsed_bytes = 0
        self._rest.stop()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """What is left of the body must come in time, or the connection would stay for as long as something comes. So
        must the head of the next request, if it was begun."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._held and not self.pipeline:
            self.loop.call_soon(self._read_on)
        self.flow.resume_reading()
        if self._is_answering():
            return
        if self._is_in_body:
            self._rest.set()
        elif self._unparsed_bytes:
            self._head.set()

    def _meet_garbage(self) -> None:
        """What has come is no HTTP, or has too long a head. An answer that was begun is not disturbed by another one;
        requests that wait for their turn behind it were not begun."""
        if self._is_answering():
            answered = self._answered
            assert answered is not None
            self._is_deaf = True
            self.pipeline.clear()
            answered.keep_alive = False
            if answered is not self.cycle or not self._is_in_body:
                return
            answered.disconnected = True  # the rest of its body never comes
            answered.message_event.set()
            if answered.response_started:
                self.transport.close()
                return
        most = self._serving.max_header_bytes
        told = f"This is no request of HTTP/1.1, or its head has more than {most:,} bytes."
        self._refuse(Refused(400, "bad_http", told))

    def shutdown(self) -> None:
        """The server ends."""
        if self._is_refused:
            self.transport.close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """Something waits for the client to read it."""
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread.set()

    def resume_writing(self) -> None:
        """It has read all."""
        super().resume_writing()
        self._unread.stop()

    def _too_slow(self) -> None:
        told = f"No request arrived within {self._serving.request_s:g} s."
        self._refuse(Refused(408, "request_too_slow", told))

    def _look_at_unread(self) -> None:
        """Hangs up on who has read nothing since the last look, unless the answer is one that sees to that itself."""
        left_bytes = self.transport.get_write_buffer_size()
        is_judged = (
            not self.transport.is_closing()
            and self._answered is not None
            and self._answered.scope["state"].get(OWN_PATIENCE)
        )
        if left_bytes >= self._unread_bytes and not is_judged:
            self._hang_up()
            return
        self._unread_bytes = left_bytes
        self._unread.set()

    def _hang_up(self) -> None:
        self.transport.abort()

    def _refuse(self, refused: Refused) -> None:
        """Says why, and hangs up."""
        self._head.stop()
        if self.transport.is_closing():
            return
        problem = problem_of(refused)
        body = encode(problem)
        headers = {
            "content-type": MEDIA_TYPE,
            "content-length": str(len(body)),
            "connection": "close",
            **HEADERS,
            **headers_of(problem),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(
            f"HTTP/1.1 {problem.status} {phrase_of(problem.status)}\r\n{head}\r\n".encode() + body
        )
        self._linger()

    def _linger(self) -> None:
        """Ends the answer, and forgets for a moment what the client still writes: hanging up on it would take the
        answer away from it. Of many at once only some get that moment: each is an open file."""
        others = sum(isinstance(one, Protocol) and one._is_refused for one in self.connections)
        self._is_refused = self._is_deaf = True
        if others >= MAX_LINGERING or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._lingering.set()


class TlsServer:
    """Accepts connections, and speaks TLS on them. uvicorn knows of a connection only after that, and asyncio counts
    none: who says nothing would have as many as the system lets him."""

    def __init__(
        self,
        *,
        listener: socket.socket,
        tls: ssl.SSLContext,
        most_s: float,
        is_full: Callable[[int], bool],
        connected: Callable[[], Protocol],
    ) -> None:
        """``is_full``: whether there is no room beside so many handshakes. ``connected``: what comes after them."""
        self._listener = listener
        self._tls = tls
        self._most_s = most_s
        self._is_full = is_full
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Nothing is begun any more."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Until that is so."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    accepted, _ = await self._loop.sock_accept(self._listener)
                except OSError:  # who called has left, or there are too many open files
                    await asyncio.sleep(AFTER_REFUSAL_S)
                    continue
                if self._is_full(len(self._handshakes)):
                    accepted.close()  # what is said without TLS would not be understood
                    continue
                handshake = self._loop.create_task(self._shake(accepted))
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)

    async def _shake(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # of TLS, of the connection, or it took too long
            await self._loop.connect_accepted_socket(
                self._connected, accepted, ssl=self._tls, ssl_handshake_timeout=self._most_s
            )


class Server(uvicorn.Server):
    """Listens on several sockets, and says when it can be reached, and when it ends."""

    def __init__(
        self,
        *,
        config: uvicorn.Config,
        listeners: Sequence[socket.socket],
        serving: Serving,
        ending: Callable[[], None],
        prepare: Callable[[], None] = _nothing,
    ) -> None:
        """``prepare``: what can be done beside the first requests, in a thread."""
        super().__init__(config)
        self._prepare = prepare
        self._listeners = listeners
        self._serving = serving
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn has it, without TLS on Unix sockets; then ``ready``."""
        await super().startup([])
        if self.should_exit:
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._serving.reload)
        if self._serving.ends_with_stdin:
            loop.add_reader(_STDIN, self._end_with_stdin)
        for listener in self._listeners:
            tls = None if listener.family == socket.AF_UNIX else self._serving.tls
            if tls is None:
                self.servers.append(await loop.create_server(self._connected, sock=listener))
                continue
            server = TlsServer(
                listener=listener,
                tls=tls,
                most_s=self._serving.request_s,
                is_full=self._is_full,
                connected=self._connected,
            )
            self.servers.append(server)  # type: ignore[arg-type]
        self._preparing = loop.run_in_executor(None, self._prepare)
        self._serving.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn has it, after ``ending``."""
        self._ending()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends in peace, with exit code 0: uvicorn would raise the signal once more at the end."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def _connected(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state, self._serving)

    def _is_full(self, handshakes: int) -> bool:
        count = handshakes + len(self.server_state.connections)
        return count >= self._serving.max_connections + MORE_HANDSHAKES

    def _end_with_stdin(self) -> None:
        if not os.read(_STDIN, 1 << 12):
            asyncio.get_running_loop().remove_reader(_STDIN)
            self.config.timeout_graceful_shutdown = ORPHAN_DRAIN_S
            self.should_exit = True


def serve(app: Starlette, listeners: Sequence[socket.socket], serving: Serving) -> None:
    """Serves what ``application.make`` has made until SIGINT or SIGTERM."""
    options: dict[str, Any] = {
        "http": Protocol,
        "ws": "none",
        "loop": "auto",
        "lifespan": "on",
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": DRAIN_S,
        "server_header": False,
        "proxy_headers": False,
        "access_log": False,
        "log_config": None,
        "log_level": "error",
    }
    config = uvicorn.Config(app, **options)
    take_short_turns()
    server = Server(
        config=config,
        listeners=listeners,
        serving=serving,
        ending=app.state.ending.come,
        prepare=app.state.compile,
    )
    # Not uvicorn's run(): everything that is begun here then knows which loop this is, and does not look for it.
    anyio.run(server.serve, backend_options={"loop_factory": config.get_loop_factory()})
