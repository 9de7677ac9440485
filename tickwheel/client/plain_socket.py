"""A connection in plain text, without the layers between a stream and its socket.

Reading waits first and then reads, for mostly there is nothing yet. On trio a short write need not wait for a turn of
the loop. On asyncio the loop itself reads a TCP socket, so that there is no shorter way. A Unix socket is read here:
anyio's own stream has asyncio log an InvalidStateError when data comes just as its reader is cancelled.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import sniffio
from anyio.abc import ByteStream, SocketAttribute, UNIXSocketStream
from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    import asyncio


def without_layers(stream: ByteStream) -> ByteStream:
    """The same connection by the shortest way that there is in this event loop."""
    if sniffio.current_async_library() == "trio":
        return PlainSocket(stream)
    return UnixSocket(stream) if isinstance(stream, UNIXSocketStream) else stream


class _Socket(ByteStream):
    """A stream, and the socket below it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._socket: socket.socket = stream.extra(SocketAttribute.raw_socket)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def send_at_once(self, data: bytes | memoryview) -> int:
        """Sends what fits now; the bytes sent. Raises anyio.BrokenResourceError, ClosedResourceError."""
        try:
            return self._open_socket().send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise anyio.BrokenResourceError from error

    def _receive_at_once(self, max_bytes: int) -> bytes | None:
        """What is there; None: nothing yet. Raises anyio.BrokenResourceError, ClosedResourceError, EndOfStream."""
        try:
            data = self._open_socket().recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    def _open_socket(self) -> socket.socket:
        if self._socket.fileno() < 0:
            raise anyio.ClosedResourceError
        return self._socket


class PlainSocket(_Socket):
    """Does on trio what anyio's stream of a socket does."""

    def __init__(self, stream: ByteStream) -> None:
        import trio  # not for who is on asyncio

        super().__init__(stream)
        self._trio = trio

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while True:
            await self._wait(self._trio.lowlevel.wait_readable)
            data = self._receive_at_once(max_bytes)
            if data is not None:
                return data

    async def send(self, item: bytes) -> None:
        await self._trio.lowlevel.checkpoint_if_cancelled()
        left = memoryview(item)
        while True:
            left = left[self.send_at_once(left) :]
            if not left:
                break
            await self._wait(self._trio.lowlevel.wait_writable)
        await self._trio.lowlevel.cancel_shielded_checkpoint()

    async def _wait(self, until: Callable[[int], Any]) -> None:
        try:
            await until(self._open_socket().fileno())
        except self._trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error


class UnixSocket(_Socket):
    """Does on asyncio what anyio's stream of a Unix socket does. What asyncio tells too late changes nothing."""

    def __init__(self, stream: ByteStream) -> None:
        import asyncio  # not for who is on trio

        super().__init__(stream)
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._reading, self._writing = anyio.ResourceGuard("reading from"), anyio.ResourceGuard("writing to")

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        with self._reading:
            while True:
                await self._wait(self._loop.add_reader, self._loop.remove_reader)
                data = self._receive_at_once(max_bytes)
                if data is not None:
                    return data

    async def send(self, item: bytes) -> None:
        await checkpoint()
        left = memoryview(item)
        with self._writing:
            while True:
                left = left[self.send_at_once(left) :]
                if not left:
                    return
                await self._wait(self._loop.add_writer, self._loop.remove_writer)

    async def aclose(self) -> None:
        """Whoever waits hears of it."""
        descriptor = self._socket.fileno()
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
        for waiting in self._waiting:
            _tell(waiting)
        await super().aclose()

    async def _wait(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        descriptor, waiting = self._open_socket().fileno(), self._loop.create_future()
        self._waiting.add(waiting)
        add(descriptor, _tell, waiting)
        try:
            await waiting
        finally:
            self._waiting.remove(waiting)
            if self._socket.fileno() >= 0:
                remove(descriptor)


def _tell(waiting: asyncio.Future[None]) -> None:
    """Set it, unless it was cancelled or set in the same turn of the loop."""
    if not waiting.done():
        waiting.set_result(None)
