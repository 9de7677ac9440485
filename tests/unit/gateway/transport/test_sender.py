"""What leaves at once, and what waits for the task that writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
import trio.testing

from tests.unit.gateway.transport.peer import socket_pair
from tickwheel_gateway.transport.engine import Sent
from tickwheel_gateway.transport.sender import Sender

_MUCH = bytes(range(256)) * (4 << 12)


class Pieces:
    """An engine that has these to send, one at a time. The second number says which message ends in a piece."""

    unwritten_bytes = 0
    has_ended = False

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.given = 0

    @property
    def may_send(self) -> bool:
        return bool(self.pieces)

    def data_to_send(self) -> Sent:
        if not self.pieces:
            return b"", (), ()
        self.given += 1
        return self.pieces.pop(0), [(self.given, 1)], ()


class Told:
    """Stands for a call whose messages are written."""

    def __init__(self, number: int, wrote: list[int]) -> None:
        self._number, self._written = number, wrote

    def wrote(self, _count: int) -> None:
        self._written.append(self._number)

    def lost(self) -> None:
        self._written.append(-self._number)


class Scene:
    """A sender, what it has told, and how often it wanted a task."""

    def __init__(self, stream: trio.abc.SendStream, *pieces: bytes) -> None:
        self.wrote: list[int] = []
        self.starts = 0
        self.engine = Pieces(*pieces)
        self.sender = Sender(self.engine, stream, self._fetched)  # type: ignore[arg-type]
        self.sender.begin(self._start)

    async def run(self) -> None:
        await self.sender.run()

    def _start(self) -> None:
        self.starts += 1

    def _fetched(self, whole: Sequence[tuple[int, int]], over: Sequence[int]) -> list[tuple[Any, int]]:
        return [(Told(number, self.wrote), count) for number, count in whole]


async def _begun(stream: trio.abc.SendStream) -> Scene:
    """Nothing to say yet, and the first task is over."""
    scene = Scene(stream)
    await scene.run()
    scene.starts = 0
    return scene


async def test_what_fits_leaves_at_once_and_needs_no_task() -> None:
    ours, theirs = socket_pair()
    async with ours, theirs:
        scene = await _begun(ours)
        scene.engine.pieces = [b"answer"]
        scene.sender.hurry()
        assert (scene.starts, scene.wrote) == (0, [1])
        assert await theirs.receive_some() == b"answer"
        scene.sender.hurry()
        assert scene.starts == 0, "there is nothing to say"


async def test_there_is_more_than_one_piece() -> None:
    ours, theirs = socket_pair()
    async with ours, theirs:
        scene = await _begun(ours)
        scene.engine.pieces = [b"one ", b"two"]
        scene.sender.hurry()
        assert (scene.starts, scene.wrote) == (1, [1])
        scene.sender.hurry()
        assert scene.starts == 1, "the task is about to run"
        await scene.run()
        assert scene.wrote == [1, 2]
        assert await theirs.receive_some() == b"one two"


async def test_what_does_not_fit_is_written_by_the_task_in_its_order() -> None:
    ours, theirs = socket_pair()
    found = bytearray()
    async with ours, theirs:
        scene = await _begun(ours)
        scene.engine.pieces = [_MUCH]
        scene.sender.hurry()
        assert (scene.starts, scene.wrote) == (1, []), "its message is not written yet"
        scene.engine.pieces = [b"the end"]
        scene.sender.hurry()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.run)
            while len(found) < len(_MUCH) + 7:
                found += await theirs.receive_some()
    assert found == _MUCH + b"the end"
    assert (scene.starts, scene.wrote) == (1, [1, 2])


async def test_a_peer_that_is_gone_is_met_by_the_task() -> None:
    ours, theirs = socket_pair()
    async with ours:
        scene = await _begun(ours)
        await theirs.aclose()
        scene.engine.pieces = [b"in vain"]
        scene.sender.hurry()
        assert scene.starts == 1
        await scene.run()
        assert scene.sender.is_dead
        assert scene.wrote == [-1]


async def test_a_stream_that_has_to_be_waited_for() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    scene = await _begun(ours)
    scene.engine.pieces = [b"answer"]
    scene.sender.hurry()
    assert (scene.starts, scene.wrote) == (1, [])
    await scene.run()
    assert await theirs.receive_some() == b"answer"
