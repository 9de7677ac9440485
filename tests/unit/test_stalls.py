"""The watch over event loops: a step that takes too much processor time is told, with its task and place."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.processes import stalls
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.stalls import Stall, Watch
from tickwheel.protocol.bodies.admin import GetTopic
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.topics import TopicRequests

LIMIT_MS = 5.0


def work(ms: float) -> None:
    """Takes so much processor time, however busy the machine is."""
    until_ns = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < until_ns:
        pass


class Processor:
    """Stands for the module ``time``: the processor time of a thread that works as long as it says."""

    def __init__(self) -> None:
        self._ns = 0

    def work(self, ms: float) -> None:
        self._ns += int(ms * 1e6)

    def thread_time_ns(self) -> int:
        return self._ns


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    found = Processor()
    monkeypatch.setattr(stalls, "time", found)
    return found


def watched(processor: Processor, *steps_ms: float) -> list[Stall]:
    found: list[Stall] = []

    async def main() -> None:
        for ms in steps_ms:
            processor.work(ms)
            await trio.lowlevel.checkpoint()

    trio.run(main, instruments=[Watch(found.append, LIMIT_MS)])
    return found


def test_a_long_step_is_told_with_its_task_and_place(processor: Processor) -> None:
    (stall,) = watched(processor, 0.1, 4 * LIMIT_MS, 0.1)
    assert "main" in stall.task
    assert stall.ms == 4 * LIMIT_MS
    assert "tests/unit/test_stalls.py:" in stall.where
    assert "held the event loop" in str(stall)


def test_a_machine_that_is_slow_after_a_pause_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_reference", lambda: int(stalls.REFERENCE_MS * 1e6))
    for after_a_pause_ms, limit_ms in (
        (0.1, stalls.LIMIT_MS),
        (5.1, stalls.LIMIT_MS + 5 * stalls.COLD_PIECES),
    ):
        pieces_ns = iter([300_000, int(after_a_pause_ms * 1e6), 100_000, 150_000, 100_000])
        monkeypatch.setattr(stalls, "_piece", lambda pieces=pieces_ns: next(pieces))
        assert stalls.limit_ms.__wrapped__() == pytest.approx(limit_ms)


def test_a_slow_machine_has_more_time(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_reference", lambda: int(5 * stalls.REFERENCE_MS * 1e6))
    (stall,) = watched(processor, 4.9 * LIMIT_MS, 5.1 * LIMIT_MS)
    assert stall.ms == 5.1 * LIMIT_MS


def test_short_steps_are_not_told_however_many_there_are(processor: Processor) -> None:
    assert watched(processor, *[0.2] * 100) == []


def test_waiting_is_no_work() -> None:
    found: list[Stall] = []

    async def main() -> None:
        time.sleep(3 * LIMIT_MS / 1_000)  # noqa: ASYNC251 - another process has the processor

    trio.run(main, instruments=[Watch(found.append, LIMIT_MS)])
    assert found == []


def test_the_garbage_collector_does_not_count(processor: Processor) -> None:
    found: list[Stall] = []

    def collecting(phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            processor.work(4 * LIMIT_MS)

    async def main() -> None:
        gc.callbacks.insert(0, collecting)  # before the one of the watch: within what is collected
        try:
            gc.collect(0)
        finally:
            gc.callbacks.remove(collecting)

    trio.run(main, instruments=[Watch(found.append, LIMIT_MS)])
    assert found == []


def test_named_exceptions_are_not_told(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "EXCEPTIONS", {"watched.<locals>.main": "it is a test"})
    assert watched(processor, 4 * LIMIT_MS) == []


HELD = """
import time
from tickwheel_broker.requests.topics import TopicRequests
get = TopicRequests.get
def slow(*arguments):
    until_s = time.thread_time() + 2
    while time.thread_time() < until_s:
        pass
    return get(*arguments)
TopicRequests.get = slow
"""


def test_a_daemon_whose_loop_is_held_fails_its_test(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "data", prelude=HELD).start()
    with tickwheel.sync.Client(daemon.url) as client:
        client.create_topic("t")
        assert client.topic("t").name == "t"
    with pytest.raises(AssertionError, match=r"Server\._serve held the event loop for"):
        daemon.stop()


def test_an_embedded_broker_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = TopicRequests.get

    def slow(self: TopicRequests, request: GetTopic, asked: Asked) -> bytes:
        work(2_000)
        return get(self, request, asked)

    monkeypatch.setattr(TopicRequests, "get", slow)
    with (
        stalls.watching_embedded() as found,
        tickwheel.embedded(tmp_path / "data") as broker,
        broker.sync_client() as client,
    ):
        client.create_topic("t")
        assert not [stall for stall in found if "Server._serve" in stall.task]
        client.topic("t")
    (stall,) = [stall for stall in found if "Server._serve" in stall.task]
    assert stall.ms >= 2_000
