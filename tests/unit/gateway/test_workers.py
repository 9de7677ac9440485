"""The workers of a gateway, and who starts them: what is told of them, and when it is given up."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio
import trio.testing
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from tickwheel_gateway.workers.report import MOST_BYTES, Report, decode_report, encode_report, lines
from tickwheel_gateway.workers.supervisor import Supervisor
from tickwheel_gateway.workers.worker import ANSWER_S, Converse


class FakeProcess:
    """Of a worker: the test speaks for it."""

    def __init__(self, converse: Converse) -> None:
        self.starts = 0
        self.told: list[int] = []
        self.begins = trio.Event()
        self.ends = trio.Event()
        self.stream, self._theirs = trio.testing.memory_stream_pair()
        self._converse = converse

    async def run(self, wait_stopped: Callable[[], Awaitable[None]]) -> None:
        await self.begins.wait()
        self.starts += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._converse, self._theirs)
            await self.ends.wait()
            nursery.cancel_scope.cancel()
        await wait_stopped()

    def tell(self, number: signal.Signals) -> None:
        self.told.append(number)

    async def serves(self) -> None:
        self.begins.set()
        await self.tells(0)

    async def tells(self, number: int, *, is_ready: bool = True, calls: int = 0) -> None:
        counter = CounterMetricFamily("calls", "Calls", labels=["method"])
        counter.add_metric(["Send"], calls)
        await self.stream.send_all(encode_report(Report(number, is_ready, [counter])))


class Two:
    """A supervisor of two such processes."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.is_announced = False
        self.supervisor = Supervisor(2, self._make)

    def _make(self, number: int, converse: Converse) -> FakeProcess:
        assert number == len(self.processes)
        self.processes.append(FakeProcess(converse))
        return self.processes[-1]

    def announce(self) -> None:
        self.is_announced = True

    def samples(self) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(self.supervisor.text()[0].decode())
        return {(one.name, one.labels["worker"]): one.value for family in families for one in family.samples}


def test_a_report_there_and_back() -> None:
    counter = CounterMetricFamily("calls", "Calls", labels=["method"])
    counter.add_metric(["Send €\n"], 3)
    line = encode_report(Report(7, is_ready=True, metrics=[counter]))
    assert line.count(b"\n") == 1
    found = decode_report(line)
    assert (found.number, found.is_ready) == (7, True)
    assert [(one.name, one.type, one.documentation) for one in found.metrics] == [
        ("calls", "counter", "Calls")
    ]
    assert [tuple(one)[:3] for one in found.metrics[0].samples] == [
        ("calls_total", {"method": "Send €\n"}, 3)
    ]


async def test_lines() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"1\n22\n3")
    await theirs.send_all(b"3\nrest")
    await theirs.aclose()
    assert [line async for line in lines(ours)] == [b"1", b"22", b"33"]


async def test_a_line_that_does_not_end() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"x" * (MOST_BYTES + 1))
    assert [line async for line in lines(ours)] == []


async def test_it_is_announced_when_all_serve() -> None:
    two = Two()
    first, second = two.processes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.supervisor.run, two.announce)
        await first.serves()
        await trio.testing.wait_all_tasks_blocked()
        assert two.supervisor.is_ready
        assert not two.is_announced
        await second.serves()
        await trio.testing.wait_all_tasks_blocked()
        assert two.is_announced
        second.ends.set()
        await trio.testing.wait_all_tasks_blocked()
        assert two.supervisor.is_ready, "the other one serves"
        assert not two.supervisor.has_failed
        two.supervisor.stop()
        assert not two.supervisor.is_ready
        first.ends.set()


async def test_it_is_given_up_when_one_of_the_first_does_not_start() -> None:
    two = Two()
    first, second = two.processes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.supervisor.run, two.announce)
        await first.serves()
        second.begins.set()
        await trio.testing.wait_all_tasks_blocked()
        second.ends.set()
        await trio.testing.wait_all_tasks_blocked()
        assert two.supervisor.is_stopping
        first.ends.set()
    assert two.supervisor.has_failed
    assert not two.is_announced


async def test_figures_are_asked_for_and_have_the_number_of_their_worker(autojump_clock: MockClock) -> None:
    two = Two()
    first, second = two.processes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.supervisor.run, two.announce)
        await first.serves()
        await second.serves()
        await trio.testing.wait_all_tasks_blocked()

        async def answer() -> None:
            assert await first.stream.receive_some(100) == b"1\n"
            await first.tells(1, calls=5)

        nursery.start_soon(answer)
        began = trio.current_time()
        await two.supervisor.look()
        assert trio.current_time() - began == ANSWER_S, "the second one does not answer"
        found = two.samples()
        assert found["calls_total", "0"] == 5
        assert ("calls_total", "1") not in found
        assert [found["tickwheel_gateway_worker_ready", one] for one in "01"] == [1, 0]
        assert [found["tickwheel_gateway_worker_starts_total", one] for one in "01"] == [1, 1]
        await second.tells(1, calls=6)
        await trio.testing.wait_all_tasks_blocked()
        assert two.samples()["calls_total", "1"] == 6, "it does again"
        nursery.cancel_scope.cancel()


async def test_what_is_no_report_ends_nothing() -> None:
    two = Two()
    first, second = two.processes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.supervisor.run, two.announce)
        first.begins.set()
        await first.stream.send_all(b"hello\n")
        await first.serves()
        await second.serves()
        await trio.testing.wait_all_tasks_blocked()
        assert two.is_announced
        nursery.cancel_scope.cancel()


async def test_signals_are_handed_on() -> None:
    two = Two()
    two.supervisor.reload()
    two.supervisor.hurry()
    assert [process.told for process in two.processes] == [[signal.SIGHUP, signal.SIGTERM]] * 2
