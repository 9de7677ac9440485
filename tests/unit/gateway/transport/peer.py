"""A client of HTTP/2 that can misbehave, and a server with methods to call."""

from __future__ import annotations

import contextlib
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio
import trio.testing
from hyperframe.frame import Frame

from tickwheel_gateway.transport.call import AnyMethod, Call, Method
from tickwheel_gateway.transport.framing import framed
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.listener import Server
from tickwheel_gateway.transport.sockets import Socket

PATIENCE_S = 60


def head(path: str = "/t/Echo", **more: str) -> list[tuple[str, str]]:
    """Headers of a request; `grpc_timeout="1S"` for more of them."""
    found = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    found["content-type"] = "application/grpc"
    for name, value in more.items():
        found[":" + name[3:] if name.startswith("is_") else name.replace("_", "-")] = value
    return list(found.items())


@dataclass
class Answer:
    """What came back on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_over: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers["grpc-status"])

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], self.body
        while rest:
            length = int.from_bytes(rest[1:5], "big")
            assert len(rest) >= 5 + length, "half a message"
            found.append(rest[5 : 5 + length])
            rest = rest[5 + length :]
        return found


def socket_pair() -> tuple[Socket, trio.SocketStream]:
    """The gateway's end of a connection, and the other."""
    ours, theirs = socket.socketpair()
    return Socket(trio.SocketStream(trio.socket.from_stdlib_socket(ours))), trio.SocketStream(
        trio.socket.from_stdlib_socket(theirs)
    )


class Peer:
    """One connection, seen from the client."""

    def __init__(
        self, stream: trio.abc.Stream, *, gives_windows: bool = True, window: int | None = None
    ) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(
                initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
            )
        self.gives_windows = gives_windows
        self.answers: dict[int, Answer] = defaultdict(Answer)
        self.pings: list[bytes] = []
        self.goaways: list[tuple[int, int]] = []
        """Error code and last stream."""
        self.reason = b""
        self.answers_pings = True
        self.is_at_end = False
        self._rest = b""
        self.has_settings = False
        self.h2.initiate_connection()

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            await self.stream.send_all(data)

    async def send(self, *frames: Frame) -> None:
        """Frames as they are."""
        await self.flush()
        await self.stream.send_all(b"".join(frame.serialize() for frame in frames))

    def ask(self, *messages: bytes, end: bool = True, headers: list[tuple[str, str]] | None = None) -> int:
        """A call, to be flushed; its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        body = b"".join(framed(message) for message in messages)
        self.h2.send_headers(stream_id, headers or head(), end_stream=end and not body)
        if body:
            self.put(stream_id, body, end=end)
        return stream_id

    def put(self, stream_id: int, body: bytes, *, end: bool = False) -> None:
        """DATA, which must fit the window."""
        size = self.h2.max_outbound_frame_size
        for at in range(0, len(body) or 1, size):
            piece = body[at : at + size]
            self.h2.send_data(stream_id, piece, end_stream=end and at + size >= len(body))

    async def call(self, *messages: bytes, headers: list[tuple[str, str]] | None = None) -> Answer:
        stream_id = self.ask(*messages, headers=headers)
        return await self.answer(stream_id)

    async def answer(self, stream_id: int) -> Answer:
        await self.until(lambda: self.answers[stream_id].is_over)
        return self.answers[stream_id]

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                assert not self.is_at_end, "the server has hung up"
                await self.receive()

    async def until_end(self) -> None:
        """Until the server hangs up."""
        with trio.fail_after(PATIENCE_S):
            while not self.is_at_end:
                await self.receive()

    async def receive(self) -> None:
        """What comes next, or the end."""
        with contextlib.suppress(trio.BrokenResourceError):
            await self.flush()
        try:
            data = await self.stream.receive_some(65_536)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.is_at_end = True
            return
        self._rest += data
        while len(self._rest) >= 9 and len(self._rest) >= (end := 9 + int.from_bytes(self._rest[:3], "big")):
            # Frame by frame: `h2` forgets what it has to say when it sees GOAWAY.
            for event in self.h2.receive_data(self._rest[:end]):
                self._take(event)
            self._rest = self._rest[end:]
            if self.answers_pings:
                with contextlib.suppress(trio.BrokenResourceError):
                    await self.flush()

    def _take(self, event: Any) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                self.answers[event.stream_id].headers.update(event.headers)
            case h2.events.DataReceived():
                self.answers[event.stream_id].body += event.data
                if self.gives_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.answers[event.stream_id].is_over = True
            case h2.events.StreamReset():
                answer = self.answers[event.stream_id]
                answer.is_over, answer.reset = True, int(event.error_code)
            case h2.events.PingAckReceived():
                self.pings.append(event.ping_data)
            case h2.events.SettingsAcknowledged():
                self.has_settings = True
            case h2.events.ConnectionTerminated():
                self.goaways.append((int(event.error_code or 0), event.last_stream_id or 0))
                self.reason = event.additional_data or b""
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN


class Service:
    """Methods, and what they saw."""

    def __init__(self) -> None:
        self.seen: list[Call] = []
        self.cancelled: list[Call] = []
        self.began = trio.Event()
        self.go = trio.Event()
        self.methods: dict[str, AnyMethod] = {
            f"/t/{name}": Method(handler, takes_stream)
            for name, handler, takes_stream in (
                ("Echo", self.echo, False),
                ("Times", self.times, False),
                ("Chat", self.chat, True),
                ("Wait", self.wait, False),
                ("Gate", self.gate, False),
                ("Hold", self.hold, True),
                ("Fail", self.fail, False),
                ("Break", self.broken, False),
                ("Nothing", self.nothing, False),
            )
        }

    async def echo(self, call: Call) -> None:
        self.seen.append(call)
        call.reply(call.request)

    async def times(self, call: Call) -> None:
        """The message, as often as its first byte says."""
        self.seen.append(call)
        await call.stream(*[call.request] * call.request[0], last=True)

    async def chat(self, call: Call) -> None:
        self.seen.append(call)
        async for message in call.requests():
            await call.stream(message)

    async def wait(self, call: Call) -> None:
        self.seen.append(call)
        self.began.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.append(call)

    async def gate(self, call: Call) -> None:
        self.seen.append(call)
        self.began.set()
        await self.go.wait()
        call.reply(call.request)

    async def hold(self, call: Call) -> None:
        """Reads nothing before it may."""
        self.seen.append(call)
        self.began.set()
        await self.go.wait()
        async for message in call.requests():
            await call.stream(message[:1])

    async def fail(self, call: Call) -> None:
        call.fail(3, "no: 100 % wrong, ä")

    async def broken(self, call: Call) -> None:
        raise ValueError("secret")

    async def nothing(self, call: Call) -> None:
        self.seen.append(call)


@contextlib.asynccontextmanager
async def serving(
    service: Service, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Callable[..., Peer]]]:
    """A server, and a way to connect to it in memory. It is stopped hard at the end."""
    server = Server(methods=service.methods, limits=limits, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [])

        def connect(**how: Any) -> Peer:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve_stream, theirs)
            return Peer(ours, **how)

        yield server, connect
        nursery.cancel_scope.cancel()
