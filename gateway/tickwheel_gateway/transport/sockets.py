"""A connection in plain text, without the layers between a stream and its socket: of thousands of them each layer would
wait with a frame of its own."""

from __future__ import annotations

import os
from typing import Final

import trio

from tickwheel_gateway.transport.limits import READ_BYTES

_LONG_BYTES: Final = 16 << 10
"""After writing so much, others have a turn."""


class Socket(trio.abc.HalfCloseableStream):
    """Does what `trio.SocketStream` does. Reading waits first and then reads: mostly there is nothing yet."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = stream.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor())
            try:
                return os.read(self._descriptor(), max_bytes or READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor(), left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._descriptor())
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
        if len(data) > _LONG_BYTES:
            await trio.lowlevel.cancel_shielded_checkpoint()

    def send_at_once(self, data: bytes) -> int:
        """Sends what fits now; the bytes sent. 0 also when the peer is gone: `send_all` says that."""
        try:
            return os.write(self._descriptor(), data)
        except (OSError, trio.ClosedResourceError):
            return 0

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _descriptor(self) -> int:
        """Asked each time: a number that was closed may be another connection's by now."""
        found = self._socket.fileno()
        if found < 0:
            raise trio.ClosedResourceError("the socket is closed")
        return found
