"""A Unix socket on asyncio: data that comes as its reader is cancelled, what does not fit, who hangs up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from tickwheel.client.security import dial
from tickwheel.client.url import UnixAddress

Conversation = Callable[[ByteStream, socket.socket], Awaitable[None]]
DEADLINE_S = 30


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[ByteStream, socket.socket]]:
    """What the client has, and the other end, which blocks."""
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        async with await dial(UnixAddress(path)) as ours:
            theirs, _ = listener.accept()
            with theirs:
                yield ours, theirs


@pytest.fixture
def told(tmp_path: Path) -> Callable[[Conversation], list[str]]:
    """Holds a conversation on asyncio; what its event loop has told of meanwhile."""

    async def main(conversation: Conversation) -> list[str]:
        said: list[str] = []

        def say(_: object, context: dict[str, Any]) -> None:
            said.append(context["message"])

        asyncio.get_running_loop().set_exception_handler(say)
        with anyio.fail_after(DEADLINE_S):
            async with pair(tmp_path) as (ours, theirs):
                await conversation(ours, theirs)
        return said

    return lambda conversation: anyio.run(main, conversation, backend="asyncio")


async def blocked(
    group: anyio.abc.TaskGroup, work: Callable[..., Awaitable[object]], *arguments: Any
) -> None:
    group.start_soon(work, *arguments)
    await anyio.wait_all_tasks_blocked()


def test_data_comes_as_the_reader_is_cancelled(told: Callable[[Conversation], list[str]]) -> None:
    """In one turn of the loop, first the one and then the other."""

    async def conversation(ours: ByteStream, theirs: socket.socket) -> None:
        async with anyio.create_task_group() as group:
            await blocked(group, ours.receive)
            theirs.send(b"late")  # asyncio looks for it before the next turn,
            asyncio.get_running_loop().call_soon(group.cancel_scope.cancel)  # which begins with this
        assert await ours.receive() == b"late"

    assert told(conversation) == []


def test_room_comes_as_the_writer_is_cancelled(told: Callable[[Conversation], list[str]]) -> None:
    async def conversation(ours: ByteStream, theirs: socket.socket) -> None:
        async with anyio.create_task_group() as group:
            await blocked(group, ours.send, bytes(10_000_000))
            theirs.recv(10_000_000)
            asyncio.get_running_loop().call_soon(group.cancel_scope.cancel)

    assert told(conversation) == []


def test_what_does_not_fit_waits_for_room(told: Callable[[Conversation], list[str]]) -> None:
    data = bytes(range(256)) * 40_000

    async def conversation(ours: ByteStream, theirs: socket.socket) -> None:
        got = bytearray()
        async with anyio.create_task_group() as group:
            await blocked(group, ours.send, data)
            with pytest.raises(anyio.BusyResourceError):
                await ours.send(b"another")
            while len(got) < len(data):
                got += await anyio.to_thread.run_sync(theirs.recv, 65_536)
        assert got == data
        await ours.send_eof()
        assert theirs.recv(1) == b""

    assert told(conversation) == []


def test_who_waits_hears_of_the_end(told: Callable[[Conversation], list[str]]) -> None:
    async def conversation(ours: ByteStream, theirs: socket.socket) -> None:
        async def lose() -> None:
            with pytest.raises(anyio.BrokenResourceError):
                await ours.send(bytes(10_000_000))

        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(anyio.EndOfStream):
            await ours.receive()
        async with anyio.create_task_group() as group:
            await blocked(group, lose)
            theirs.close()
        with pytest.raises(anyio.BrokenResourceError):
            await ours.receive()

    assert told(conversation) == []


def test_who_waits_hears_that_it_was_closed(told: Callable[[Conversation], list[str]]) -> None:
    heard: list[type[Exception]] = []

    async def conversation(ours: ByteStream, theirs: socket.socket) -> None:
        async def hear(work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
            with pytest.raises(anyio.ClosedResourceError) as failure:
                await work(*arguments)
            heard.append(failure.type)

        async with anyio.create_task_group() as group:
            await blocked(group, hear, ours.receive)
            await blocked(group, hear, ours.send, bytes(10_000_000))
            with pytest.raises(anyio.BusyResourceError):
                await ours.receive()
            await ours.aclose()
        await hear(ours.receive)
        await hear(ours.send, b"x")

    assert told(conversation) == []
    assert len(heard) == 4
