"""Dispatching: fair among subscribers, within their credit, and nobody waits for a slow one."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.unit.broker.net.test_outgoing import Pipe
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.messages import decode_deliver
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.delivery.dispatcher import TURN_FRAMES, Dispatcher
from tickwheel_broker.delivery.rate import RateLimiter
from tickwheel_broker.delivery.takers import Subscription
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from tickwheel_broker.services import Services
from timerlog.settings import StoreSettings
from timerlog.store import Store

HIGH_WATER_BYTES = 10_000


class Bench:
    """A store with a topic and a group, and a dispatcher that the test turns by hand."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.store = Store.open(directory, StoreSettings(), self.clock.now_ms())
        self.topic_id = self.store.topics.open("t", self.clock.now_ms())
        self.group_id = self.store.groups.open(self.topic_id, "g", self.clock.now_ms())
        self.dispatcher = Dispatcher(
            leases=self.store.deliver,
            holders=self.store.holders,
            clock=self.clock,
            group_id=self.group_id,
            deliver=self.deliver,
            limiter=lambda rate: RateLimiter(rate, 0.0),
        )

    @staticmethod
    def deliver(subscription: Subscription, frame: bytes) -> None:
        """On a disk that is always done."""
        subscription.outgoing.put(frame)

    def send(self, count: int, body: bytes = b"x") -> None:
        """Messages that are due at once, all the way into the topic."""
        head = b"".join(value.to_bytes(4, "little") for value in (self.topic_id, count, 0, 50)) + bytes(8)
        payload = head + len(body).to_bytes(4, "little") * count + body * count
        now_ms = self.clock.now_ms()
        assert self.store.produce.ingest(encode_frame(FrameType.SEND, 1, payload), now_ms).messages == count
        self.store.sync()
        batch = self.store.enqueue_get.take(count)
        assert batch is not None
        due = self.store.enqueue_put.link(batch, now_ms)
        assert due is not None
        self.store.dequeue_put_message.move(self.store.dequeue_get_message.look_up(due, now_ms), now_ms)

    def subscription(self, number: int, *, credit: int = 1_000, batch: int = 10) -> Subscription:
        outgoing = Outgoing(Pipe(), HIGH_WATER_BYTES)
        return Subscription(
            number=number,
            group_id=self.group_id,
            group_ids=[self.group_id],
            holder=self.store.holders.acquire(self.group_id),
            credit=credit,
            batch=batch,
            outgoing=outgoing,
            pulse=Pulse(outgoing.put),
        )

    def drain(self) -> None:
        while self.dispatcher.turn():
            pass


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "data")


def delivered(subscription: Subscription) -> list[int]:
    """The ids queued for a subscription, in order."""
    ids: list[int] = []
    for frame in subscription.outgoing._chunks:
        ids.extend(int(number) for number in decode_deliver(frame[16:]).ids)
    return ids


@pytest.mark.promise("V48")
async def test_batches_go_round(bench: Bench) -> None:
    subscriptions = [bench.subscription(number) for number in (1, 2, 3)]
    for subscription in subscriptions:
        bench.dispatcher.add(subscription)
    bench.send(90)
    bench.drain()
    ids = [delivered(subscription) for subscription in subscriptions]
    assert [len(part) for part in ids] == [30, 30, 30]
    assert sorted(chain.from_iterable(ids)) == list(range(1, 91))
    bench.store.close()


@pytest.mark.parametrize(
    ("subscribers", "count", "body", "most"),
    [(3 * TURN_FRAMES, 3 * TURN_FRAMES, b"x", TURN_FRAMES), (4, 40, bytes(100_000), 1)],
)
async def test_a_turn_ends_however_many_subscribers_there_are(
    bench: Bench, subscribers: int, count: int, body: bytes, most: int
) -> None:
    """Frames of few messages, and frames of about a MiB. Nobody is passed over: the next turn goes on where it was."""
    some = [bench.subscription(number, credit=10, batch=10) for number in range(1, subscribers + 1)]
    if most > 1:
        for one in some:
            one.credit = 1
    for one in some:
        bench.dispatcher.add(one)
    bench.send(count, body)
    frames = [0]
    while bench.dispatcher.turn():
        frames.append(sum(len(one.outgoing._chunks) for one in some))
    steps = [after - before for before, after in pairwise(frames)]
    assert max(steps) == most
    ids = [delivered(one) for one in some]
    assert sorted(chain.from_iterable(ids)) == list(range(1, count + 1))
    assert {len(part) for part in ids} == {count // subscribers}
    bench.store.close()


async def test_single_messages_go_round_as_well(bench: Bench) -> None:
    subscriptions = [bench.subscription(number) for number in (1, 2, 3)]
    for subscription in subscriptions:
        bench.dispatcher.add(subscription)
    for _ in range(9):
        bench.send(1)
        bench.drain()
    assert [len(delivered(subscription)) for subscription in subscriptions] == [3, 3, 3]
    bench.store.close()


@pytest.mark.promise("R55")
async def test_credit_is_never_exceeded(bench: Bench) -> None:
    small, large = bench.subscription(1, credit=7), bench.subscription(2, credit=50)
    bench.dispatcher.add(small)
    bench.dispatcher.add(large)
    bench.send(100)
    bench.drain()
    assert (len(delivered(small)), len(delivered(large))) == (7, 50)
    assert bench.store.holders.outstanding(small.holder) == 7
    bench.store.settle.release_holder(small.holder, bench.clock.now_ms())
    bench.store.close()


async def test_a_subscriber_that_does_not_read_is_passed_over(bench: Bench) -> None:
    slow, quick = bench.subscription(1), bench.subscription(2)
    slow.outgoing.put(bytes(HIGH_WATER_BYTES))
    bench.dispatcher.add(quick)
    bench.dispatcher.add(slow)
    bench.send(40)
    bench.drain()
    assert len(slow.outgoing._chunks) == 1
    assert len(delivered(quick)) == 40
    bench.store.close()


async def test_dispatchers_come_and_go_with_subscribers(bench: Bench) -> None:
    async with trio.open_nursery() as nursery:
        delivery = Delivery(
            leases=bench.store.deliver,
            groups=bench.store.groups,
            holders=bench.store.holders,
            clock=bench.clock,
            nursery=nursery,
            deliver=bench.deliver,
        )
        first, second = bench.subscription(1), bench.subscription(2)
        delivery.add(first)
        delivery.add(second)
        assert (delivery.subscribers, delivery.subscribers_of(bench.group_id)) == (2, 2)
        bench.send(20)
        delivery.wake([bench.group_id, 999])
        await trio.testing.wait_all_tasks_blocked()
        assert Counter(delivered(first) + delivered(second)) == Counter(range(1, 21))
        delivery.remove(first)
        delivery.remove(first)
        delivery.remove(second)
        await trio.testing.wait_all_tasks_blocked()
        assert (delivery.subscribers, nursery.child_tasks) == (0, frozenset())
        delivery.stop()
        delivery.add(first)
        bench.send(1)
        delivery.wake([bench.group_id])
        await trio.testing.wait_all_tasks_blocked()
        assert 21 not in delivered(first)
    bench.store.close()


async def test_a_rate_that_is_lifted_is_lifted_at_once(bench: Bench) -> None:
    bench.store.topics.set("t", {"rate": 0.001}, [], None, bench.clock.now_ms())
    async with trio.open_nursery() as nursery:
        delivery = Delivery(
            leases=bench.store.deliver,
            groups=bench.store.groups,
            holders=bench.store.holders,
            clock=bench.clock,
            nursery=nursery,
            deliver=bench.deliver,
        )
        subscription = bench.subscription(1)
        delivery.add(subscription)
        bench.send(20)
        delivery.wake([bench.group_id])
        await trio.testing.wait_all_tasks_blocked()
        assert delivered(subscription) == [], "the next one is due in a quarter of an hour"
        bench.store.topics.set("t", {}, ["rate"], None, bench.clock.now_ms())
        delivery.wake_all()
        await trio.testing.wait_all_tasks_blocked()
        assert delivered(subscription) == list(range(1, 21))
        delivery.remove(subscription)
    bench.store.close()


async def test_a_limit_of_deliveries_is_forgotten_with_its_last_subscriber(bench: Bench) -> None:
    bench.store.topics.set("t", {"rate": 0.001}, [], None, bench.clock.now_ms())
    async with trio.open_nursery() as nursery:
        delivery = Delivery(
            leases=bench.store.deliver,
            groups=bench.store.groups,
            holders=bench.store.holders,
            clock=bench.clock,
            nursery=nursery,
            deliver=bench.deliver,
        )
        first, second = bench.subscription(1), bench.subscription(2)
        delivery.add(first)
        delivery.add(second)
        bench.send(1)
        await trio.testing.wait_all_tasks_blocked()
        delivery.remove(first)
        assert len(delivery._limiters) == 1
        delivery.remove(second)
        assert delivery._limiters == {}
        with trio.fail_after(10):
            while nursery.child_tasks:
                await trio.lowlevel.checkpoint()
    bench.store.close()


@pytest.mark.promise("R20", "S6")
async def test_the_services_carry_messages_to_their_topic_in_time(bench: Bench) -> None:
    woken: list[int] = []
    dirty: list[int] = []

    def publish() -> None:
        woken.extend(bench.store.changes.take().woken)
        dirty.append(1)

    services = Services(
        bench.store,
        bench.clock,
        max_backlog_messages=2,
        publish=publish,
    )
    now_ms = bench.clock.now_ms()
    head = b"".join(value.to_bytes(4, "little") for value in (bench.topic_id, 3, 1, 50)) + bytes(8)
    times = b"".join((now_ms + later).to_bytes(8, "little") for later in (0, 1_000, 86_400_000))
    frame = encode_frame(FrameType.SEND, 1, head + times + bytes(12))
    bench.store.produce.ingest(frame, now_ms)
    assert services.is_behind
    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.run)
        bench.store.sync()
        services.durable_moved()
        with trio.fail_after(10):
            await services.wait_for_room()
        await trio.testing.wait_all_tasks_blocked()
        assert not services.is_behind
        assert woken == [bench.group_id]
        for later_s, expected in ((1, 2), (3_600, 2), (86_400, 3)):
            bench.clock.set(datetime.fromtimestamp(now_ms / 1_000 + later_s, UTC))
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(woken) == expected
        nursery.cancel_scope.cancel()
    assert len(dirty) == 3
    bench.store.close()
