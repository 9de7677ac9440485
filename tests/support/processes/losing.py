"""Connections that break when the first answer of one kind arrives: for clients that dial, and as a proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteStream

from tickwheel.client.security import dial
from tickwheel.client.url import Address
from tickwheel.protocol.frames import FrameReader, FrameType


class Losing:
    """Dials a real broker; the connection breaks once, when the first answer of one kind arrives."""

    def __init__(self) -> None:
        self.lose: FrameType | None = None
        self.lost = 0
        self._gate: anyio.Event | None = None
        self._was_lost = anyio.Event()

    def hold(self, lose: FrameType) -> None:
        """Loses the next answer of a kind, and does not connect again before `release`."""
        self.lose, self._gate = lose, anyio.Event()

    async def wait_lost(self) -> None:
        """Until the answer is lost."""
        await self._was_lost.wait()

    def release(self) -> None:
        """From now on it may connect again."""
        assert self._gate is not None
        self._gate.set()
        self._was_lost = anyio.Event()

    async def dial(self, address: Address) -> ByteStream:
        """See `Client`."""
        if self._was_lost.is_set() and self._gate is not None:
            await self._gate.wait()
        return LosingStream(self, await dial(address))

    def has_lost(self) -> None:
        """An answer was lost just now."""
        self.lose = None
        self.lost += 1
        self._was_lost.set()


class LosingStream(ByteStream):
    """A stream that ends with the answer that is to be lost."""

    def __init__(self, losing: Losing, stream: ByteStream) -> None:
        self._losing = losing
        self._stream = stream
        self._reader = FrameReader(1 << 26)

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self._reader.feed(data)
        while (frame := self._reader.next_frame()) is not None:
            if frame.type == self._losing.lose:
                self._losing.has_lost()
                await self._stream.aclose()
                raise anyio.EndOfStream
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class LosingProxy:
    """Stands between a client of any kind and a broker, and loses one answer of each kind that it is
    told."""

    def __init__(self, url: str) -> None:
        self._broker = url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tickwheel://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose: FrameType | None = None
        self.lost = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> LosingProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._listener, *self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._sockets):
            end.close()

    def cut(self) -> None:
        """Breaks all connections that there are; the next ones are taken."""
        for end in self._sockets[:]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                broker = connection_to(self._broker)
                self._sockets.append(broker)
                for ends in ((client, broker, None), (broker, client, FrameReader(1 << 26))):
                    thread = threading.Thread(target=self._copy, args=ends, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _copy(self, source: socket.socket, target: socket.socket, reader: FrameReader | None) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if reader is not None and self._is_to_be_lost(reader, data):
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_to_be_lost(self, reader: FrameReader, data: bytes) -> bool:
        reader.feed(data)
        while (frame := reader.next_frame()) is not None:
            if frame.type == self.lose:
                self.lose = None
                self.lost += 1
                return True
        return False


def connection_to(url: str) -> socket.socket:
    """A socket of a broker at a TCP address, or at a path."""
    scheme, _, address = url.partition("://")
    if scheme == "tickwheel":
        host, port = address.rsplit(":", 1)
        return socket.create_connection((host, int(port)))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


class Twin:
    """A synchronous client, subscription or message, used like an asynchronous one."""

    def __init__(self, sync: Any) -> None:
        self._sync = sync

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sync, name)
        if name in ("subscribe", "transaction"):
            return lambda *args, **options: TwinBlock(partial(found, *args, **options))
        if not callable(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            result = await anyio.to_thread.run_sync(partial(found, *args, **options))
            return Twin(result) if hasattr(result, "nack") or hasattr(result, "rollback") else result

        return call


class TwinBlock:
    """A `with` block used as an `async with` block."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._block: Any = None

    async def __aenter__(self) -> Any:
        def enter() -> Any:
            self._block = self._make()
            return self._block.__enter__()

        entered = await anyio.to_thread.run_sync(enter)
        return entered if hasattr(entered, "commit") else Twin(entered)

    async def __aexit__(self, *error: Any) -> None:
        await anyio.to_thread.run_sync(self._block.__exit__, *error)
