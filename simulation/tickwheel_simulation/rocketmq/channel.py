"""A client's connection to the gateway, and gRPC calls over it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import trio

from tickwheel_gateway.transport.framing import framed
from tickwheel_gateway.wire import schema
from tickwheel_simulation.network import Connection

_READ_BYTES: Final = 65_536
_LATE_S: Final = 0.5
"""So long after its deadline a client waits for the server to say so."""


class CallFailed(Exception):
    """There is no answer, or none of the method: the client does not know what became of the call."""


class ServerEnd(trio.abc.HalfCloseableStream):
    """The gateway's end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._connection.to_server.receive_some(max_bytes or _READ_BYTES)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[await self._connection.send_some(view) :]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        self._connection.end_sending()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._connection.close()
        await trio.lowlevel.checkpoint()


class Stream:
    """One call, as its client sees it."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.status: int | None = None
        """Of gRPC, once it has ended in order."""
        self.is_over = False
        self._rest = b""
        self._changed = trio.Event()

    def take(self, data: bytes) -> None:
        """Bytes of its messages."""
        self._rest += data
        while len(self._rest) >= 5 and len(self._rest) >= (end := 5 + int.from_bytes(self._rest[1:5], "big")):
            self.messages.append(self._rest[5:end])
            self._rest = self._rest[end:]
        self.ring()

    def end(self) -> None:
        """Nothing more comes."""
        self.is_over = True
        self.ring()

    def ring(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Until something changes."""
        await self._changed.wait()


class Channel:
    """Ends with its connection; a client opens another one then."""

    def __init__(
        self, connection: Connection, headers: Mapping[str, str], loses_answer: Callable[[], bool]
    ) -> None:
        """`headers`: of each request. `loses_answer`: whether the connection breaks when an answer arrives."""
        self._connection = connection
        self._headers = headers
        self._loses_answer = loses_answer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self._h2.initiate_connection()
        self._streams: dict[int, Stream] = {}
        self._bell = trio.Event()
        self._bell.set()
        self._widened = trio.Event()
        self.is_over = self.is_leaving = False
        """The gateway takes no more calls on it."""

    async def run(self) -> None:
        """Until the connection has ended."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.break_off()

    def break_off(self) -> None:
        """The connection breaks; what is on its way may arrive in part."""
        self._connection.cut()
        self.is_over = True
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.end()
        self._widen()

    async def _read(self) -> None:
        rest = b""
        while True:
            try:
                data = await self._connection.to_client.receive_some(_READ_BYTES)
            except trio.BrokenResourceError:
                return
            if not data:
                return
            rest += data
            # Frame by frame: `h2` forgets what it has to say when it sees GOAWAY.
            while len(rest) >= 9 and len(rest) >= (end := 9 + int.from_bytes(rest[:3], "big")):
                for event in self._h2.receive_data(rest[:end]):
                    if not self._take(event):
                        return
                rest = rest[end:]
            self._bell.set()

    async def _write(self) -> None:
        while True:
            await self._bell.wait()
            self._bell = trio.Event()
            if data := self._h2.data_to_send():
                try:
                    await self._connection.client_send(data)
                except trio.BrokenResourceError:
                    return

    def _take(self, event: Any) -> bool:
        """False: the connection broke exactly now."""
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        match event:
            case h2.events.ConnectionTerminated():
                self.is_leaving = True
                self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self._widen()
            case h2.events.DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if stream is not None:
                    stream.take(event.data)
            case h2.events.ResponseReceived() | h2.events.TrailersReceived() if stream is not None:
                status = next((value for name, value in event.headers if name == b"grpc-status"), None)
                stream.status = stream.status if status is None else int(status)
            case h2.events.StreamEnded() if stream is not None:
                if stream.status == 0 and self._loses_answer():
                    return False
                del self._streams[event.stream_id]
                stream.end()
            case h2.events.StreamReset() if stream is not None:
                stream.status = None
                del self._streams[event.stream_id]
                stream.end()
        return True

    def _widen(self) -> None:
        self._widened.set()
        self._widened = trio.Event()

    # -- calls --

    @asynccontextmanager
    async def open(
        self, name: str, timeout_s: float | None = None
    ) -> AsyncIterator[tuple[Stream, Callable[[bytes, bool], Any]]]:
        """A call, and what sends a message of it (True: the last one). Left before its end, it is taken back. Raises
        CallFailed."""
        if self.is_over or self.is_leaving:
            raise CallFailed("the connection is gone")
        stream_id, stream = self._h2.get_next_available_stream_id(), Stream()
        head = {":method": "POST", ":scheme": "http", ":path": schema.SERVICE + name, ":authority": "x"}
        head |= {"te": "trailers", "content-type": "application/grpc", **self._headers}
        if timeout_s is not None:
            head["grpc-timeout"] = f"{round(timeout_s * 1_000)}m"
        self._h2.send_headers(stream_id, list(head.items()))
        self._streams[stream_id] = stream
        self._bell.set()

        async def send(message: bytes, is_last: bool) -> None:
            await self._send(stream_id, framed(message), is_last)

        try:
            yield stream, send
        finally:
            if self._streams.pop(stream_id, None) is not None:
                with suppress(h2.exceptions.ProtocolError):
                    self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
                self._bell.set()

    async def _send(self, stream_id: int, data: bytes, is_last: bool) -> None:
        while data:
            if stream_id not in self._streams:
                raise CallFailed("the call has ended before all of it was sent")
            room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
            if room <= 0:
                await self._widened.wait()
                continue
            piece, data = data[:room], data[room:]
            self._h2.send_data(stream_id, piece, end_stream=is_last and not data)
            self._bell.set()

    async def call(self, name: str, request: bytes, timeout_s: float) -> list[bytes]:
        """All messages of the answer. Raises CallFailed."""
        with trio.move_on_after(timeout_s + _LATE_S):
            async with self.open(name, timeout_s) as (stream, send):
                await send(request, True)
                while not stream.is_over:
                    await stream.wait()
            if stream.status != 0:
                raise CallFailed(f"status {stream.status}")
            return stream.messages
        raise CallFailed("no answer in time")


def chance(rng: random.Random, probability: Callable[[], float]) -> Callable[[], bool]:
    """Whether something happens, each time."""
    return lambda: rng.random() < probability()
