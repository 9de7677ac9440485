"""Connections of `tickwheel web` whose clients keep silent, or do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from tests.unit.web.wire import Wire
from tickwheel_web.ending import OWN_PATIENCE
from tickwheel_web.server import Protocol, Serving

PATIENCE_S = 60.0
PART = b"x" * 64 * 1024
SOON = Serving(request_s=0.2, write_s=0.1)


class Looking(Protocol):
    """Counts how often it looks whether something was read."""

    looks = 0

    def _look_at_unread(self) -> None:
        self.looks += 1
        super()._look_at_unread()


Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, set[Looking]], Awaitable[None]]


async def _large(request: Request) -> Response:
    return Response(PART * 200)


async def _endless(request: Request) -> Response:
    if request.url.path == "/judged":
        setattr(request.state, OWN_PATIENCE, True)

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield PART
            await asyncio.sleep(0)

    return StreamingResponse(parts())


async def _small(request: Request) -> Response:
    return Response(b"tea")


async def _late(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"black", b"green"):
            await asyncio.sleep(0.01)
            yield part

    return StreamingResponse(parts(), headers={"Content-Length": "10"})


def written(asked: bytes, is_over: Callable[[list[bytes]], bool]) -> list[bytes]:
    """What is written to a connection on which this is asked, by calls."""

    async def run() -> list[bytes]:
        paths = {"/large": _large, "/small": _small, "/late": _late}
        app = Starlette(routes=[Route(path, answer) for path, answer in paths.items()])
        config = uvicorn.Config(app, http=Protocol, ws="none", log_config=None, lifespan="off")
        config.load()
        wire, state = Wire(), ServerState()
        protocol = Protocol(config, state, {}, Serving())
        protocol.connection_made(wire)
        protocol.data_received(asked)
        async with asyncio.timeout(PATIENCE_S):
            while not is_over(wire.written):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        return wire.written

    return asyncio.run(run())


def test_the_head_of_an_answer_leaves_with_its_body() -> None:
    found = written(_asks("/small") * 2, lambda said: b"".join(said).count(b"tea") == 2)
    assert [(said.count(b"HTTP/1.1 200"), said[-3:]) for said in found] == [(1, b"tea")] * 2


def test_a_large_body_is_not_copied_to_its_head() -> None:
    head, body = written(_asks("/large"), lambda said: len(b"".join(said)) > len(PART) * 200)
    assert head.endswith(b"\r\n\r\n")
    assert body == PART * 200


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    head, *parts = written(_asks("/late"), lambda said: said[-1:] == [b"green"])
    assert head.endswith(b"\r\n\r\n")
    assert parts == [b"black", b"green"]


def test_an_answer_without_a_body_leaves() -> None:
    asked = _asks("/small").replace(b"GET", b"HEAD")
    (head,) = written(asked, bool)
    assert head.endswith(b"\r\n\r\n")


def converse(client: Client, serving: Serving = SOON) -> None:
    """A connection to the server, of which only little is read ahead."""

    async def run() -> None:
        paths = {"/large": _large, "/endless": _endless, "/judged": _endless, "/small": _small}
        app = Starlette(routes=[Route(path, answer) for path, answer in paths.items()])
        config = uvicorn.Config(app, http=Protocol, ws="none", log_config=None, lifespan="off")
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        server = await loop.create_server(lambda: Looking(config, state, {}, serving), "127.0.0.1", 0)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await loop.sock_connect(raw, server.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client(reader, writer, state.connections)  # type: ignore[arg-type]
        finally:
            writer.transport.abort()
            server.close()
            while state.tasks:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def _asks(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize(
    "asked",
    [_asks("/large"), _asks("/large") * 2, _asks("/endless")],
    ids=["one", "two, one behind the other", "in parts"],
)
def test_who_does_not_read_an_answer_is_hung_up_on(asked: bytes) -> None:
    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: set[Looking]
    ) -> None:
        writer.write(asked)
        await reader.readexactly(1)
        while connections:
            await asyncio.sleep(0.01)

    converse(client)


def test_an_answer_may_see_to_its_readers_itself() -> None:
    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: set[Looking]
    ) -> None:
        writer.write(_asks("/judged"))
        await reader.readexactly(1)
        (connection,) = connections
        while connection.looks < 3:
            await asyncio.sleep(0.01)
        assert connections == {connection}
        connection.transport.close()  # as when the answer ends it
        while connections:
            await asyncio.sleep(0.01)

    converse(client)


def test_who_reads_slowly_is_not_hung_up_on() -> None:
    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: set[Looking]
    ) -> None:
        writer.write(_asks("/large"))
        await reader.readexactly(1)
        (connection,) = connections
        for _ in range(3):
            left_bytes = connection.transport.get_write_buffer_size()
            while connection.transport.get_write_buffer_size() == left_bytes:
                await reader.readexactly(4096)
            connection._look_at_unread()
            assert not connection.transport.is_closing()
        connection._look_at_unread()
        while connections:
            await asyncio.sleep(0.01)

    converse(client, Serving(write_s=PATIENCE_S))


@pytest.mark.parametrize("length", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_body_whose_request_was_answered_must_end(length: str) -> None:
    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: set[Looking]
    ) -> None:
        writer.write(f"GET /small HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"tea")
        while connections:
            writer.write(b"1\r\na\r\n")
            await asyncio.sleep(0.01)

    converse(client)


def test_after_such_a_body_the_next_request_is_answered() -> None:
    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: set[Looking]
    ) -> None:
        writer.write(b"GET /small HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
        await reader.readuntil(b"tea")
        writer.write(b"cd" + _asks("/small"))
        assert b" 200 " in await reader.readuntil(b"tea")

    converse(client)


@pytest.mark.parametrize("requests", [128, 500], ids=["as many as are parsed at a time", "more"])
def test_a_head_whose_end_comes_after_many_requests_is_read(requests: int) -> None:
    async def client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: set[Looking]
    ) -> None:
        last = _asks("/small")
        assert 4_096 // len(last) == 128
        writer.write(last * requests + last[:-4])
        for _ in range(requests):
            await reader.readuntil(b"tea")
        writer.write(last[-4:])
        assert b" 200 " in await reader.readuntil(b"tea")

    converse(client, Serving())
