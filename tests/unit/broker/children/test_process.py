"""Processes beside the broker: how often they are started anew, and how they end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tickwheel_broker.children.process import GRACE_S, LONGEST_WAIT_S, WELL_S, Child


class FakeProcess:
    """Ends when it is told to, or after its time."""

    stdin = None
    pid = 17

    def __init__(self, life_s: float, *, is_deaf: bool = False) -> None:
        self.returncode: int | None = None
        self.signals: list[int] = []
        self._life_s = life_s
        self._is_deaf = is_deaf
        self._ended = trio.Event()

    async def wait(self) -> int:
        with trio.move_on_after(self._life_s) as scope:
            await self._ended.wait()
        if scope.cancelled_caught:
            self.returncode = 1
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if not self._is_deaf:
            self.end(0)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)
        self.end(-signal.SIGKILL)

    def end(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class World:
    """Starts processes of given lives; the last one lives on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, lives_s: Sequence[float], *, are_deaf: bool = False
    ) -> None:
        self.begun_s: list[float] = []
        self.processes: list[FakeProcess] = []
        self.stop = trio.Event()
        self._lives_s = list(lives_s)
        self._are_deaf = are_deaf
        monkeypatch.setattr(trio.lowlevel, "open_process", self._open)

    async def _open(self, command: Sequence[str], **options: Any) -> FakeProcess:
        assert options["pass_fds"] == (5,)
        self.begun_s.append(trio.current_time())
        if self._lives_s and self._lives_s[0] < 0:
            self._lives_s.pop(0)
            raise OSError(12, "Cannot allocate memory")
        life_s = self._lives_s.pop(0) if self._lives_s else 1e9
        self.processes.append(FakeProcess(life_s, is_deaf=self._are_deaf))
        return self.processes[-1]

    async def run(self) -> None:
        await Child(name="web", command=["web"], descriptors=[5]).run(self.stop.wait)


async def test_it_is_started_anew_after_longer_and_longer_waits(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    world = World(monkeypatch, [1.0] * 5 + [-1.0] + [1.0] * 6 + [WELL_S, 1.0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        await trio.sleep(1_000)
        world.stop.set()
    begun = world.begun_s
    waits = [round(after - before, 1) for before, after in pairwise(begun)]
    lives = [1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, WELL_S, 1]
    wanted = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, *[LONGEST_WAIT_S] * 3, 0.1, 0.2]
    assert waits == [round(life + wait, 1) for life, wait in zip(lives, wanted, strict=True)]


async def test_it_is_asked_to_end_and_not_started_anew(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    world = World(monkeypatch, [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        await trio.sleep(10)
        world.stop.set()
    (process,) = world.processes
    assert process.signals == [signal.SIGTERM]


async def test_it_does_not_wait_once_it_is_to_stop(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    world = World(monkeypatch, [0.0] * 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        await trio.sleep(300)
        stopped_s = trio.current_time()
        world.stop.set()
    assert trio.current_time() == stopped_s


@pytest.mark.parametrize(
    ("is_deaf", "signals", "after_s"),
    [(False, [signal.SIGTERM], 0.0), (True, [signal.SIGTERM, signal.SIGKILL], GRACE_S)],
)
async def test_when_there_is_no_time_it_is_asked_and_soon_killed(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    is_deaf: bool,
    signals: list[int],
    after_s: float,
) -> None:
    world = World(monkeypatch, [], are_deaf=is_deaf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run)
        await trio.sleep(10)
        cancelled_s = trio.current_time()
        nursery.cancel_scope.cancel()
    assert world.processes[0].signals == signals
    assert trio.current_time() - cancelled_s == pytest.approx(after_s)


async def test_it_is_spoken_with_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that begins has a socket of its own as standard input, and of our variables those that it keeps."""
    monkeypatch.setenv("TICKWHEEL_TOKEN", "secret")
    monkeypatch.setenv("TICKWHEEL_DATA_DIR", "elsewhere")
    begun: list[tuple[socket.socket, dict[str, str]]] = []
    processes: list[FakeProcess] = []
    stop = trio.Event()
    ends: list[str] = []

    async def open_process(command: Sequence[str], **options: Any) -> FakeProcess:
        begun.append((options["stdin"].dup(), options["env"]))
        processes.append(FakeProcess(1e9))
        return processes[-1]

    async def converse(stream: trio.SocketStream) -> None:
        try:
            await stream.send_all(b"%d" % len(processes))
            await trio.sleep_forever()
        finally:
            ends.append("over")

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    child = Child(name="worker", command=["gateway"], keeps=["TICKWHEEL_TOKEN"], converse=converse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.run, stop.wait)
        for number in (1, 2):
            with trio.fail_after(60):
                while len(processes) < number:
                    await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked()
            theirs, environment = begun[-1]
            assert theirs.recv(10) == b"%d" % number
            assert environment["TICKWHEEL_TOKEN"] == "secret"
            assert "TICKWHEEL_DATA_DIR" not in environment
            if number == 1:
                processes[0].end(-signal.SIGKILL)
                await trio.testing.wait_all_tasks_blocked()
                assert ends == ["over"]
                assert theirs.recv(10) == b""
        assert child.starts == 2
        stop.set()
    for theirs, _ in begun:
        theirs.close()
