"""The shared log on a real Kafka."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
import trio.testing
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.cluster.conftest import Topic
from tests.support.cluster.kafka import ALONE, longest_pause_s, stopped
from tickwheel_bench.cluster.kafka import Kafka
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.kafka.topic import (
    TooFewBrokers,
    TopicDiffers,
    TopicSettings,
    create_topic,
    find_dangers,
)
from tickwheel_broker.sharedlog.shared_log import AppendFailed, OutOfRange, SharedLogUnavailable, Stored

PATIENCE_S = 60


@pytest.fixture
async def log(topic: Topic) -> AsyncIterator[KafkaLog]:
    assert await create_topic(*topic, ALONE)
    with trio.fail_after(PATIENCE_S):
        async with KafkaLog(*topic) as log:
            yield log


async def read(log: KafkaLog, start: int, end: int) -> list[bytes]:
    found: list[Stored] = []
    with trio.fail_after(PATIENCE_S):
        while start + len(found) < end:
            found += await log.read(start + len(found))
    assert [one.offset for one in found] == list(range(start, start + len(found)))
    return [one.record for one in found]


async def append_at_last(log: KafkaLog, record: bytes) -> list[int | None]:
    """Again and again, until Kafka has it."""
    with trio.fail_after(PATIENCE_S):
        while True:
            with suppress(AppendFailed):
                return await log.append([record])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kafkas_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("tickwheel-kafka")]


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


async def test_a_batch_stands_in_order(log: KafkaLog) -> None:
    assert await log.end() == 0
    batches = [[os.urandom(size) for size in (900_000, 1, 0, 40, 700_000)], [b"next"]]
    assert await log.append(batches[0]) == [0, 1, 2, 3, 4]
    assert await log.append(batches[1]) == [5]
    assert await log.end() == 6
    assert await log.first() == 0
    assert await read(log, 0, 6) == batches[0] + batches[1]


async def test_it_is_read_from_anywhere_and_again(log: KafkaLog) -> None:
    records = [b"%d" % number for number in range(2_000)]
    await log.append(records)
    for start in (1_500, 3, 1_999, 0):
        assert await read(log, start, 2_000) == records[start:]


async def test_reading_waits_for_what_comes_and_may_be_cancelled(log: KafkaLog) -> None:
    await log.append([b"first"])
    assert await read(log, 0, 1) == [b"first"]
    for _ in range(5):
        with trio.move_on_after(0.02) as scope:
            await log.read(1)
        assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.append, [b"second"])
        assert (await log.read(1))[0] == Stored(1, b"second")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.read, 2)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await log.read(2)
        nursery.cancel_scope.cancel()


async def test_a_record_is_read_soon_after_it_was_appended(log: KafkaLog) -> None:
    """Half of the time, also where the machine has much else to do for a while."""
    await read(log, 0, (await log.append([b"first"]))[-1] or 1)
    numbers, waits_s = iter(range(1, 501)), list[float]()
    while len(waits_s) < 50 or sorted(waits_s[-50:])[25] >= 0.05:
        number = next(numbers, None)
        assert number is not None, sorted(waits_s)[25]
        async with trio.open_nursery() as nursery:
            began_s = trio.current_time()
            nursery.start_soon(log.append, [b"%d" % number])
            await log.read(number)
            waits_s.append(trio.current_time() - began_s)


async def test_who_waits_for_a_record_takes_no_processor_time(log: KafkaLog) -> None:
    with trio.move_on_after(0.5):
        await log.read(0)
    began = os.times()
    with trio.move_on_after(2):
        await log.read(0)
    ended = os.times()
    assert ended.user + ended.system - began.user - began.system < 0.3


async def test_what_was_deleted_and_what_never_was_cannot_be_read(log: KafkaLog) -> None:
    await log.append([b"%d" % number for number in range(100)])
    assert await read(log, 0, 100)
    await log.delete_before(60)
    assert (await log.first(), await log.end()) == (60, 100)
    with pytest.raises(OutOfRange) as deleted:
        await log.read(0)
    assert (deleted.value.offset, deleted.value.first, deleted.value.is_deleted) == (0, 60, True)
    assert await read(log, deleted.value.first, 100) == [b"%d" % number for number in range(60, 100)]
    with pytest.raises(OutOfRange) as lost:
        await log.read(500)
    assert (lost.value.end, lost.value.is_deleted) == (100, False)
    assert await log.append([b"later"]) == [100]
    assert await read(log, 100, 101) == [b"later"]


async def test_a_cancelled_append_is_settled_before_the_next_one(log: KafkaLog) -> None:
    """It may be there or not, but it does not come later."""
    for number in range(20):
        with trio.move_on_after(0.001 * (number % 4)):
            await log.append([b"%d" % number] * 3)
        with trio.fail_after(PATIENCE_S):
            await log.append([b"sure %d" % number])
    end = await log.end()
    records = await read(log, 0, end)
    sure = [record for record in records if record.startswith(b"sure")]
    assert sure == [b"sure %d" % number for number in range(20)]


async def test_a_record_that_is_too_large_is_an_append_that_failed(log: KafkaLog) -> None:
    with pytest.raises(AppendFailed):
        await log.append([b"fits", bytes(2_000_000)])
    assert await log.append([b"next"]) != [None]


async def test_a_topic_that_is_not_there(topic: Topic) -> None:
    async with KafkaLog(*topic, append_timeout_s=2) as log:
        with pytest.raises(SharedLogUnavailable), trio.fail_after(PATIENCE_S):
            await log.end()
        with trio.move_on_after(1):  # reading waits for it
            await log.read(0)
        with pytest.raises(AppendFailed), trio.fail_after(PATIENCE_S):
            await log.append([b"x"])
        await create_topic(*topic, ALONE)
        assert await append_at_last(log, b"x") == [0]
        assert await read(log, 0, 1) == [b"x"]


async def test_nothing_of_it_outlives_it(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    counts = []
    for _ in range(6):
        async with KafkaLog(*topic) as log:
            for _ in range(4):  # each makes another producer
                with trio.move_on_after(0):
                    await log.append([b"cancelled"])
                with trio.move_on_after(0.001):
                    await log.append([b"cancelled, too"])
            await log.append([b"x"])
            await read(log, 0, 1)
            assert descriptors() < 64
        assert not kafkas_threads()
        counts.append((descriptors(), native_threads()))
    assert counts[-1] == counts[1]


async def test_a_kafka_that_hangs_stops_no_event_loop(kafka: Kafka, topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    async with KafkaLog(*topic) as log:
        await log.append([b"before"])
    async with KafkaLog(*topic, append_timeout_s=1) as log:
        await read(log, 0, 1)

        async def everything() -> None:
            with pytest.raises(AppendFailed):
                await log.append([b"meanwhile"])
            with trio.move_on_after(0.3):
                await log.append([b"and cancelled"])
            with trio.move_on_after(0.3):
                await log.read(1)
            with trio.move_on_after(0.3):
                await log.end()
            with trio.move_on_after(0.3):
                await log.delete_before(1)

        async with stopped(kafka):
            began_s = trio.current_time()
            assert await longest_pause_s(everything) < 0.5
            assert trio.current_time() - began_s < 10
        await append_at_last(log, b"after")
        records = await read(log, 0, await log.end())
        assert (records[0], records[-1]) == (b"before", b"after")


async def test_closing_while_kafka_hangs(kafka: Kafka, topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    async with trio.open_nursery() as nursery, KafkaLog(*topic) as log:
        await log.append([b"x"])
        async with stopped(kafka):
            nursery.start_soon(log.append, [b"y"])
            nursery.start_soon(log.read, 1)
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
            began_s = trio.current_time()
            with trio.CancelScope(shield=True):
                await log.__aexit__()
            assert trio.current_time() - began_s < 10
    assert not kafkas_threads()


async def test_kafka_is_killed_and_comes_back(kafka: Kafka, topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    sure: list[bytes] = []
    async with KafkaLog(*topic) as log:

        async def append() -> None:
            number = 0
            while True:
                number += 1
                record = b"%d" % number
                try:
                    offsets = await log.append([record, record + b"'"])
                except AppendFailed:
                    continue
                assert offsets[0] is None or offsets[1] == offsets[0] + 1
                sure.extend([record, record + b"'"])

        async def more(count: int) -> None:
            while len(sure) < count:
                await trio.sleep(0.01)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                await more(len(sure) + 100)
                kafka.kill()
                await trio.to_thread.run_sync(kafka.start)
                await more(len(sure) + 100)
                nursery.cancel_scope.cancel()
            records = await read(log, 0, await log.end())
    there = iter(records)
    assert all(record in there for record in sure), (
        "a record that was appended is not there, or not in its order"
    )


async def test_a_topic_is_made_once_and_compared(topic: Topic) -> None:
    assert await create_topic(*topic, ALONE) is True
    assert await create_topic(*topic, ALONE) is False
    with pytest.raises(TopicDiffers, match=r"partitions is 1, not 3; min.insync.replicas is 1, not 2"):
        await create_topic(*topic, TopicSettings(partitions=3, replication_factor=1, min_insync_replicas=2))
    with pytest.raises(TooFewBrokers, match="replication"):
        await create_topic(topic.servers, f"{topic.name}-three", TopicSettings(replication_factor=3))


async def test_a_cancelled_call_to_make_a_topic_ends(kafka: Kafka, topic: Topic) -> None:
    async with stopped(kafka):
        with trio.fail_after(PATIENCE_S):
            with trio.move_on_after(0.3):
                await create_topic(*topic, ALONE)


async def test_settings_that_are_changed_later_are_found(topic: Topic) -> None:
    await create_topic(*topic, ALONE)
    assert await find_dangers(*topic) == []
    wrong = {"retention.ms": "1000", "cleanup.policy": "compact", "max.message.bytes": "1000"}
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic.name,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in wrong.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": topic.servers})
    for future in admin.incremental_alter_configs([resource]).values():
        await trio.to_thread.run_sync(future.result)
    found = await find_dangers(*topic)
    assert [one.split(" is ")[0] for one in found] == ["cleanup.policy", "retention.ms", "max.message.bytes"]
