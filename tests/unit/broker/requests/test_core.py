"""The broker without sockets: topics that go while something still depends on them, and what operators are told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from tests.unit.broker.net.test_outgoing import Pipe
from tickwheel.protocol.bodies.admin import DeleteTopic
from tickwheel.protocol.bodies.requests import Subscribe, Unsubscribe
from tickwheel.protocol.errors import TopicInUse, UnknownTopic
from tickwheel_broker.background import retention
from tickwheel_broker.background.housekeeping import HOUSEKEEPING_S
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import ManualClock, TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery.takers import Subscription
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from tickwheel_broker.requests.operations import Clients
from tickwheel_broker.security.grants import ANYONE
from tickwheel_broker.wiring import requests_of
from timerlog.errors import StoreError
from timerlog.layout import MessageState
from timerlog.store import Store

PATIENCE_S = 60.0


class Client:
    """A connection that asks, and keeps what it is answered."""

    identity = ANYONE
    rights = None

    def __init__(self, broker: Broker) -> None:
        self.requests = requests_of(broker, Clients())
        self.outgoing = Outgoing(Pipe(), 1 << 20)
        self.pulse = Pulse(self.outgoing.put)
        self.subscriptions: dict[int, Subscription] = {}
        self.answerings: dict[int, Any] = {}

    def next_subscription_number(self) -> int:
        return len(self.subscriptions) + 1

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        raise AssertionError("not used")

    answer_later = start_soon

    def tell_of(self, request: Any) -> None:
        """What was done is not written down here."""

    def ask(self, request: Any) -> None:
        self.requests.answer(self, 1, request)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close(clean=False)


async def test_a_topic_is_not_deleted_under_a_subscription_that_is_being_made(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        broker = Broker(
            settings=Settings(), store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery
        )
        client = Client(broker)
        client.ask(Subscribe(topic="t", group="g", credit=10, batch=10))
        assert broker.delivery.subscribers == 0, "SUBSCRIBE_OK waits for the disk"
        with pytest.raises(TopicInUse, match="1 subscribers"):
            client.ask(DeleteTopic("t"))
        await broker.commit.sync_once()
        assert broker.delivery.subscribers == 1
        with pytest.raises(TopicInUse):
            client.ask(DeleteTopic("t"))
        client.ask(Unsubscribe(subscription=1))
        client.ask(DeleteTopic("t"))
        with pytest.raises((UnknownTopic, StoreError)):
            client.ask(DeleteTopic("t"))
        nursery.cancel_scope.cancel()


async def test_a_topic_that_is_deleted_while_its_messages_expire(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_STEP", 2)
    topic = store.topics.create("t", {"retention_ms": 1_000}, 0, NOW_MS).topic_id
    store.produce.ingest(send(topic, [b"x"] * 5), NOW_MS)
    pump(store, NOW_MS)
    Reader(store, topic)
    async with trio.open_nursery() as nursery:
        broker = Broker(
            settings=Settings(),
            store=store,
            clock=TrioClock(NOW_MS + 60_000),
            runner=InPlace(),
            nursery=nursery,
        )
        nursery.start_soon(broker.retention._expire, topic, 1_000)
        with trio.fail_after(PATIENCE_S):
            while store.tables.rows["state"][1] != MessageState.EXPIRED:
                await trio.lowlevel.checkpoint()
        store.topics.delete("t")
    await broker.retention._expire(topic, 1_000)
    # The tasks take turns in any order: two steps may have been made, not three.
    assert store.tables.rows["state"][5] == MessageState.READY


async def test_leases_do_not_last_until_the_time_of_a_clock_that_was_wrong(
    store: Store, autojump_clock: trio.testing.MockClock
) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    clock = ManualClock(datetime.fromtimestamp(NOW_MS / 1_000, UTC))
    clock.advance(timedelta(days=365))
    reader = Reader(store, topic)
    assert reader.fetch(now_ms=clock.now_ms()) == [(1, 1)]
    async with trio.open_nursery() as nursery:
        broker = Broker(settings=Settings(), store=store, clock=clock, runner=InPlace(), nursery=nursery)
        nursery.start_soon(broker.housekeeping.run)
        clock.set(datetime.fromtimestamp(NOW_MS / 1_000, UTC))
        await trio.sleep(1.5 * HOUSEKEEPING_S)
        nursery.cancel_scope.cancel()
    pump(store, NOW_MS + 1_000)
    assert reader.fetch(now_ms=NOW_MS + 1_000) == [(1, 2)]


async def test_operators_are_told_what_cannot_become_a_dead_letter(
    store: Store, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    store.topics.create("t.dead", {"max_body_bytes": 1}, 0, NOW_MS)
    store.produce.ingest(send(topic, [b"large", b"bodies"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    assert reader.nack((1, 1), (2, 1)) == ["nacked", "nacked"]
    caplog.set_level(logging.ERROR, "tickwheel.broker")
    async with trio.open_nursery() as nursery:
        broker = Broker(
            settings=Settings(), store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery
        )
        nursery.start_soon(broker.housekeeping.run)
        await trio.sleep(3.5 * HOUSEKEEPING_S)
        nursery.cancel_scope.cancel()
    (told,) = caplog.records
    assert "dead letters" in told.getMessage()
    fields = vars(told)
    assert (fields["topic"], fields["group"], fields["messages"]) == ("t", "g", 2)
    assert (fields["code"], "body_too_large" in fields["reason"]) == ("transaction_refused", True)
