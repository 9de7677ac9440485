"""Requests whose answer was lost with the connection: the client makes them again, and nothing happens twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.losing import Losing, LosingProxy, Twin
from tickwheel import Client, sync
from tickwheel.errors import (
    RequestUncertain,
    ScheduleExists,
    TopicExists,
    UnknownSchedule,
    UnknownTopic,
)
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.identity import IDENTIFIED
from tickwheel_cli.shared.failures import report_failure

HOUR = timedelta(hours=1)

Arm = Callable[[], None]
Case = Callable[[Any, str, Arm], Awaitable[Any]]
CASES: dict[str, tuple[FrameType, Case]] = {}


def case(lost: FrameType) -> Callable[[Case], Case]:
    """Something of which the answer is lost once: it must tell the same as without the loss."""

    def add(act: Case) -> Case:
        CASES[act.__name__] = lost, act
        return act

    return add


@asynccontextmanager
async def delivered(client: Any, topic: str, **settings: Any) -> AsyncIterator[Any]:
    """A message that a subscriber holds."""
    await client.create_topic(topic, **settings)
    await client.send(topic, b"1", key="k")
    async with client.subscribe(topic) as subscription:
        message = await subscription.receive(PATIENCE_S)
        assert message is not None
        yield message


@case(FrameType.CANCEL_OK)
async def cancel_by_key(client: Any, topic: str, arm: Arm) -> Any:
    await client.send(topic, b"1", key="k", delay=HOUR)
    arm()
    return await client.cancel(topic, key="k")


@case(FrameType.CANCEL_OK)
async def cancel_by_keys(client: Any, topic: str, arm: Arm) -> Any:
    await client.send_many(topic, [b"1", b"2"], keys=["a", "b"], delay=HOUR)
    arm()
    return await client.cancel(topic, keys=["a", "unknown", "b", "a"])


@case(FrameType.CANCEL_OK)
async def cancel_and_stop(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic) as message:
        arm()
        return await client.cancel(id=message.id, stop=True), await client.cancel(id=message.id)


@case(FrameType.RESCHEDULE_OK)
async def reschedule(client: Any, topic: str, arm: Arm) -> Any:
    await client.send(topic, b"1", key="k", delay=HOUR)
    arm()
    return await client.reschedule(topic, keys=["k", "unknown"], delay=2 * HOUR, priority=7)


@case(FrameType.REDELIVER_OK)
async def redeliver(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic) as message:
        arm()
        return await client.redeliver(id=message.id, delay=HOUR)


@case(FrameType.CHANGE_OK)
async def cancel_where(client: Any, topic: str, arm: Arm) -> Any:
    await client.send_many(topic, [b"1"] * 5, delay=HOUR)
    arm()
    return await client.cancel_where(topic)


@case(FrameType.CHANGE_OK)
async def redeliver_where(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic):
        arm()
        return await client.redeliver_where(topic, delay=HOUR)


@case(FrameType.NACK_OK)
async def nack(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic) as message:
        arm()
        return await message.nack(HOUR, "not now")


@case(FrameType.NACK_OK)
async def nack_after_the_last_attempt(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic, max_attempts=1) as message:
        arm()
        return await message.nack(error="no"), len(await client.browse(topic + ".dead"))


@case(FrameType.RETURN_OK)
async def give_back(client: Any, topic: str, arm: Arm) -> Any:
    await client.send(topic, b"1")
    fetched = await client.fetch(topic, wait=timedelta(seconds=30), lease=HOUR)
    arm()
    results = await fetched.give_back()
    again = await client.fetch(topic, wait=timedelta(seconds=30))
    return results, again.epochs, again.attempts


@case(FrameType.ACK_OK)
async def ack(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic) as message:
        arm()
        return await message.ack(confirm=True)


@case(FrameType.TRANSACTION_OK)
async def transaction(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    async with client.transaction() as together:
        together.send(topic, b"1")
        together.send(topic, b"2")
    return len(together.result.ids), len(await client.browse(topic))


@case(FrameType.PREPARE_OK)
async def prepare(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    prepared = await client.prepare(topic, b"1")
    waiting = await client.browse(topic + ".prepared")
    return [one.id for one in waiting] == [prepared.id]


@case(FrameType.PREPARE_OK)
async def prepare_with_a_key(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    prepared = await client.prepare(topic, b"1", key="k")
    message_id = await prepared.commit()
    return [one.id for one in await client.browse(topic)] == [message_id]


@case(FrameType.DECIDE_OK)
async def commit_prepared(client: Any, topic: str, arm: Arm) -> Any:
    ids = [(await client.prepare(topic, b"1")).id for _ in range(3)]
    arm()
    decided = await client.commit_prepared([ids[0], 1 << 40, ids[1]])
    return [result for result, _ in decided], len(await client.browse(topic))


@case(FrameType.DECIDE_OK)
async def rollback_prepared(client: Any, topic: str, arm: Arm) -> Any:
    prepared = await client.prepare(topic, b"1")
    arm()
    return await client.rollback_prepared([prepared.id])


@case(FrameType.REPLAY_DEAD_OK)
async def replay_dead(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic, max_attempts=1) as message:
        await message.nack(error="no")
    arm()
    return await client.replay_dead(topic)


@case(FrameType.SET_TOPIC_OK)
async def create_topic(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    made = await client.create_topic(topic, rate=5, shards=2)
    return made.settings, made.shards, made.messages


@case(FrameType.SET_TOPIC_OK)
async def set_topic(client: Any, topic: str, arm: Arm) -> Any:
    await client.create_topic(topic)
    arm()
    return (await client.pause_topic(topic)).paused


@case(FrameType.DELETE_TOPIC_OK)
async def delete_topic(client: Any, topic: str, arm: Arm) -> Any:
    await client.send_many(topic, [b"1", b"2"], delay=HOUR)
    arm()
    return await client.delete_topic(topic)


@case(FrameType.SET_SCHEDULE_OK)
async def create_schedule(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    made = await client.create_schedule(topic, topic, every=HOUR, body=b"1")
    return made.body, (await client.schedule(topic)).next_ms == made.next_ms


@case(FrameType.SET_SCHEDULE_OK)
async def set_schedule(client: Any, topic: str, arm: Arm) -> Any:
    await client.create_schedule(topic, topic, every=HOUR, body=b"1")
    arm()
    return (await client.set_schedule(topic, body=b"2")).body


@case(FrameType.DELETE_SCHEDULE_OK)
async def delete_schedule(client: Any, topic: str, arm: Arm) -> Any:
    await client.create_schedule(topic, topic, every=HOUR, body=b"1")
    arm()
    return await client.delete_schedule(topic)


@case(FrameType.TRIGGER_SCHEDULE_OK)
async def trigger_schedule(client: Any, topic: str, arm: Arm) -> Any:
    await client.create_schedule(topic, topic, every=HOUR, body=b"1")
    arm()
    message_id = await client.trigger_schedule(topic)
    return [one.id for one in await client.browse(topic)] == [message_id]


@case(FrameType.SET_ENDPOINT_OK)
async def set_endpoint(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    made = await client.set_endpoint(topic, topic=topic, url="https://a.example")
    return made.version, await client.endpoint(topic) == made


@case(FrameType.ENABLE_ENDPOINT_OK)
async def disable_endpoint(client: Any, topic: str, arm: Arm) -> Any:
    await client.set_endpoint(topic, topic=topic, url="https://a.example")
    arm()
    off = await client.disable_endpoint(topic, "410")
    return off.enabled, off.version, off.disabled_reason


@case(FrameType.ENABLE_ENDPOINT_OK)
async def enable_endpoint(client: Any, topic: str, arm: Arm) -> Any:
    await client.set_endpoint(topic, topic=topic, url="https://a.example")
    await client.disable_endpoint(topic, "410")
    arm()
    on = await client.enable_endpoint(topic, expected_version=2)
    return on.enabled, on.version, on.disabled_reason


@case(FrameType.TEST_ENDPOINT_OK)
async def one_test_of_an_endpoint(client: Any, topic: str, arm: Arm) -> Any:
    await client.set_endpoint(topic, topic=topic, url="https://a.example")
    arm()
    message_id = await client.test_endpoint(topic)
    tests = await client.browse(f"{topic}.push-tests")
    return [one.id for one in tests] == [message_id], (await client.endpoint(topic)).version


@case(FrameType.DELETE_ENDPOINT_OK)
async def delete_endpoint(client: Any, topic: str, arm: Arm) -> Any:
    await client.set_endpoint(topic, topic=topic, url="https://a.example")
    arm()
    return await client.delete_endpoint(topic)


@case(FrameType.PURGE_OK)
async def purge(client: Any, topic: str, arm: Arm) -> Any:
    arm()
    return (await client.purge(dry_run=True)).is_done


@case(FrameType.DROP_OK)
async def drop(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic) as message:
        await message.ack(confirm=True)
    await client.send(topic, b"2")
    place = await client.log_place()
    arm()
    done = await client.drop(
        place.log_id, [(message.id, 2)], done_before=datetime.now(UTC) + timedelta(hours=1)
    )
    return done.dropped, done.gone, [count for _, count in done.kept]


@case(FrameType.RESERVE_IDS_OK)
async def reserve_ids(client: Any, topic: str, arm: Arm) -> Any:
    first_id = await client.reserve_ids(1)
    arm()
    return await client.reserve_ids(10) - first_id, await client.reserve_ids(1) - first_id


@case(FrameType.CREATE_GROUP_OK)
async def create_group(client: Any, topic: str, arm: Arm) -> Any:
    await client.create_topic(topic)
    arm()
    return await client.create_group(topic, "g"), len(await client.groups(topic))


@case(FrameType.DELETE_GROUP_OK)
async def delete_group(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic):
        pass
    arm()
    (group,) = await client.groups(topic)
    return await client.delete_group(topic, group.name), await client.groups(topic)


@case(FrameType.SEEK_GROUP_OK)
async def seek_group(client: Any, topic: str, arm: Arm) -> Any:
    async with delivered(client, topic) as message:
        await message.ack(confirm=True)
    (group,) = await client.groups(topic)
    arm()
    return await client.seek_group(topic, group.name, to="earliest"), message.epoch


@case(FrameType.SET_GROUP_OK)
async def set_group(client: Any, topic: str, arm: Arm) -> Any:
    await client.create_topic(topic)
    await client.create_group(topic, "g")
    arm()
    changed = await client.set_group(topic, "g", ignore_ordering_keys=True)
    return changed, (await client.group(topic, "g")).ignores_ordering_keys


def nothing() -> None:
    """Arms no loss."""


@pytest.fixture
def losing() -> Losing:
    return Losing()


def test_each_request_with_an_identity_is_here() -> None:
    lost = {frame_type for frame_type, _ in CASES.values()}
    assert {FrameType(frame_type + 1) for frame_type in IDENTIFIED} <= lost


@pytest.mark.promise("sending-twice", "when-an-answer-is-lost")
@pytest.mark.parametrize("name", CASES)
async def test_the_same_is_told(daemon: Daemon, losing: Losing, name: str) -> None:
    lost, act = CASES[name]
    async with Client(daemon.url, dial=losing.dial) as client:
        expected = await act(client, f"{name}.whole", nothing)

        def arm() -> None:
            losing.lose = lost

        assert await act(client, f"{name}.lost", arm) == expected
        assert losing.lost == 1


async def test_the_same_is_told_by_the_synchronous_client(daemon: Daemon) -> None:
    with LosingProxy(daemon.url) as proxy:
        for name, (lost, act) in CASES.items():

            def arm(lost: FrameType = lost) -> None:
                proxy.lose = lost

            with sync.Client(proxy.url) as client:  # a new one: it waits longer at each loss
                expected = await act(Twin(client), f"{name}.sync", nothing)
                before = proxy.lost
                assert await act(Twin(client), f"{name}.sync-lost", arm) == expected, name
                assert proxy.lost == before + 1, name


def test_the_command_line_says_what_is_uncertain(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(RequestUncertain(), as_json=False) == 4
    assert "request_uncertain" in capsys.readouterr().err


# What is newer than the request ----------------------------------------------------------------------------


@pytest.mark.promise("when-an-answer-is-lost")
@pytest.mark.parametrize("options", [{"key": "k"}, {"keys": ["k"]}, {"key": "k", "stop": True}])
async def test_a_newer_message_with_the_freed_key_is_not_cancelled(
    daemon: Daemon, losing: Losing, options: dict[str, Any]
) -> None:
    topic = f"freed.{len(options)}.{'keys' in options}"
    async with Client(daemon.url, dial=losing.dial) as client, Client(daemon.url) as other:
        await client.send(topic, b"1", key="k", delay=HOUR)
        losing.hold(FrameType.CANCEL_OK)
        async with anyio.create_task_group() as tasks:
            results: list[Any] = []

            async def cancel() -> None:
                results.append(await client.cancel(topic, **options))

            tasks.start_soon(cancel)
            await losing.wait_lost()
            newer = await other.send(topic, b"2", key="k", delay=HOUR)
            assert not newer.duplicate
            losing.release()
        assert results in (["cancelled"], [["cancelled"]])
        assert [one.id for one in await other.browse(topic)] == [newer.id]


async def test_a_key_that_was_not_known_stays_unknown(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial) as client, Client(daemon.url) as other:
        await other.send("later", b"1", delay=HOUR)
        losing.hold(FrameType.CANCEL_OK)
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                assert await client.cancel("later", key="k") == "not_found"

            tasks.start_soon(cancel)
            await losing.wait_lost()
            await other.send("later", b"2", key="k", delay=HOUR)
            losing.release()
        assert await other.cancel("later", key="k") == "cancelled"


async def test_a_topic_that_was_made_again_is_not_deleted(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial) as client, Client(daemon.url) as other:
        await client.send_many("anew", [b"1"] * 3, delay=HOUR)
        losing.hold(FrameType.DELETE_TOPIC_OK)
        async with anyio.create_task_group() as tasks:

            async def delete() -> None:
                assert await client.delete_topic("anew") == 3

            tasks.start_soon(delete)
            await losing.wait_lost()
            await other.send("anew", b"2", delay=HOUR)
            losing.release()
        assert (await other.topic("anew")).messages == 1


async def test_cancel_where_leaves_what_is_newer(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial) as client, Client(daemon.url) as other:
        await client.send_many("where", [b"1"] * 10_000, delay=HOUR)
        losing.hold(FrameType.CHANGE_OK)
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                done = await client.cancel_where("where")
                assert (done.matched, done.results) == (10_000, {"cancelled": 10_000})

            tasks.start_soon(cancel)
            await losing.wait_lost()
            await other.send("where", b"2", delay=HOUR)
            losing.release()
        assert len(await other.browse("where")) == 1


# A broker that is killed in between ------------------------------------------------------------------------


async def told(act: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Checks what is told in the end."""
    assert await act() == expected


@pytest.mark.promise("when-an-answer-is-lost")
async def test_the_same_is_told_after_a_kill(tmp_path: Path, losing: Losing) -> None:
    """The broker is killed between the answer that is lost and the repetition."""
    with Daemon(tmp_path / "data", segment_bytes="64MiB") as daemon:
        for name in ("cancel_by_key", "prepare_with_a_key", "nack", "cancel_where", "delete_topic"):
            lost, act = CASES[name]
            async with Client(daemon.unix_url, dial=losing.dial) as client:
                expected = await act(client, f"{name}.whole", nothing)
            async with Client(daemon.unix_url, dial=losing.dial) as client:
                again = partial(act, client, f"{name}.killed", partial(losing.hold, lost))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(told, again, expected)
                    await losing.wait_lost()
                    daemon.kill()
                    daemon.start()
                    losing.release()


# What cannot be known --------------------------------------------------------------------------------------


@pytest.mark.promise("when-an-answer-is-lost")
async def test_without_an_answer_it_is_uncertain(daemon: Daemon, losing: Losing) -> None:
    async with Client(daemon.url, dial=losing.dial, timeout=1.0) as client:
        await client.send("unsure", b"1", key="k", delay=HOUR)
        losing.hold(FrameType.CANCEL_OK)
        with pytest.raises(RequestUncertain) as caught:
            await client.cancel("unsure", key="k")
        assert caught.value.code == "request_uncertain"
        losing.release()


async def test_closing_the_client_leaves_it_uncertain(daemon: Daemon, losing: Losing) -> None:
    async with anyio.create_task_group() as tasks, Client(daemon.url, dial=losing.dial) as client:
        await client.send("closing", b"1", key="k", delay=HOUR)
        losing.hold(FrameType.CANCEL_OK)

        async def cancel() -> None:
            with pytest.raises(RequestUncertain):
                await client.cancel("closing", key="k")

        tasks.start_soon(cancel)
        await losing.wait_lost()
    losing.release()


async def test_schedules_and_topics_that_are_there_already(daemon: Daemon) -> None:
    async with Client(daemon.url) as client:
        await client.create_schedule("hourly", "hours", every=HOUR, body=b"1")
        with pytest.raises(ScheduleExists):
            await client.create_schedule("hourly", "hours", every=HOUR, body=b"2")
        await client.delete_schedule("hourly")
        with pytest.raises(UnknownSchedule):
            await client.delete_schedule("hourly")
        await client.create_topic("orders", rate=5)
        for other in ({"rate": 6}, {}, {"rate": 5, "shards": 2}):
            with pytest.raises(TopicExists):
                await client.create_topic("orders", **other)
        await client.pause_topic("orders")
        assert (await client.create_topic("orders", rate=5)).paused
        assert await client.delete_topic("orders") == 0
        with pytest.raises(UnknownTopic):
            await client.delete_topic("orders")
        made = await client.create_topic("events", shards=4)
        assert await client.create_topic("events", shards=4) == made
        with pytest.raises(TopicExists):
            await client.create_topic("events")
