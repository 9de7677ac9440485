"""Requests for messages: answered at once or when something gets ready, once, and nothing is leased to who has gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.unit.broker.connections.test_connection import Wire
from tests.unit.broker.test_durable_first import Bench, served, types
from tickwheel.protocol.bodies.admin import DeleteTopic, SetTopic
from tickwheel.protocol.bodies.fetching import EndFetch, EndFetchOk, Fetch
from tickwheel.protocol.bodies.groups import DeleteGroup
from tickwheel.protocol.bodies.requests import Ping, Subscribe, decode_error
from tickwheel.protocol.bodies.settling import Nack, NackOk, Return, ReturnOk
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import FetchOk, decode_fetch_ok
from timerlog.layout import MAX_TIME_MS
from timerlog.store import Store

MINUTE_MS = 60_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close(clean=False)


def fast(store: Store, clients: int = 1, **settings: Any) -> AbstractAsyncContextManager[Bench]:
    """A broker that does not wait for its disk."""
    return served(store, clients, "os", **settings)


def fetch(count: int = 10, wait_ms: int = 0, **options: Any) -> Fetch:
    return Fetch(topic="t", group="g", count=count, wait_ms=wait_ms, **options)


def put(bench: Bench, *bodies: bytes, topic: str = "t") -> None:
    """Messages that are due; the broker takes them from here."""
    store = bench.broker.store
    store.produce.ingest(send(store.topics.open(topic, NOW_MS), list(bodies)), NOW_MS)
    bench.broker.publish()


async def ready(bench: Bench, count: int) -> None:
    """So many messages have come into their topic."""
    with trio.fail_after(60):
        while bench.broker.store.look.stats(NOW_MS)["ready"] < count:
            await trio.sleep(0.001)


async def answers(wire: Wire, count: int = 1) -> list[FetchOk]:
    """What FETCHes were answered so far, at least so many."""
    with trio.fail_after(60):
        while types(wire).count(FrameType.FETCH_OK) < count:
            await trio.sleep(0.001)
    return [decode_fetch_ok(one.payload) for one in wire.answers if one.type == FrameType.FETCH_OK]


async def code(wire: Wire) -> str:
    """Of the first refusal."""
    with trio.fail_after(60):
        while FrameType.ERROR not in types(wire):
            await trio.sleep(0.001)
    return next(decode_error(one.payload).code for one in wire.answers if one.type == FrameType.ERROR)


async def waits(bench: Bench, count: int = 1) -> None:
    """So many requests wait."""
    with trio.fail_after(60):
        while bench.broker.delivery.subscribers != count:
            await trio.sleep(0.001)


def leased(bench: Bench) -> int:
    return int(bench.broker.store.look.stats(NOW_MS)["leased"])


async def gone(bench: Bench, number: int = 0) -> None:
    """A connection ends."""
    bench.connections[number].cancel()
    await trio.testing.wait_all_tasks_blocked()


# -- what it is given -----------------------------------------------------------------------------------------


async def test_what_is_ready_is_answered_at_once_when_its_leases_are_durable(store: Store) -> None:
    async with served(store) as bench:
        (wire,) = bench.wires
        await bench.send([b"a", b"b", b"c"])
        wire.write(fetch(2))
        await trio.testing.wait_all_tasks_blocked()
        assert types(wire) == [], "not before they are on the disk"
        await bench.sync_until(lambda: FrameType.FETCH_OK in types(wire))
        (answer,) = await answers(wire)
        assert (answer.delivery.ids, answer.delivery.epochs, answer.attempts) == ((1, 2), (1, 1), (1, 1))
        assert answer.group_id == store.groups.find("t", "g")
        await gone(bench)
        assert leased(bench) == 2, "they outlive the connection"


async def test_without_a_wait_nothing_is_an_answer_too_and_zero_messages_open_topic_and_group(
    store: Store,
) -> None:
    async with fast(store) as bench:
        (wire,) = bench.wires
        wire.write(fetch(0, start="latest"), fetch(5))
        assert [one.delivery.count for one in await answers(wire, 2)] == [0, 0]
        assert store.groups.find("t", "g")
        assert bench.broker.subscriptions.held == 0


async def test_it_waits_for_what_gets_ready_and_only_so_long(store: Store) -> None:
    async with fast(store) as bench:
        (wire,) = bench.wires
        wire.write(fetch(5, wait_ms=10))
        assert (await answers(wire))[0].delivery.count == 0
        wire.write(fetch(5, wait_ms=MINUTE_MS))
        await waits(bench)
        assert bench.broker.subscriptions.held == 1
        put(bench, b"x")
        assert (await answers(wire, 2))[1].delivery.ids == (1,)
        await waits(bench, 0)
        assert (bench.broker.subscriptions.held, store.holders.groups) == (0, {})
        put(bench, b"y")
        await ready(bench, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert leased(bench) == 1, "one request has one answer"


async def test_those_that_wait_are_served_in_turn_and_none_starves_a_subscriber(store: Store) -> None:
    async with fast(store, 3) as bench:
        one, two, subscriber = bench.wires
        one.write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench)
        two.write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench, 2)
        put(bench, b"a")
        assert (await answers(one))[0].delivery.ids == (1,)
        subscriber.write(Subscribe(topic="t", group="g", credit=1, batch=1))
        await waits(bench, 2)
        put(bench, b"b", b"c")
        await answers(two)
        with trio.fail_after(60):
            while not subscriber.delivered():
                await trio.sleep(0.001)


async def test_attempts_leases_and_sizes_are_as_asked(store: Store) -> None:
    async with fast(store) as bench:
        (wire,) = bench.wires
        put(bench, b"x" * 1_000, b"y" * 1_000, b"z")
        await ready(bench, 3)
        wire.write(fetch(9, max_bytes=1_500, lease_ms=7 * MINUTE_MS))
        (first,) = await answers(wire)
        assert first.delivery.ids == (1, 2), "the message that reaches the limit is the last"
        rows = store.tables.groups[first.group_id].deliveries.items
        assert rows["time_ms"][:2].min() >= NOW_MS + 7 * MINUTE_MS
        wire.write(Nack(group_id=first.group_id, ids=[1], epochs=[1], delay_ms=0))
        wire.write(fetch(1))
        again = (await answers(wire, 2))[1]
        assert (again.delivery.ids, again.delivery.epochs, again.attempts) == ((1,), (2,), (2,))
        wire.write(Return(group_id=first.group_id, ids=[1, 2, 2, 3], epochs=[2, 1, 9, 1]))
        wire.write(fetch(2))
        third = (await answers(wire, 3))[2]
        assert sorted(zip(third.delivery.ids, third.delivery.epochs, third.attempts, strict=True)) == [
            (1, 3, 2),
            (2, 2, 1),
        ]
        (nacked,) = [one for one in wire.answers if one.type == FrameType.NACK_OK]
        assert msgspec.msgpack.decode(nacked.payload, type=NackOk).results == ["nacked"]
        (returned,) = [one for one in wire.answers if one.type == FrameType.RETURN_OK]
        answer = msgspec.msgpack.decode(returned.payload, type=ReturnOk)
        assert answer == ReturnOk(2, ["returned", "returned", "stale_receipt", "never_delivered"])


async def test_shards_are_fetched_from_together(store: Store) -> None:
    store.topics.create("t", {}, 4, NOW_MS)
    async with fast(store) as bench:
        (wire,) = bench.wires
        wire.write(fetch(5, wait_ms=MINUTE_MS))
        await waits(bench)
        frame = send(store.topics.open("t", NOW_MS), [b"x"] * 8, keys=[b"%d" % n for n in range(8)])
        store.produce.ingest(frame, NOW_MS)
        bench.broker.publish()
        found: set[int] = set()
        for count in range(1, 9):
            found.update((await answers(wire, count))[-1].delivery.ids)
            if len(found) == 8:
                break
            wire.write(fetch(5, wait_ms=MINUTE_MS))
        assert found == set(range(1, 9))
        assert (await answers(wire))[0].group_id == store.groups.find("t", "g")


# -- limits ---------------------------------------------------------------------------------------------------


async def test_pause_and_batch_size_hold(store: Store) -> None:
    store.topics.create("t", {"batch_size": 2}, 0, NOW_MS)
    store.topics.set("t", {}, [], True, NOW_MS)
    async with fast(store, 2) as bench:
        wire, admin = bench.wires
        put(bench, b"a", b"b", b"c")
        await ready(bench, 3)
        wire.write(fetch(9))
        assert (await answers(wire))[0].delivery.count == 0
        wire.write(fetch(9, wait_ms=MINUTE_MS))
        await waits(bench)
        admin.write(SetTopic("t", False, paused=False))
        assert (await answers(wire, 2))[1].delivery.ids == (1, 2)


async def test_a_rate_holds_however_often_it_is_asked(store: Store) -> None:
    store.topics.create("t", {"rate": 20.0}, 0, NOW_MS)
    async with fast(store) as bench:
        (wire,) = bench.wires
        put(bench, *[b"x"] * 9)
        await ready(bench, 9)
        began_s, got, asked = trio.current_time(), 0, 0
        while got < 4:
            wire.write(fetch(9, wait_ms=MINUTE_MS if asked % 2 else 0))
            asked += 1
            got += (await answers(wire, asked))[-1].delivery.count
        assert trio.current_time() - began_s >= 3 / 20, "the first may come at once"


async def test_limits_of_subscriptions_hold(store: Store) -> None:
    async with fast(store, 2, max_subscriptions=1, max_credit=10) as bench:
        wire, other = bench.wires
        wire.write(fetch(11))
        assert await code(wire) == "credit_too_large"
        other.write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench)
        other.write(fetch(1))
        assert await code(other) == "bad_request", "two under one correlation cannot be told apart"
        wire.answers.clear()
        wire.write(Ping(), fetch(1, wait_ms=MINUTE_MS))
        assert await code(wire) == "too_many_subscriptions"
        put(bench, b"x")
        await answers(other)
        put(bench, b"y")
        await ready(bench, 2)
        wire.write(fetch(1))
        await answers(wire)


async def test_a_lease_ends_in_this_era(store: Store) -> None:
    async with fast(store) as bench:
        (wire,) = bench.wires
        wire.write(fetch(1, lease_ms=MAX_TIME_MS))
        assert await code(wire) == "bad_time"


async def test_neither_topic_nor_group_goes_under_one_that_waits(store: Store) -> None:
    async with fast(store, 3) as bench:
        wire, topics, groups = bench.wires
        wire.write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench)
        topics.write(DeleteTopic("t"))
        groups.write(DeleteGroup("t", "g"))
        assert (await code(topics), await code(groups)) == ("topic_in_use", "group_in_use")


# -- its end --------------------------------------------------------------------------------------------------


async def test_one_that_is_ended_is_answered_and_gets_nothing(store: Store) -> None:
    async with fast(store) as bench:
        (wire,) = bench.wires
        wire.write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench)
        wire.write(EndFetch(correlation=1))
        wire.write(EndFetch(correlation=1), EndFetch(correlation=7))
        assert (await answers(wire))[0].delivery.count == 0
        with trio.fail_after(60):
            while types(wire).count(FrameType.END_FETCH_OK) < 3:
                await trio.sleep(0.001)
        ended = [
            msgspec.msgpack.decode(one.payload, type=EndFetchOk).ended
            for one in wire.answers
            if one.type == FrameType.END_FETCH_OK
        ]
        assert ended == [True, False, False]
        put(bench, b"x")
        await ready(bench, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert leased(bench) == 0


@pytest.mark.promise("when-an-answer-is-lost")
async def test_who_goes_while_waiting_is_given_nothing(store: Store) -> None:
    async with fast(store, 2) as bench:
        bench.wires[0].write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench)
        await gone(bench)
        assert (bench.broker.subscriptions.held, store.holders.groups) == (0, {})
        put(bench, b"x")
        await ready(bench, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert leased(bench) == 0
        bench.wires[1].write(fetch(1))
        assert (await answers(bench.wires[1]))[0].delivery.epochs == (1,)


async def test_what_waits_for_the_disk_when_its_client_goes_comes_back_and_was_no_attempt(
    store: Store,
) -> None:
    store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS)
    async with served(store, 2) as bench:
        wire, other = bench.wires
        await bench.send([b"x"])
        wire.write(fetch(1))
        await trio.testing.wait_all_tasks_blocked()
        assert leased(bench) == 1
        await gone(bench)
        assert leased(bench) == 0
        other.write(fetch(1))
        await bench.sync_until(lambda: FrameType.FETCH_OK in types(other))
        (answer,) = await answers(other)
        assert (answer.delivery.epochs, answer.attempts) == ((2,), (1,))


@pytest.mark.promise("when-an-answer-is-lost")
async def test_what_could_not_be_written_when_its_client_goes_comes_back(store: Store) -> None:
    async with fast(store, 2) as bench:
        wire, other = bench.wires
        put(bench, b"x", b"y", b"z")
        await ready(bench, 3)
        wire.write(fetch(1))
        await answers(wire)

        async def stuck(data: bytes | memoryview) -> int:
            await trio.sleep_forever()
            return 0

        wire.send_some = stuck  # type: ignore[method-assign]
        wire.write(fetch(1))
        wire.write(fetch(1, wait_ms=MINUTE_MS))
        with trio.fail_after(60):
            while leased(bench) < 3:
                await trio.sleep(0.001)
        await gone(bench)
        assert leased(bench) == 1, "what was written may have arrived"
        other.write(fetch(3))
        (answer,) = await answers(other)
        assert (sorted(answer.delivery.ids), answer.attempts) == ([2, 3], (1, 1))


async def test_a_broker_that_stops_ends_those_that_wait_and_takes_no_more(store: Store) -> None:
    async with fast(store, 2) as bench:
        wire, other = bench.wires
        wire.write(fetch(1, wait_ms=MINUTE_MS))
        await waits(bench)
        bench.broker.drain()
        assert (await answers(wire))[0].delivery.count == 0
        other.write(fetch(1, wait_ms=MINUTE_MS))
        assert await code(other) == "shutting_down"
