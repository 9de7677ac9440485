"""What leaves the broker tells of nothing that a power loss could undo: deliveries, answers and refusals wait for the
disk, in their order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.unit.broker.connections.test_connection import Wire
from tickwheel.protocol.bodies.admin import GetTopic
from tickwheel.protocol.bodies.requests import (
    Cancel,
    GetStats,
    Ping,
    Query,
    Subscribe,
    decode_error,
    hello,
)
from tickwheel.protocol.bodies.schedules import GetSchedules
from tickwheel.protocol.bodies.settling import Return
from tickwheel.protocol.frames import Frame, FrameType, encode_frame
from tickwheel.protocol.messages import decode_deliver
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.connections.connection import Connection
from tickwheel_broker.group_commit import Durability, InPlace
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.wiring import connection_parts
from timerlog.store import Store

PATIENCE_S = 60.0


class Disk(InPlace):
    """Syncs as often as the test lets it."""

    def __init__(self) -> None:
        self.gate = trio.Semaphore(0)
        self.runs = 0
        self._is_over = False

    def let_go(self) -> None:
        """The test is over: a sync runs to its end."""
        self._is_over = True
        self.gate.release()

    async def run(self, work: Callable[[], None]) -> None:
        if not self._is_over:
            await self.gate.acquire()
        work()
        self.runs += 1


class Bench(NamedTuple):
    """A broker, its disk, and clients that have greeted it."""

    broker: Broker
    disk: Disk
    wires: list[Wire]
    nursery: trio.Nursery
    connections: list[trio.CancelScope]
    ends: list[Connection]
    """The server's."""

    async def sync(self) -> None:
        """Once, and everything that follows from it."""
        self.disk.gate.release()
        await trio.testing.wait_all_tasks_blocked()

    async def sync_until(self, is_done: Callable[[], bool]) -> None:
        """As often as it takes."""
        with trio.fail_after(PATIENCE_S):
            while not is_done():
                if self.disk.gate.statistics().tasks_waiting:
                    self.disk.gate.release()
                await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()

    async def subscribe(self, wire: Wire, **options: int) -> None:
        wire.write(Subscribe(topic="t", group="g", **{"credit": 10, "batch": 10, **options}))
        await self.sync_until(lambda: FrameType.SUBSCRIBE_OK in types(wire))

    async def send(self, bodies: list[bytes]) -> None:
        """Durable, due, and put into the topic."""
        store = self.broker.store
        topic = store.topics.open("t", NOW_MS)
        for start in range(0, len(bodies), 6):
            store.produce.ingest(send(topic, bodies[start : start + 6]), NOW_MS)
        self.broker.commit.mark_dirty()
        with trio.fail_after(PATIENCE_S):
            while self.disk.gate.statistics().tasks_waiting == 0:
                await trio.sleep(0.001)
        await self.sync()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close(clean=False)


@asynccontextmanager
async def served(
    store: Store, clients: int = 1, durability: Durability = "always", **settings: Any
) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        disk, wires = Disk(), [Wire() for _ in range(clients)]
        broker = Broker(
            settings=Settings(durability=durability, **settings),
            store=store,
            clock=TrioClock(NOW_MS),
            runner=disk,
            nursery=nursery,
        )
        nursery.start_soon(broker.run)
        parts = connection_parts(broker)
        scopes, ends = [], []
        for number, wire in enumerate(wires):
            scopes.append(scope := trio.CancelScope())
            ends.append(end := Connection(parts, wire, number))
            nursery.start_soon(_serve, end, scope)
            wire.write(hello("wire"))
            await wire.wait_answers(0)
        yield Bench(broker, disk, wires, nursery, scopes, ends)
        disk.let_go()
        nursery.cancel_scope.cancel()


async def _serve(connection: Connection, scope: trio.CancelScope) -> None:
    with scope:
        await connection.serve()


def types(wire: Wire) -> list[int]:
    """Of all frames that came, without HELLO_OK."""
    return [frame.type for frame in wire.answers[1:]]


def receipts(frame: Frame) -> list[tuple[int, int]]:
    assert frame.type == FrameType.DELIVER
    delivery = decode_deliver(frame.payload)
    return list(zip(delivery.ids, delivery.epochs, strict=True))


@pytest.mark.promise("what-a-power-loss-can-undo")
async def test_deliveries_answers_and_refusals_wait_in_their_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_process(_job: object) -> bytes:
        return encode_frame(FrameType.QUERY_OK, 6, b"rows")

    async with served(store) as bench:
        (wire,) = bench.wires
        monkeypatch.setattr(bench.broker.queries, "_run_process", run_process)
        await bench.subscribe(wire)
        await bench.send([b"x"])
        assert store.look.stats(NOW_MS)["leased"] == 1
        # Each of these would tell that the message is leased, or could: its lease is not on the disk.
        wire.write(
            GetStats(),
            GetTopic("t"),
            GetTopic("missing"),
            GetSchedules(),
            Query("select 1", 1, 999),
        )
        wire.write(Cancel(ids=[1], stop=True), Ping())
        await trio.testing.wait_all_tasks_blocked()
        assert types(wire)[1:] == [FrameType.PONG], "it tells of nothing"
        await bench.sync()
        assert types(wire)[2:] == [
            FrameType.DELIVER,
            FrameType.GET_TOPIC_OK,
            FrameType.ERROR,
        ], "what was asked before the cancel needs no more than the lease"
        assert decode_error(wire.answers[5].payload).code == "unknown_topic"
        await bench.sync()
        assert sorted(types(wire)[5:7]) == sorted([FrameType.REVOKE, FrameType.CANCEL_OK])
        ended = sorted([FrameType.STATS_OK, FrameType.SCHEDULES_OK, FrameType.QUERY_OK])
        assert sorted(types(wire)[7:]) == ended, "they ended after the cancel, and may have seen it"
        assert bench.broker.commit.waiting == 0
        wire.write(GetStats())
        await trio.testing.wait_all_tasks_blocked()
        assert types(wire)[-1] == FrameType.STATS_OK, "all is durable, so that nothing has to wait"
        assert bench.disk.runs == 4


async def test_becoming_due_and_being_leased_share_a_sync(store: Store) -> None:
    async with served(store) as bench:
        (wire,) = bench.wires
        await bench.subscribe(wire)
        await bench.send([b"x"])
        assert bench.disk.gate.statistics().tasks_waiting == 1, "the sync that is waited for is on its way"
        await bench.sync()
        assert [receipts(frame) for frame in wire.answers[2:]] == [[(1, 1)]]
        assert bench.disk.runs == 3
        assert bench.disk.gate.statistics().tasks_waiting == 0, "nothing is left to sync"


@pytest.mark.promise("what-a-power-loss-can-undo")
async def test_what_never_left_goes_to_others_and_was_no_attempt(store: Store) -> None:
    async with served(store, 2) as bench:
        first, second = bench.wires
        await bench.subscribe(first, credit=2)
        await bench.send([b"a", b"b", b"c"])
        assert store.look.stats(NOW_MS)["leased"] == 2
        bench.connections[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert store.look.stats(NOW_MS)["leased"] == 0
        await bench.sync()
        assert types(first) == [FrameType.SUBSCRIBE_OK]
        await bench.subscribe(second)
        await bench.sync_until(lambda: second.delivered() == 3)
        (frame,) = second.answers[2:]
        # The order may change, the epoch grows, and an attempt is not counted: redeliveries begin with the second.
        assert sorted(receipts(frame)) == [(1, 2), (2, 2), (3, 1)]
        group = store.tables.groups[1].deliveries.items[:3]
        assert (group["epoch"] - group["base_epoch"]).tolist() == [1, 1, 1]


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
async def test_goodbye_comes_behind_what_was_delivered(store: Store) -> None:
    """A client may hang up on it at once: what came later would be leased, and in the hands of no client."""
    async with served(store) as bench:
        (wire,) = bench.wires
        await bench.subscribe(wire)
        await bench.send([b"x"])
        bench.broker.drain()
        bench.ends[0].go_away("it stops")
        await trio.testing.wait_all_tasks_blocked()
        assert types(wire) == [FrameType.SUBSCRIBE_OK]
        await bench.sync()
        assert types(wire)[1:] == [FrameType.DELIVER, FrameType.GOAWAY]


async def test_what_has_left_stays_leased_while_the_broker_stops(store: Store) -> None:
    """And what has not is taken back, as whenever a connection is lost."""
    async with served(store) as bench:
        (wire,) = bench.wires
        await bench.subscribe(wire, batch=1)
        await bench.send([b"a"])
        await bench.sync()
        assert types(wire)[1:] == [FrameType.DELIVER]
        await bench.send([b"b"])
        assert store.look.stats(NOW_MS)["leased"] == 2
        bench.broker.drain()
        bench.connections[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert store.look.stats(NOW_MS)["leased"] == 1
        group = store.tables.groups[1].deliveries.items[:2]
        assert (group["epoch"] - group["base_epoch"]).tolist() == [1, 0]
        await bench.sync()
        assert types(wire)[1:] == [FrameType.DELIVER]


async def test_who_says_that_it_leaves_gets_nothing_that_waits(store: Store) -> None:
    async with served(store) as bench:
        (wire,) = bench.wires
        await bench.subscribe(wire)
        await bench.send([b"a", b"b"])
        wire.write(Return(subscription=1, ids=[], epochs=[]))
        await trio.testing.wait_all_tasks_blocked()
        assert store.look.stats(NOW_MS)["leased"] == 0
        await bench.sync_until(lambda: bench.broker.commit.waiting == 0)
        assert types(wire) == [FrameType.SUBSCRIBE_OK, FrameType.RETURN_OK]


async def test_what_waits_for_the_disk_counts_as_queued(store: Store) -> None:
    async with served(store, write_high_water_bytes=65_536) as bench:
        (wire,) = bench.wires
        await bench.subscribe(wire, credit=1_000, batch=1)
        await bench.send([bytes(10_000)] * 24)
        assert 65_536 <= 10_000 * store.look.stats(NOW_MS)["leased"] < 80_000, (
            "no more than the queue may hold"
        )


@pytest.mark.promise("what-a-power-loss-can-undo")
async def test_with_interval_the_system_has_it_before_it_leaves(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged_bytes: list[int] = []
    let_go = Outgoing.let_go

    def seen(outgoing: Outgoing, frames: bytes) -> None:
        if frames[8] == FrameType.DELIVER:
            staged_bytes.append(int(store.log.native.staging_bytes))
        let_go(outgoing, frames)

    monkeypatch.setattr(Outgoing, "let_go", seen)
    async with served(store, durability="interval", sync_interval_ms=3_600_000) as bench:
        (wire,) = bench.wires
        wire.write(Subscribe(topic="t", group="g", credit=10, batch=10))
        await wire.wait_answers(1)
        store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"]), NOW_MS)
        bench.broker.commit.mark_dirty()
        frames = await wire.wait_answers(2)
        assert receipts(frames[1]) == [(1, 1)]
        assert staged_bytes == [0], "a broker that is killed now has not forgotten the lease"
        assert bench.disk.runs == 0
