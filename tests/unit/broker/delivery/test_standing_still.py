"""Subscribers that stand still: they are given nothing more, nobody waits for them longer than a lease, and what they
had and did not see was no attempt. One that runs is treated as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from tests.support.clients.in_time import InTime, broker_in_time
from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.full_disk import full_disk
from tests.support.stores.reader import Reader
from tickwheel import Client, Subscription, TickwheelError
from tickwheel.client.conversation import Conversation
from tickwheel_broker.net.pulse import Pulse
from tickwheel_simulation.network import Connection
from timerlog.engine.settle import MOST_UNSEEN
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

LEASE_S = 2.0
SETTINGS = {"ack_wait": "2s", "max_backoff": "2s"}
NO_RENEWAL = timedelta(0)


class Consumer:
    """A client with a subscription, whose connection a test can stop."""

    def __init__(self, client: Client, subscription: Subscription, connection: Connection) -> None:
        self.client = client
        self.subscription = subscription
        self.connection = connection
        self.handled: list[tuple[bytes, int, int, float]] = []
        """Body, epoch, attempt, and when."""

    async def handle_all(self) -> None:
        while True:
            message = await self.subscription.receive()
            assert message is not None
            self.handled.append((message.body, message.epoch, message.attempt or 0, trio.current_time()))
            await message.ack()


@asynccontextmanager
async def consumers(there: InTime, count: int, **options: Any) -> AsyncIterator[list[Consumer]]:
    async with AsyncExitStack() as stack:
        found: list[Consumer] = []
        for _ in range(count):
            client = await stack.enter_async_context(there.client())
            subscribing = client.subscribe("t", **options)
            subscribing._wants_attempts = True
            subscription = await stack.enter_async_context(subscribing)
            found.append(Consumer(client, subscription, there.network.connections[-1]))
        yield found
        for one in found:
            one.connection.go_on()


async def until_leased(client: Client, count: int) -> None:
    while (await client.stats()).leased < count:
        await trio.sleep(0.001)


@pytest.mark.promise("when-a-subscriber-stands-still")
@pytest.mark.parametrize("options", [{}, {"max_hold": NO_RENEWAL}], ids=["renews", "does not renew"])
@pytest.mark.parametrize(("still", "running"), [(1, 1), (3, 1)])
async def test_nobody_waits_longer_than_a_lease_for_those_who_stand_still(
    tmp_path: Path, autojump_clock: Any, still: int, running: int, options: dict[str, Any]
) -> None:
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, still + running, credit=10, **options) as every,
        trio.open_nursery() as nursery,
    ):
        await client.set_topic("t", max_attempts=1)
        for one in every[:still]:
            one.connection.stop()
        for one in every[still:]:
            nursery.start_soon(one.handle_all)
        sent_s: dict[bytes, float] = {}
        for number in range(100):
            sent_s[b"%d" % number] = trio.current_time()
            await client.send("t", b"%d" % number)
            await trio.sleep(0.1)
        await trio.sleep(LEASE_S)
        handled = [one for consumer in every for one in consumer.handled]
        assert sorted(body for body, *_ in handled) == sorted(sent_s), "each once, and none is a dead letter"
        assert {attempt for _, _, attempt, _ in handled} == {1}, "nobody has seen the others"
        late_s = [when_s - sent_s[body] for body, _, _, when_s in handled]
        assert max(late_s) < LEASE_S + 0.1
        # Who is known to stand still is given no more: only what was sent before that comes late.
        assert sum(late > 0.1 for late in late_s) <= 10 * still
        assert all(late < 0.1 for late in late_s[-50:])
        nursery.cancel_scope.cancel()


@pytest.mark.promise("when-a-subscriber-stands-still")
async def test_who_runs_again_is_given_messages_again(tmp_path: Path, autojump_clock: Any) -> None:
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, 1, credit=10) as (one,),
        trio.open_nursery() as nursery,
    ):
        one.connection.stop()
        await client.send_many("t", [b"%d" % number for number in range(30)])
        await trio.sleep(5 * LEASE_S)
        stats = await client.stats()
        assert (stats.delivered, stats.leased) == (10, 0), "nothing was given to it again"
        one.connection.go_on()
        nursery.start_soon(one.handle_all)
        while (await client.stats()).acked < 30:
            await trio.sleep(0.1)
        await trio.sleep(LEASE_S)
        assert {body for body, *_ in one.handled} == {b"%d" % number for number in range(30)}
        nursery.cancel_scope.cancel()


async def test_who_comes_while_its_client_comes_back_is_given_messages(
    tmp_path: Path, autojump_clock: Any
) -> None:
    """A subscription and a fetch of a client that has a moment to say what it did while it stood still."""
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, 1, max_hold=NO_RENEWAL) as (one,),
    ):
        for topic in "tuv":
            await client.send(topic, topic.encode())
        assert await one.subscription.receive() is not None
        one.connection.stop()
        await trio.sleep(2 * LEASE_S)
        one.connection.go_on()
        async with one.client.subscribe("u") as later:
            found = await later.receive(LEASE_S)
            assert found is not None
            assert found.body == b"u"
        one.connection.stop()
        await client.send("t", b"again")
        await trio.sleep(2 * LEASE_S)
        one.connection.go_on()
        assert [each.body for each in await one.client.fetch("v", wait=timedelta(seconds=LEASE_S))] == [b"v"]


async def test_who_runs_again_has_a_moment_to_ack(tmp_path: Path, autojump_clock: Any) -> None:
    """What it did before it stood still is not given out again meanwhile, to it or to another."""
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, 1, max_hold=NO_RENEWAL) as (one,),
    ):
        await client.send("t", b"x")
        message = await one.subscription.receive()
        assert message is not None
        one.connection.stop()
        await trio.sleep(2 * LEASE_S)
        assert (await client.stats()).leased == 0
        one.connection.go_on()
        await trio.sleep(0.1)
        await message.ack(confirm=True)
        await trio.sleep(LEASE_S)
        stats = await client.stats()
        assert (stats.delivered, stats.acked) == (1, 1)


async def test_what_one_that_runs_forgets_comes_again_at_once_and_was_an_attempt(
    tmp_path: Path, autojump_clock: Any
) -> None:
    """It says nothing by itself meanwhile, and is asked."""
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, 1, max_hold=NO_RENEWAL) as (one,),
    ):
        await client.set_topic("t", max_attempts=3)
        began_s = trio.current_time()
        await client.send("t", b"x")
        seen = []
        while (message := await one.subscription.receive(timeout=3 * LEASE_S)) is not None:
            seen.append((message.attempt, trio.current_time() - began_s))
            del message
        assert [attempt for attempt, _ in seen] == [1, 2, 3]
        for number, (_, after_s) in enumerate(seen):
            assert number * LEASE_S <= after_s < number * LEASE_S + 0.1
        assert (await client.browse("t.dead"))[0].body == b"x"


async def test_a_request_that_waits_on_a_connection_that_stands_still_is_given_nothing(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with broker_in_time(tmp_path, **SETTINGS) as there, there.client() as client:
        await client.create_topic("t")
        async with there.client() as other, trio.open_nursery() as nursery:
            assert not await other.fetch("t"), "from now on the broker may ask it"
            assert not await other.fetch("t")
            connection = there.network.connections[-1]
            got: list[bytes] = []

            async def fetch() -> None:
                got.extend((await other.fetch("t", wait=timedelta(minutes=1))).bodies())

            nursery.start_soon(fetch)
            await trio.sleep(LEASE_S)
            connection.stop()
            await trio.sleep(LEASE_S)
            await client.send("t", b"x")
            fetched = await client.fetch("t", wait=timedelta(seconds=5))
            assert fetched.bodies() == [b"x"]
            await fetched.ack(confirm=True)
            connection.go_on()
            await trio.sleep(0.1)
            await client.send("t", b"y")
            while not got:
                await trio.sleep(0.1)
            assert got == [b"y"]


@pytest.mark.promise("when-a-subscriber-stands-still")
@pytest.mark.parametrize(
    ("what", "attempt"),
    [("stands still", 1), ("stands still and is lost", 1), ("runs", 2), ("is lost", 2)],
)
async def test_what_was_fetched_was_an_attempt_unless_its_client_stands_still(
    tmp_path: Path, autojump_clock: Any, what: str, attempt: int
) -> None:
    async with broker_in_time(tmp_path, **SETTINGS) as there, there.client() as client:
        await client.create_topic("t")
        async with there.client() as other, trio.open_nursery() as nursery:
            assert not await other.fetch("t")
            connection = there.network.connections[-1]

            async def fetch() -> None:
                with suppress(TickwheelError):
                    await other.fetch("t", wait=timedelta(seconds=10))

            nursery.start_soon(fetch)
            await trio.sleep(0.1)
            if what.startswith("stands still"):
                connection.stop()
            await client.send("t", b"x")
            await until_leased(client, 1)
            await trio.sleep(LEASE_S * 0.8)
            if what.endswith("is lost"):
                connection.cut()
            fetched = await client.fetch("t", wait=timedelta(seconds=10))
            assert fetched.bodies() == [b"x"]
            assert fetched.attempts == (attempt,)
            connection.go_on()
            nursery.cancel_scope.cancel()


async def test_a_client_from_before_is_given_messages_as_before(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be asked; its leases that end count as ever."""
    monkeypatch.setattr(Conversation, "has_probes", False)
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, 1, max_hold=NO_RENEWAL) as (one,),
    ):
        await client.send("t", b"x")
        await one.subscription.receive()
        message = await one.subscription.receive(timeout=2 * LEASE_S)
        assert message is not None
        assert (message.epoch, message.attempt) == (2, 2)


async def test_who_says_nothing_is_asked_once_and_an_idle_one_is_not(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Pulse] = []
    ask = Pulse._ask
    monkeypatch.setattr(Pulse, "_ask", lambda pulse: (pulse.is_awaited or asked.append(pulse), ask(pulse)))
    async with (
        broker_in_time(tmp_path, **SETTINGS) as there,
        there.client() as client,
        consumers(there, 2, credit=1, max_hold=NO_RENEWAL) as every,
    ):
        await trio.sleep(LEASE_S)
        assert not asked
        await client.send("t", b"x")
        await until_leased(client, 1)
        subscriptions = list(there.broker.delivery.subscriptions)
        (place,) = (n for n, one in enumerate(subscriptions) if there.broker.subscriptions.outstanding(one))
        every[place].connection.stop()
        await trio.sleep(LEASE_S * 0.9)
        assert asked == [subscriptions[place].pulse]


def lapse(store: Store, reader: Reader, now_ms: int) -> int:
    """The leases of a reader end; when."""
    now_ms += 8_000
    pump(store, now_ms)
    return now_ms


def a_message(store: Store, **settings: Any) -> Reader:
    store.topics.set("t", settings, [], None, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    return Reader(store, topic)


@pytest.mark.promise("when-a-subscriber-stands-still")
def test_what_makes_its_subscribers_stand_still_is_a_dead_letter_in_the_end(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    store.topics.open("t", NOW_MS)
    reader, now_ms, given = a_message(store, max_attempts=3), NOW_MS, 0
    store.holders.stands_still = lambda holder: holder == reader.holder
    while reader.fetch(1, now_ms):
        given += 1
        now_ms = lapse(store, reader, now_ms)
    assert given == MOST_UNSEEN + 3
    assert store.look.describe_topic("t.dead")["messages"] == 1
    store.close()


@pytest.mark.promise("when-a-subscriber-stands-still")
@pytest.mark.parametrize("ending", ["none", "clean", "killed", "no derived files"])
def test_that_it_was_no_attempt_is_in_the_log(tmp_path: Path, ending: str) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    store.topics.open("t", NOW_MS)
    reader, now_ms = a_message(store, max_attempts=2), NOW_MS
    store.holders.stands_still = lambda _holder: True
    for epoch in (1, 2, 3):
        assert reader.fetch(1, now_ms) == [(1, epoch)]
        now_ms = lapse(store, reader, now_ms)
    store.sync()
    if ending != "none":
        store.close(clean=ending == "clean")
        if ending == "no derived files":
            remove_derived_files(tmp_path)
        store = Store.open(tmp_path, SMALL, now_ms)
        reader = Reader(store, store.topics.open("t", now_ms))
    store.holders.stands_still = lambda _holder: False
    pump(store, now_ms)
    for epoch in (4, 5):
        assert reader.fetch(1, now_ms) == [(1, epoch)]
        now_ms = lapse(store, reader, now_ms)
    assert reader.fetch(1, now_ms) == []
    assert store.look.describe_topic("t.dead")["messages"] == 1
    store.close()


def test_on_a_full_disk_it_counts(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    store.topics.open("t", NOW_MS)
    reader = a_message(store)
    store.holders.stands_still = lambda _holder: True
    assert reader.fetch(1) == [(1, 1)]
    with full_disk(store):
        store.settle.lapse(reader.group, np.zeros(1, np.uint64), np.ones(1, np.uint32), NOW_MS + 1_000)
    assert reader.fetch(1, NOW_MS + 1_000) == [(1, 2)]
    assert store.tables.deliveries_of(reader.group)["base_epoch"][0] == 0
    store.close()


def test_only_leases_that_have_run_out_are_lapsed(tmp_path: Path) -> None:
    """What was acked, given back, extended or given to another since: its timers of before say nothing."""
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"a", b"b", b"c", b"d"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(4)
    store.changes.take()
    reader.ack((1, 1))
    reader.nack((2, 1), delay_ms=60_000)
    reader.extend((3, 1), until_ms=NOW_MS + 60_000)
    pump(store, NOW_MS + 1_000)
    assert store.changes.take().lapsed == {reader.holder}
    assert reader.fetch(9, NOW_MS + 1_000) == [(4, 2)]
    reader.ack((4, 2))
    pump(store, NOW_MS + 9_000)
    assert not store.changes.take().lapsed
    store.close()
