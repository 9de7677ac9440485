"""A connection's socket, read and written without the layers of a stream."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.unit.gateway.transport.peer import socket_pair

_MUCH = bytes(range(256)) * (4 << 12)


async def _read_all(stream: trio.abc.ReceiveStream) -> bytes:
    found = bytearray()
    while data := await stream.receive_some(50_000):
        found += data
    return bytes(found)


async def test_what_is_more_than_the_socket_takes_at_once_arrives_whole_in_both_directions() -> None:
    ours, theirs = socket_pair()
    found: list[bytes] = []

    async def read(stream: trio.abc.ReceiveStream) -> None:
        found.append(await _read_all(stream))

    async with ours, theirs:
        for source, target in ((ours, theirs), (theirs, ours)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, target)
                await source.send_all(_MUCH)
                await source.send_eof()
    assert found == [_MUCH, _MUCH]


async def test_reading_gives_no_more_than_asked_for_and_waits_for_the_rest() -> None:
    ours, theirs = socket_pair()
    async with ours, theirs:
        await theirs.send_all(b"abcdef")
        assert await ours.receive_some(4) == b"abcd"
        assert await ours.receive_some(4) == b"ef"
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.receive_some)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        await theirs.send_all(b"g")
        assert await ours.receive_some() == b"g"


async def test_a_write_that_waits_is_cancelled_and_one_that_was_cancelled_before_writes_nothing() -> None:
    ours, theirs = socket_pair()
    async with ours, theirs:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ours.send_all(b"never")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.send_all, _MUCH)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert await theirs.receive_some(5) == _MUCH[:5]


async def test_a_peer_that_has_gone_breaks_the_stream() -> None:
    ours, theirs = socket_pair()
    async with ours:
        await theirs.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"to whom")
        assert await ours.receive_some() == b""


async def test_a_socket_that_is_closed_is_not_read_and_not_written_even_while_it_waits() -> None:
    ours, theirs = socket_pair()

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()

    async with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await ours.send_all(b"late")
