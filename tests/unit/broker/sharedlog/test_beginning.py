"""How a cluster's log begins."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final
from unittest import mock

import pytest
import trio
from trio.testing import MockClock

from tests.support.cluster.replicas import GENESIS
from tickwheel_broker.sharedlog.beginning import (
    ClusterExists,
    ClusterUnreachable,
    NoCluster,
    begin,
    look_at,
    read_origin,
)
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.replication.genesis import genesis_record
from timerlog.replication.record import Writer, fence
from timerlog.settings import StoreSettings

NOW_MS: Final = 1_000_000


def begun(log: Partition) -> Partition:
    log.put(genesis_record(GENESIS, 0))
    return log


def run(scenario: Callable[[Partition, Line], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            log = Partition(random.Random(1))
            await scenario(log, Line(log, nursery))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_it_is_written_once() -> None:
    async def scenario(log: Partition, line: Line) -> None:
        with pytest.raises(NoCluster):
            await read_origin(line)
        genesis = await begin(line, "test", StoreSettings(), NOW_MS)
        found = await read_origin(line)
        assert found.genesis == genesis
        assert (found.start.end, found.start.offset, found.start.term) == (64, 0, 0)
        with pytest.raises(ClusterExists):
            await begin(line, "test", StoreSettings(), NOW_MS)
        assert len(log.records) == 1

    run(scenario)


def test_what_does_not_begin_so_is_no_cluster() -> None:
    async def scenario(log: Partition, line: Line) -> None:
        log.put(b"somebody else's record")
        with pytest.raises(NoCluster):
            await read_origin(line)

    run(scenario)


@pytest.mark.parametrize("beats_behind", [0, 30])
def test_it_is_told_without_reading_much(beats_behind: int) -> None:
    """Records may be large. The last word of the owner may lie further back."""

    async def scenario(log: Partition, line: Line) -> None:
        begun(log)
        log.put(fence(1, 1, NOW_MS, b"tickwheel://one:7411"))
        writer = Writer(1, 1, 0)
        for number in range(400):
            is_word = number == 399 - beats_behind
            said = (
                writer.beat(NOW_MS, b"tickwheel://one:7411")
                if is_word
                else writer.data([(64, b"x")], NOW_MS)[0]
            )
            log.put(said)
        with mock.patch.object(line, "read", wraps=line.read) as read:
            status = await look_at(line, lambda: NOW_MS)
        assert (status.owner, status.url) == (1, "tickwheel://one:7411")
        offsets = [call.args[0] for call in read.call_args_list]
        assert (offsets[0], min(offsets[1:])) == (0, status.end - (200 if beats_behind else 20))

    run(scenario)


def test_what_is_told_of_it() -> None:
    async def scenario(log: Partition, line: Line) -> None:
        begun(log)
        status = await look_at(line, lambda: NOW_MS)
        assert (status.end, status.term, status.owner, status.silent_ms) == (1, None, None, None)
        log.put(fence(1, 1, NOW_MS - 9_000, b"tickwheel://one:7411"))
        log.put(fence(2, 2, NOW_MS - 5_000, b"tickwheel://two:7411"))
        log.put(
            Writer(1, 1, 0).beat(NOW_MS, b"tickwheel://one:7411")
        )  # of the former owner, which sleeps late
        log.put(Writer(2, 2, 0).beat(NOW_MS - 300, b"tickwheel://two:7411"))
        status = await look_at(line, lambda: NOW_MS)
        assert (status.first, status.end, status.term, status.owner) == (0, 5, 2, 2)
        assert (status.url, status.silent_ms) == ("tickwheel://two:7411", 300)
        line.is_cut = True
        with pytest.raises(ClusterUnreachable):
            await look_at(line, lambda: NOW_MS)

    run(scenario)
