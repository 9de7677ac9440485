"""A connection in plain text on trio, without the layers between a stream and its socket.

Reading waits first and then reads, for mostly there is nothing yet. A short write need not wait for a turn of the loop.
On asyncio the loop itself reads the socket, so that there is no shorter way.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import sniffio
from anyio.abc import ByteStream, SocketAttribute


def without_layers(stream: ByteStream) -> ByteStream:
    """The same connection by the shortest way that there is in this event loop."""
    return PlainSocket(stream) if sniffio.current_async_library() == "trio" else stream


class PlainSocket(ByteStream):
    """Does what anyio's stream of a socket does."""

    def __init__(self, stream: ByteStream) -> None:
        import trio  # not for who is on asyncio

        self._stream = stream
        self._socket: socket.socket = stream.extra(SocketAttribute.raw_socket)
        self._trio = trio

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while True:
            await self._wait(self._trio.lowlevel.wait_readable)
            try:
                data: bytes = self._open_socket().recv(max_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not data:
                raise anyio.EndOfStream
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

    def send_at_once(self, data: bytes | memoryview) -> int:
        """Sends what fits now; the bytes sent. Raises anyio.BrokenResourceError, ClosedResourceError."""
        try:
            return self._open_socket().send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _wait(self, until: Callable[[int], Any]) -> None:
        try:
            await until(self._open_socket().fileno())
        except self._trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error

    def _open_socket(self) -> socket.socket:
        if self._socket.fileno() < 0:
            raise anyio.ClosedResourceError
        return self._socket
