"""Who is to own the log, by a consumer group of a real Kafka."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial

import trio
import trio.testing

from tests.cluster.conftest import Topic
from tests.support.cluster.kafka import ALONE, PATIENCE_S, longest_pause_s, stopped
from tickwheel_bench.cluster.kafka import Kafka
from tickwheel_broker.sharedlog.kafka.group import KafkaGroup
from tickwheel_broker.sharedlog.kafka.topic import create_topic

SESSION_S = 1.5


def member(topic: Topic, is_healthy: Callable[[], bool] = lambda: True, node: int = 0) -> KafkaGroup:
    return KafkaGroup(*topic, "group-" + topic.name, SESSION_S, node=node, is_healthy=is_healthy)


async def within(seconds: float, wait: Callable[[], Awaitable[None]]) -> float:
    """How long it took."""
    began_s = trio.current_time()
    with trio.fail_after(seconds):
        await wait()
    return trio.current_time() - began_s


async def test_one_of_three_is_chosen_and_leaves_at_once(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    async with member(topic) as first, member(topic) as second, member(topic) as third:
        nodes = [first, second, third]
        first.joined()
        await within(PATIENCE_S, first.wait_chosen)
        second.joined()
        third.joined()
        with trio.move_on_after(2 * SESSION_S):
            await first.wait_not_chosen()
        assert [one.is_chosen for one in nodes] == [True, False, False], "who joins takes nothing away"
        first.left()
        assert not first.is_chosen
        await chosen_of([second, third])
        second.left()
        third.left()
        first.joined()
        await within(PATIENCE_S, first.wait_chosen)


async def test_two_members_with_one_number_are_twins(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    async with member(topic, node=1) as one, member(topic, node=2) as other, member(topic, node=1) as twin:
        for node in (one, other, twin):
            node.joined()

        async def count(node: KafkaGroup, wanted: int) -> None:
            while await node.count_twins() != wanted:
                await trio.sleep(0.05)

        await within(PATIENCE_S, partial(count, one, 1))
        await within(PATIENCE_S, partial(count, twin, 1))
        assert [await other.count_twins() for _ in range(2)] == [0, 0]
        twin.left()
        await within(PATIENCE_S, partial(count, one, 0))


async def chosen_of(nodes: list[KafkaGroup]) -> KafkaGroup:
    """The first that is."""
    with trio.fail_after(PATIENCE_S):
        while not any(one.is_chosen for one in nodes):
            await trio.sleep(0.01)
    (chosen,) = [one for one in nodes if one.is_chosen]
    return chosen


async def test_who_leaves_and_joins_at_once_is_chosen_again(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    async with member(topic) as alone:
        for _ in range(5):
            alone.joined()
            await within(PATIENCE_S, alone.wait_chosen)
            alone.left()
            assert not alone.is_chosen
        alone.joined()
        assert not alone.is_chosen
        await within(PATIENCE_S, alone.wait_chosen)


async def test_a_node_that_is_not_healthy_is_replaced(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    is_healthy = threading.Event()
    is_healthy.set()
    async with member(topic, is_healthy.is_set) as first, member(topic) as second:
        first.joined()
        await within(PATIENCE_S, first.wait_chosen)
        second.joined()
        is_healthy.clear()
        await within(PATIENCE_S, second.wait_chosen)
        is_healthy.set()
        await within(PATIENCE_S, first.wait_not_chosen)
        assert second.is_chosen


async def test_a_node_that_hung_leaves_and_joins_again(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    is_healthy = threading.Event()
    is_healthy.set()
    async with member(topic, is_healthy.is_set) as first, member(topic) as second:
        for turn in range(3):
            first.joined()
            await within(PATIENCE_S, first.wait_chosen)
            second.joined()
            is_healthy.clear()
            await within(PATIENCE_S, second.wait_chosen)
            first.left()
            await trio.sleep(0.05 * turn)
            first.joined()
            await trio.sleep(SESSION_S * turn)
            is_healthy.set()
            second.left()
        await within(PATIENCE_S, first.wait_chosen)


async def test_whose_context_ends_leaves_at_once(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    async with member(topic) as second:
        async with member(topic) as first:
            first.joined()
            await within(PATIENCE_S, first.wait_chosen)
            second.joined()
            await trio.sleep(SESSION_S)
            assert not second.is_chosen
        await within(PATIENCE_S, second.wait_chosen)
    assert not [one for one in threading.enumerate() if one.name.startswith("tickwheel-kafka")]


async def test_kafka_hangs_for_longer_than_a_session(kafka: Kafka, topic: Topic) -> None:
    """The owner stays owner; another one would fence. And closing waits for nothing."""
    await create_topic(*topic, ALONE)
    async with member(topic) as first:
        first.joined()
        await within(PATIENCE_S, first.wait_chosen)
        async with stopped(kafka):
            assert await longest_pause_s(partial(trio.sleep, 3 * SESSION_S)) < 0.5
            assert first.is_chosen
        with trio.move_on_after(4 * SESSION_S):
            await first.wait_not_chosen()
        await within(PATIENCE_S, first.wait_chosen)
        async with stopped(kafka):
            await within(10, lambda: first.__aexit__())
