"""Where the queues of a topic are, at a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.clients.in_time import broker_in_time
from tests.support.rocketmq.gateway_call import CALLER, asked
from tickwheel import Client
from tickwheel_gateway.calls.routes import Routes
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import BUSY_S, Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused

TYPES = [schema.NORMAL, schema.FIFO, schema.DELAY, schema.TRANSACTION]


def route(topic: str, *addresses: tuple[str, int]) -> Any:
    request = schema.QueryRouteRequest()
    request.topic.name, request.topic.resource_namespace = topic, "ns"
    for host, port in addresses:
        request.endpoints.scheme = schema.IPV4
        request.endpoints.addresses.add(host=host, port=port)
    return request


def assignment(topic: str, group: str) -> Any:
    request = schema.QueryAssignmentRequest()
    request.topic.name, request.group.name = topic, group
    return request


def without_broker(caller: Caller = CALLER) -> Asked:
    """Of a broker that may do everything; it is never asked."""
    return asked(Client("tickwheel://simulated:1"), caller=caller)


async def queues(config: Config, request: Any, caller: Caller = CALLER) -> list[Any]:
    answered = await Routes(config, Registry()).route(without_broker(caller), request)
    assert answered.status.code == Code.OK
    return list(answered.message_queues)


async def test_a_queue_is_where_the_client_has_come() -> None:
    request = route("orders", ("10.0.0.1", 8_081), ("10.0.0.2", 8_081))
    (queue,) = await queues(Config(), request)
    assert queue.topic == request.topic
    assert (queue.id, queue.permission) == (0, schema.READ_WRITE)
    assert (queue.broker.name, queue.broker.id) == ("tickwheel", 0)
    assert queue.broker.endpoints == request.endpoints
    assert list(queue.accept_message_types) == TYPES


@pytest.mark.parametrize(
    ("advertise", "local", "scheme"),
    [
        (None, ("192.0.2.1", 8_081), schema.IPV4),
        (None, ("2001:db8::1", 8_081), schema.IPV6),
        (("broker.example", 443), ("192.0.2.1", 8_081), schema.DOMAIN_NAME),
    ],
)
async def test_endpoints_that_the_client_has_not_said(
    advertise: tuple[str, int] | None, local: tuple[str, int], scheme: int
) -> None:
    caller = Caller("host@1@0", local=local)
    (queue,) = await queues(Config(advertise=advertise), route("orders"), caller)
    (address,) = queue.broker.endpoints.addresses
    assert (address.host, address.port) == (advertise or local)
    assert queue.broker.endpoints.scheme == scheme


async def test_what_is_advertised_counts_more_than_what_was_asked() -> None:
    (queue,) = await queues(Config(advertise=("192.0.2.9", 1)), route("orders", ("10.0.0.1", 2)))
    assert [one.host for one in queue.broker.endpoints.addresses] == ["192.0.2.9"]


async def test_more_queues() -> None:
    assert [queue.id for queue in await queues(Config(queues=3), route("orders"))] == [0, 1, 2]


@pytest.mark.parametrize(
    ("language", "version", "is_told"),
    [
        ("JAVA", (5, 2, 0), True),
        ("JAVA", (5, 1, 9), False),
        ("JAVA", (), False),
        ("DOTNET", (5, 1, 0), False),
        ("DOTNET", (5, 2, 1), True),
        ("PYTHON", (5, 0, 0), True),
        ("HTTP", (), True),
    ],
)
async def test_priorities_are_told_to_clients_that_know_them(
    language: str, version: tuple[int, ...], is_told: bool
) -> None:
    caller = Caller("host@1@0", language, version, local=("127.0.0.1", 1))
    config = Config(priority_topics=("urgent*",))
    (queue,) = await queues(config, route("urgent-mails"), caller)
    assert list(queue.accept_message_types) == TYPES + [schema.PRIORITY] * is_told
    (queue,) = await queues(config, route("mails"), caller)
    assert list(queue.accept_message_types) == TYPES


async def test_a_topic_that_is_not_there(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with broker_in_time(tmp_path, auto_create_topics=False) as place, place.client() as client:
        await client.create_topic("rmq.DLQ.mails")
        routes = Routes(Config(creates_topics=False), Registry())
        with pytest.raises(Refused) as caught:
            await routes.route(asked(client), route("orders"))
        assert caught.value.code == Code.TOPIC_NOT_FOUND
        assert caught.value.text == (
            "CODE: 17  DESC: No topic route info in name server for the topic: orders"
        )
        assert (await routes.route(asked(client), route("%DLQ%mails"))).status.code == Code.OK
        with pytest.raises(Refused):
            await routes.assignment(asked(client), assignment("orders", "billing"))


@pytest.mark.parametrize("name", ["", " ", "no spaces", "rmq%x", "x" * 128])
async def test_names_that_are_none(name: str) -> None:
    with pytest.raises(Refused) as caught:
        await Routes(Config(), Registry()).route(without_broker(), route(name))
    assert caught.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize(
    ("queues", "group", "numbers"),
    [
        (1, "billing", [-1]),
        (3, "billing", [0, 1, 2]),
        (1, "billing-fifo", [0]),
        (3, "billing-fifo", [0]),
    ],
)
async def test_a_push_consumer_has_a_receive_for_each_queue_of_its_assignment(
    tmp_path: Path, autojump_clock: MockClock, queues: int, group: str, numbers: list[int]
) -> None:
    async with broker_in_time(tmp_path) as place, place.client() as client:
        routes = Routes(Config(fifo_groups=("*-fifo",), queues=queues), Registry())
        answered = await routes.assignment(asked(client), assignment("orders", group))
        assert [each.message_queue.id for each in answered.assignments] == numbers
        assert all(each.message_queue.permission == schema.READ_WRITE for each in answered.assignments)


@pytest.mark.parametrize(
    ("queues", "group", "busy"),
    [(1, "billing", [-1, 0, 1]), (3, "billing", [0, 1, 2]), (1, "billing-fifo", [0])],
)
async def test_a_push_consumer_that_is_busy_has_two_more_receives(
    tmp_path: Path, autojump_clock: MockClock, queues: int, group: str, busy: list[int]
) -> None:
    registry = Registry()
    routes = Routes(Config(fifo_groups=("*-fifo",), queues=queues), registry)

    async def numbers(topic: str, group: str, caller: Caller = CALLER) -> list[int]:
        answered = await routes.assignment(asked(client, caller=caller), assignment(topic, group))
        return [each.message_queue.id for each in answered.assignments]

    async with broker_in_time(tmp_path) as place, place.client() as client:
        idle = await numbers("orders", group)
        registry.heard(CALLER).took("orders", group, all_it_may=True)
        assert await numbers("orders", group) == busy
        if group == "billing":
            assert await numbers("mails", group) == idle, "another topic"
        assert await numbers("orders", "others") == await numbers("mails", "others"), "another group"
        other = Caller("other@1@0", local=CALLER.local)
        assert await numbers("orders", group, other) == idle, "another client"
        await trio.sleep(BUSY_S + 1)
        assert await numbers("orders", group) == idle, "some minutes later"


async def test_an_assignment_for_a_group_without_a_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with broker_in_time(tmp_path) as place, place.client() as client:
        routes = Routes(Config(), Registry())
        with pytest.raises(Refused) as caught:
            await routes.assignment(asked(client), assignment("orders", ""))
        assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP
