"""Check-back, with a real broker and its clock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clients.in_time import InTime, broker_in_time
from tests.support.clients.waiting import until
from tests.support.native.driver import NOW_MS
from tests.support.rocketmq.gateway_call import CALLER
from tests.support.rocketmq.gateway_sending import Producer, come_back, cut_off, of, transaction
from tickwheel import Client
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.errors import Forbidden, TickwheelError
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import ALIVE_S, Declared, Registry
from tickwheel_gateway.delivery.checks import CREDIT, LOOK_S, SEND_S, Checks
from tickwheel_gateway.wire import schema

FIRST_S = 6
"""After it a prepared message is asked after first; then each:"""
AGAIN_S = 30
PUSH_CONSUMER = 2


@dataclass
class Ear:
    """A client's telemetry stream, and what it has heard."""

    is_open: bool = True
    takes_s: float = 0.0
    heard: list[Any] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    async def send(self, command: bytes) -> bool:
        await trio.sleep(self.takes_s)
        if self.is_open:
            read = schema.TelemetryCommand.FromString(command)
            self.heard.append(read.recover_orphaned_transaction_command)
            self.at_s.append(trio.current_time())
        return self.is_open

    @property
    def asked(self) -> list[str]:
        """The ids of the messages that it was asked about."""
        return [one.message.system_properties.message_id for one in self.heard]


class Place:
    """A gateway's checks, and its broker; each token has a client of its own."""

    def __init__(self, there: InTime, client: Client) -> None:
        self.there = there
        self.client = client
        self.registry = Registry()
        self.refused: dict[str, TickwheelError] = {}
        """By token."""
        self.tries: dict[str, int] = {}
        self.open: list[str] = []

    @asynccontextmanager
    async def _client(self, token: str) -> AsyncIterator[Client]:
        self.tries[token] = self.tries.get(token, 0) + 1
        if token in self.refused:
            raise self.refused[token].copy()
        self.open.append(token)
        try:
            async with self.there.client() as client:
                yield client
        finally:
            self.open.remove(token)

    def client_of(self, token: str) -> Any:
        return self._client(token)

    def comes(self, caller: Caller, *topics: str, client_type: int = schema.PRODUCER) -> Ear:
        """A client opens its stream and says what it is."""
        known, ear = self.registry.heard(caller), Ear()
        sends_to = frozenset(topics if client_type == schema.PRODUCER else ())
        known.stream, known.declared = ear, Declared(client_type, topics=frozenset(topics), sends_to=sends_to)
        return ear

    async def prepares(self, *message_ids: str, caller: Caller = CALLER, **fields: Any) -> list[str]:
        """The ids of its transactions."""
        producer = Producer(self.client, self.registry, caller)
        answers = [await producer.send(transaction(message_id, **fields)) for message_id in message_ids]
        return [answer.entries[0].transaction_id for answer in answers]

    async def topics(self) -> set[str]:
        """Of the broker."""
        return {topic.name for topic in await self.client.topics()}


class _Brokers:
    def __init__(self, place: Place) -> None:
        self.client = place.client_of


@asynccontextmanager
async def checking(directory: Path, **settings: Any) -> AsyncIterator[Place]:
    """Checks that run."""
    async with broker_in_time(directory, **settings) as there, there.client() as client:
        place = Place(there, client)
        checks = Checks(place.registry, _Brokers(place))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checks.run)
            yield place
            nursery.cancel_scope.cancel()
        assert place.open == []


async def test_the_client_that_has_prepared_it_is_asked(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear, other = place.comes(CALLER, "orders"), place.comes(of("other"), "orders")
        began_s = trio.current_time()
        (name,) = await place.prepares(
            "01AB", body=b"paid?", properties={"a": "b"}, tag="t", delivery_timestamp=NOW_MS + 3_600_000
        )
        place.registry.heard(of("other"))
        await until(lambda: ear.heard)
        (check,) = ear.heard
        assert FIRST_S <= trio.current_time() - began_s < FIRST_S + 1
        assert (check.transaction_id, check.message.topic.name, check.message.body) == (
            name,
            "orders",
            b"paid?",
        )
        assert check.message.user_properties == {
            "a": "b",
            "__transactionId__": name,
            "TRANSACTION_CHECK_TIMES": "1",
        }
        system = check.message.system_properties
        assert (system.message_id, system.tag, system.delivery_attempt) == ("01AB", "t", 1)
        assert (system.message_type, system.store_host) == (schema.TRANSACTION, "127.0.0.1:8081")
        assert schema.milliseconds(system.delivery_timestamp) == NOW_MS + 3_600_000
        assert other.heard == []


async def test_it_is_asked_again_until_it_answers(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        (name,) = await place.prepares("01AB")
        await until(lambda: len(ear.heard) == 3)
        assert [one.message.system_properties.delivery_attempt for one in ear.heard] == [1, 2, 3]
        assert not ear.heard[0].message.system_properties.HasField("delivery_timestamp")
        assert AGAIN_S - 0.001 <= ear.at_s[2] - ear.at_s[1] < AGAIN_S + 1  # it counts in milliseconds
        ((result, _),) = await place.client.commit_prepared(topic="orders", keys=[name])
        assert result == "committed"
        await trio.sleep(2 * AGAIN_S)
        assert len(ear.heard) == 3
        assert len(await place.client.fetch("orders", "readers")) == 1


async def test_another_producer_is_asked_when_it_has_gone(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        first, other = place.comes(CALLER, "orders"), place.comes(of("other"), "orders")
        elsewhere = place.comes(of("elsewhere"), "payments")
        consumer = place.comes(of("consumer"), "orders", client_type=PUSH_CONSUMER)
        await place.prepares("01AB")
        await place.registry.forget(CALLER)
        await until(lambda: other.heard)
        assert (first.heard, elsewhere.heard, consumer.heard) == ([], [], [])


async def test_another_producer_is_asked_when_it_is_silent(tmp_path: Path, autojump_clock: Any) -> None:
    """A program that hangs keeps its stream, and hears nothing."""
    async with checking(tmp_path) as place:
        first, other = place.comes(CALLER, "orders"), place.comes(of("other"), "orders")
        await place.prepares("01AB")

        async def beats() -> None:
            while True:
                place.registry.heard(of("other"))
                await trio.sleep(10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beats)
            await until(lambda: other.heard)
            nursery.cancel_scope.cancel()
        assert first.heard
        assert trio.current_time() - first.at_s[0] < ALIVE_S + AGAIN_S + 1


async def test_who_has_sent_a_transaction_is_a_producer(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER)
        place.registry.heard(CALLER).declared = None
        await place.prepares("01AB", topic="%a%b")
        await until(lambda: ear.heard)
        assert ear.heard[0].message.topic.name == "%a%b"


async def test_without_a_producer_there_is_no_subscription(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        consumer = place.comes(CALLER, "orders", client_type=PUSH_CONSUMER)
        await place.prepares("01AB", caller=of("no stream"))
        await trio.sleep(2 * FIRST_S)
        assert (consumer.heard, place.tries) == ([], {})


async def test_topics_of_prepared_messages_are_not_made_by_it(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders", "payments")
        await trio.sleep(100)
        assert await place.topics() == set()
        await place.prepares("01AB", orphaned_transaction_recovery_duration=1_000)
        began_s = trio.current_time()
        await until(lambda: ear.heard)
        assert trio.current_time() - began_s < 1 + 2 * LOOK_S
        assert await place.topics() == {"orders", "orders.prepared"}
        settings = (await place.client.topic("orders.prepared")).settings
        assert settings["ack_wait_ms"] == AGAIN_S * 1_000


async def test_what_another_process_was_sent_is_asked_after_too(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        await trio.sleep(100)
        await Producer(place.client, Registry()).send(transaction())
        await until(lambda: ear.heard)
        assert ear.asked == ["01AB"]


async def test_when_the_last_producer_goes_others_are_asked_at_once(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with checking(tmp_path, check_attempts=1) as place:
        ear = place.comes(CALLER, "orders")
        await place.prepares("01AB", "02AB")
        await until(lambda: len(ear.heard) == 2)
        began_s = trio.current_time()
        await place.registry.forget(CALLER)
        await until(lambda: not place.open)
        async with place.client.check_prepared("orders") as checks:
            found = [await checks.receive(timeout=5) for _ in range(2)]
        assert [one.body for one in found if one is not None] == [b"{}", b"{}"]
        assert trio.current_time() - began_s < 1


async def test_a_stream_that_is_over_takes_nothing(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        ear.is_open = False
        await place.prepares("01AB")
        await trio.sleep(10 * FIRST_S)
        assert 10 < place.tries[""] < 100
        new = place.comes(CALLER, "orders")
        began_s = trio.current_time()
        await until(lambda: new.heard)
        assert trio.current_time() - began_s < 2 * LOOK_S


async def test_a_stream_that_is_stuck_holds_up_others_only_for_a_while(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with checking(tmp_path) as place:
        stuck, other = place.comes(CALLER, "orders"), place.comes(of("other"), "orders")
        stuck.takes_s = 1_000
        began_s = trio.current_time()
        await place.prepares("01AB")
        await until(lambda: other.heard)
        assert trio.current_time() - began_s < FIRST_S + SEND_S + 1
        assert (stuck.heard, other.asked) == ([], ["01AB"])


async def test_more_than_the_credit(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        names = await place.prepares(*(f"{number:03}" for number in range(CREDIT + 50)))
        await until(lambda: len(ear.heard) == CREDIT)
        await trio.sleep(1)
        assert len(ear.heard) == CREDIT
        await place.client.commit_prepared(topic="orders", keys=[one.transaction_id for one in ear.heard])
        await until(lambda: len(ear.heard) == CREDIT + 50)
        assert sorted(one.transaction_id for one in ear.heard) == sorted(names)


async def test_a_broker_that_goes_and_comes_back(tmp_path: Path, autojump_clock: Any) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        await place.prepares("01AB")
        await until(lambda: ear.heard)
        cut_off(place.there)
        late = place.comes(of("other"), "payments")
        await trio.sleep(20)
        come_back(place.there)
        await until(lambda: len(ear.heard) == 2)
        await place.prepares("02AB", topic="payments", caller=of("other"))
        await until(lambda: late.heard)


async def test_each_token_sees_what_it_may(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tickwheel.gateway.checks")
    async with checking(tmp_path) as place:
        place.refused["bad"] = Forbidden("no")
        bad = place.comes(Caller("bad", token="bad"), "orders", "payments")
        good = place.comes(Caller("good", token="good"), "payments")
        await place.prepares("01AB", caller=Caller("good"), topic="payments")
        place.registry.heard(Caller("good", token="good"))
        await until(lambda: good.heard)
        await trio.sleep(100)
        assert len(caplog.records) == 1
        assert 5 < place.tries["bad"] < 20
        assert bad.heard == []
        assert place.open == ["good"]
        del place.refused["bad"]
        await until(lambda: place.open.count("bad"))
        await place.registry.forget(Caller("good", token="good"))
        await until(lambda: "good" not in place.open)


async def test_only_who_may_read_them_is_told_of_prepared_messages(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with checking(tmp_path) as place:
        place.refused["bad"] = Forbidden("no")
        good = place.comes(Caller("good", token="good"), "orders")
        await place.prepares("01AB", caller=Caller("host"))
        stranger = place.comes(Caller("host", token="bad"), "orders")  # it calls itself as another does
        bad = place.comes(Caller("bad", token="bad"), "orders")
        await until(lambda: good.heard)
        await place.registry.forget(Caller("good", token="good"))
        await trio.sleep(2 * AGAIN_S)
        assert (good.asked, stranger.heard, bad.heard) == (["01AB"], [], [])


async def test_what_no_producer_of_rocketmq_can_answer(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        await place.client.prepare("orders", b"without a key")
        await place.client.prepare("orders", b"odd", key="odd", headers={"rocketmq": {"id": "1", "keys": 5}})
        await place.client.send("orders.prepared", b"not prepared", key="sent")
        await place.client.prepare("orders", b"native", key="order-7", headers={"n": 7})
        await until(lambda: ear.heard)
        await trio.sleep(1)
        (check,) = ear.heard
        assert (check.transaction_id, check.message.body) == ("order-7", b"native")
        assert check.message.user_properties == {"n": "7", "TRANSACTION_CHECK_TIMES": "1"}
        assert sum("no producer can be asked" in one.message for one in caplog.records) == 2


async def test_topics_without_prepared_messages_cost_a_list_now_and_then(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with checking(tmp_path) as place:
        await place.client.create_topic("orders")
        place.comes(CALLER, *(f"t{number}" for number in range(10_000)))
        await trio.sleep(100)
        assert (await place.client.stats()).refusals == {}
        assert 5 < place.tries[""] < 20
        assert await place.topics() == {"orders"}


async def test_one_that_calls_itself_as_another_hears_nothing_of_it(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with checking(tmp_path) as place:
        place.refused["bad"] = Forbidden("no")
        good = place.comes(Caller("host", token="good"), "orders")
        stranger = place.comes(Caller("host", token="bad"), "orders")
        await place.prepares("01AB", caller=Caller("host", token="good"))
        await place.registry.forget(Caller("host", token="bad"))
        await until(lambda: len(good.heard) == 2)
        assert (good.asked, stranger.heard) == (["01AB", "01AB"], [])


async def test_checks_that_cannot_be_given_back_are_logged(
    tmp_path: Path, autojump_clock: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(AckQueue, "give_back", never)
    async with checking(tmp_path) as place:
        ear = place.comes(CALLER, "orders")
        await place.prepares("01AB")
        await until(lambda: ear.heard)
        await place.registry.forget(CALLER)
        await until(lambda: "1 messages of 'orders' were not given back within 2 s" in caplog.text)
