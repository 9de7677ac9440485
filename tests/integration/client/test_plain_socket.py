"""The client's own way to a socket on trio: what does not fit at once, who hangs up, what comes alone."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
from anyio.abc import ByteStream, SocketAttribute, SocketListener

import tickwheel
from tests.support.processes.daemon_harness import Daemon
from tickwheel.client.plain_socket import PlainSocket, without_layers
from tickwheel.errors import InternalError

BODY_BYTES = 900_000


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[PlainSocket, ByteStream]]:
    """Both ends of a connection."""
    peers: list[ByteStream] = []
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port, accepting = listener.extra(SocketAttribute.local_port), listener.listeners[0]
        assert isinstance(accepting, SocketListener)
        async with anyio.create_task_group() as group:

            async def accept() -> None:
                peers.append(await accepting.accept())

            group.start_soon(accept)
            ours = without_layers(await anyio.connect_tcp("127.0.0.1", port))
    assert isinstance(ours, PlainSocket)
    async with ours, peers[0]:
        yield ours, peers[0]


async def test_what_does_not_fit_waits_for_room() -> None:
    data = bytes(range(256)) * 40_000
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, data)
        await trio.testing.wait_all_tasks_blocked()
        assert ours.send_at_once(b"no room") == 0
        got = bytearray()
        while len(got) < len(data):
            got += await theirs.receive()
        assert got == data
        await theirs.send(b"answer")
        assert await ours.receive() == b"answer"
        await theirs.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await ours.receive()
        await ours.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await theirs.receive()


async def test_who_waits_hears_that_it_was_closed() -> None:
    async with pair() as (ours, theirs):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await ours.receive()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            ours.send_at_once(b"x")
        with pytest.raises(anyio.ClosedResourceError):
            await ours.send(b"x")
        del theirs


async def test_a_peer_that_is_gone() -> None:
    async with pair() as (ours, theirs):
        theirs.extra(SocketAttribute.raw_socket).setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        await theirs.aclose()
        with pytest.raises(anyio.BrokenResourceError):
            await ours.receive()


async def test_a_lone_message_that_does_not_fit_into_its_socket(daemon: Daemon) -> None:
    """It begins at once, and the task that writes sends the rest, in front of what comes meanwhile."""
    async with tickwheel.Client(daemon.url) as client:
        await client.send("t", b"known")
        link = client._session.link
        assert link is not None
        assert isinstance(link.socket, socket.socket)
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        bodies = [bytes([number]) * BODY_BYTES for number in range(4)]
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(client.send, "t", body)
        await client.send("t", bodies[0])
        async with client.subscribe("t") as subscription:
            got: list[bytes] = []
            while len(got) < 6:
                message = await subscription.receive()
                assert message is not None
                got.append(message.body)
                await message.ack()
        assert sorted(got) == sorted([b"known", *bodies, bodies[0]])


async def test_sends_of_one_turn_share_a_frame_but_for_the_first(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send("shared", b"known")
        machine = client._session.link.machine  # type: ignore[union-attr]
        before = machine._last_correlation
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(client.send, "shared", b"x")
        assert machine._last_correlation - before <= 3


async def test_a_request_that_cannot_be_written_fails_alone(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise MemoryError

    async with tickwheel.Client(daemon.url) as client:
        await client.send("alone", b"known")
        with monkeypatch.context() as patched:
            patched.setattr("tickwheel.client.calls.encode_send", broken)
            with pytest.raises(InternalError):
                await client.send("alone", b"lost")
        assert (await client.send("alone", b"next")).id > 0
