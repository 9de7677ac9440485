"""The stream of a client, at a real broker in simulated time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.clients.in_time import InTime, broker_in_time
from tests.support.rocketmq.gateway_call import CALLER, OpenCall, read
from tickwheel import Client
from tickwheel.errors import NotConnected, TokenRevoked, UnknownGroup
from tickwheel_gateway.calls.telemetry import Telemetry
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.caller import caller_of
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.transport.call import Status
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code


class Counted:
    """What was counted."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.open = 0

    def called(self, name: str, code: int, duration_s: float, times: int = 1) -> None:
        assert name == "Telemetry"
        self.codes.append(int(code))

    def streams(self, change: int) -> None:
        self.open += change


class Place:
    """A gateway's streams, and the broker behind."""

    def __init__(self, broker: InTime, brokers: Brokers) -> None:
        self.broker = broker
        self.registry = Registry()
        self.stopping = trio.Event()
        self.tally = Counted()
        self.token = ""
        """Of all who call."""
        self.telemetry = Telemetry(
            config=Config(),
            identify=lambda call: caller_of(call, self.token),
            brokers=brokers,
            registry=self.registry,
            stopping=self.stopping,
            tally=self.tally,
        )

    async def answered(self, call: OpenCall, command: Any) -> Any:
        """The last of the answers, once nothing happens any more."""
        call.say(command.SerializeToString())
        await trio.sleep(3.0)
        return read(schema.TelemetryCommand, call)[-1]


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[tuple[Place, trio.Nursery]]:
    """Ended as the gateway ends it: calls that are left are over then."""
    async with broker_in_time(directory, **settings) as broker:
        brokers = Brokers(lambda _: broker.client(connect_timeout=1.0))
        async with brokers.running(), trio.open_nursery() as nursery:
            place = Place(broker, brokers)
            nursery.start_soon(place.telemetry.run)
            yield place, nursery
            place.stopping.set()
        assert place.tally.open == 0


def producer(*topics: str) -> Any:
    command = schema.TelemetryCommand()
    command.settings.client_type = schema.PRODUCER
    command.settings.publishing.SetInParent()
    for topic in topics:
        command.settings.publishing.topics.add(name=topic)
    return command


def consumer(group: str, *topics: str, client_type: int = schema.PUSH_CONSUMER, filter_type: int = 1) -> Any:
    command = schema.TelemetryCommand()
    command.settings.client_type = client_type
    command.settings.subscription.group.name = group
    for topic in topics:
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.type, entry.expression.expression = topic, filter_type, "(("
    return command


async def test_settings_are_answered_and_remembered(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, nursery):
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        answer = await place.answered(call, producer("orders"))
        assert (answer.status.code, answer.settings.publishing.validate_message_type) == (Code.OK, True)
        known = place.registry.get(CALLER)
        assert known is not None
        assert known.declared is not None
        assert known.declared.topics == {"orders"}
        assert known.stream is not None
        # Newer ones count.
        await place.answered(call, producer("mails"))
        assert known.declared.topics == {"mails"}
        assert await known.stream.send(b"\x12\x00")
        assert call.replies[-1] == b"\x12\x00"
        assert place.tally.codes == [Code.OK, Code.OK]
    assert not call.failed
    assert known.stream is None


async def test_groups_are_opened_at_their_beginning(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, nursery), place.broker.client() as client:
        await client.send("orders", b"before")
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        answer = await place.answered(call, consumer("billing", "orders", "%DLQ%x", filter_type=2))
        assert answer.status.code == Code.OK
        await client.send("orders", b"after")
        found = await client.fetch("orders", "billing", count=10, start="latest")
        assert [message.body for message in found] == [b"before", b"after"]
        assert (await client.group("rmq.DLQ.x", "billing")).backlog == 0


async def test_a_topic_that_is_not_made_is_no_reason_to_refuse(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(tmp_path, auto_create_topics=False) as (place, nursery),
        place.broker.client() as client,
    ):
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        assert (await place.answered(call, consumer("billing", "orders"))).status.code == Code.OK
        assert "group billing of topic orders is not opened" in caplog.text
        await client.create_topic("orders")
        with pytest.raises(UnknownGroup):
            await client.group("orders", "billing")
        # They come again, and then it is.
        assert (await place.answered(call, consumer("billing", "orders"))).status.code == Code.OK
        assert (await client.group("orders", "billing")).backlog == 0


async def test_settings_are_answered_in_time_also_without_a_broker(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serving(tmp_path) as (place, nursery):
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        assert (await place.answered(call, consumer("billing", "orders"))).status.code == Code.OK
        network = place.broker.network
        reachable, network.faults = network.faults, replace(network.faults, refused=1.0)
        while network.cut_one():
            pass
        call.say(consumer("billing", "mails").SerializeToString())
        await trio.sleep(2.5)
        assert len(call.replies) == 2
        network.faults = reachable


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (consumer("billing", "orders", client_type=schema.LITE_PUSH_CONSUMER), Code.NOT_IMPLEMENTED),
        (consumer("billing", "orders", client_type=9), Code.UNRECOGNIZED_CLIENT_TYPE),
    ],
    ids=["lite", "unknown"],
)
async def test_a_refusal_is_one_command(
    tmp_path: Path, autojump_clock: MockClock, command: Any, code: Code
) -> None:
    async with serving(tmp_path) as (place, nursery):
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        answer = await place.answered(call, command)
        assert (answer.status.code, answer.WhichOneof("command")) == (code, None)
        assert call.is_over
        assert call.failed is None
        assert place.tally.codes == [code]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (consumer("no spaces", "orders").SerializeToString(), Status.INVALID_ARGUMENT),
        (schema.TelemetryCommand(settings={"client_type": 1}).SerializeToString(), Status.INVALID_ARGUMENT),
        (b"\xff", Status.INTERNAL),
    ],
    ids=["group", "neither", "garbage"],
)
async def test_what_is_no_command_fails(
    tmp_path: Path, autojump_clock: MockClock, command: bytes, status: Status
) -> None:
    async with serving(tmp_path) as (place, _):
        call = OpenCall()
        call.say(command)
        await place.telemetry.serve(call)
        assert call.failed is not None
        assert call.failed[0] == status
        assert call.replies == []


async def test_who_does_not_say_who_it_is_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, _):
        call = OpenCall(metadata={})
        await place.telemetry.serve(call)
        assert [answer.status.code for answer in read(schema.TelemetryCommand, call)] == [
            Code.CLIENT_ID_REQUIRED
        ]
        assert call.is_over


async def test_other_commands_are_ignored(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, nursery):
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        call.say(schema.TelemetryCommand(verify_message_result={"nonce": "n"}).SerializeToString())
        await trio.sleep(1.0)
        assert call.replies == []
        assert place.tally.open == 1
        known = place.registry.get(CALLER)
        assert known is not None
        assert known.stream is None, "it waits for its settings"


async def test_the_newest_stream_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, nursery):
        older, newer = OpenCall(), OpenCall()
        for call in (older, newer):
            nursery.start_soon(place.telemetry.serve, call)
            await place.answered(call, producer("orders"))
        known = place.registry.get(CALLER)
        assert known is not None
        stream = known.stream
        older.hang_up()
        await wait_all_tasks_blocked()
        assert known.stream is stream
        newer.hang_up()
        await wait_all_tasks_blocked()
        assert known.stream is None
        assert place.registry.get(CALLER) is known, "it is there for a minute yet"


async def test_a_stream_that_breaks_takes_no_commands(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, nursery):
        call = OpenCall(takes=1)
        nursery.start_soon(place.telemetry.serve, call)
        await place.answered(call, producer("orders"))
        known = place.registry.get(CALLER)
        assert known is not None
        assert known.stream is not None
        assert not await known.stream.send(b"")
        call.say(producer("orders").SerializeToString())
        await wait_all_tasks_blocked()
        assert place.tally.open == 0


class Logged:
    """A client whose token may be revoked."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_connected = True

    @property
    def grants(self) -> list[str] | None:
        if self.error is not None:
            raise self.error
        return ["publish:orders"]

    async def __aenter__(self) -> Logged:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


async def test_rights_are_looked_at_and_a_token_that_is_revoked_ends_its_streams(
    autojump_clock: MockClock,
) -> None:
    clients: list[Logged] = []

    def open_client(token: str) -> Client:
        clients.append(Logged())
        return clients[-1]  # type: ignore[return-value]

    brokers = Brokers(open_client)
    async with brokers.running(), trio.open_nursery() as nursery:
        place = Place(None, brokers)  # type: ignore[arg-type]
        nursery.start_soon(place.telemetry.run)
        calls = [OpenCall(), OpenCall(), OpenCall()]
        for call in calls:
            nursery.start_soon(place.telemetry.serve, call)
        assert (await place.answered(calls[0], producer("orders"))).status.code == Code.OK
        answer = await place.answered(calls[1], producer("orders", "mails"))
        assert answer.status.code == Code.FORBIDDEN
        assert calls[1].is_over
        clients[0].error = TokenRevoked()
        await trio.sleep(2.0)
        for call in (calls[0], calls[2]):
            assert read(schema.TelemetryCommand, call)[-1].status.code == Code.UNAUTHORIZED
            assert call.is_over
        # The next one logs in anew.
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        assert (await place.answered(call, producer("orders"))).status.code == Code.OK
        assert len(clients) == 2
        place.stopping.set()


async def test_who_asks_is_asked_again_with_each_settings(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, nursery):
        call = OpenCall()
        nursery.start_soon(place.telemetry.serve, call)
        assert (await place.answered(call, producer("orders"))).status.code == Code.OK
        place.token = "another"
        assert (await place.answered(call, producer("orders"))).status.code == Code.UNAUTHORIZED
        assert call.is_over


async def test_a_broker_that_cannot_be_reached(autojump_clock: MockClock) -> None:
    class Unreachable(Logged):
        async def __aenter__(self) -> Logged:
            raise NotConnected

    brokers = Brokers(lambda _: Unreachable())  # type: ignore[arg-type, return-value]
    async with brokers.running():
        place = Place(None, brokers)  # type: ignore[arg-type]
        call = OpenCall()
        await place.telemetry.serve(call)
        (answer,) = read(schema.TelemetryCommand, call)
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR


async def test_nothing_begins_when_the_gateway_stops(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving(tmp_path) as (place, _):
        place.stopping.set()
        call = OpenCall()
        with trio.fail_after(5.0):
            await place.telemetry.serve(call)
        assert call.failed is None
        assert call.replies == []
