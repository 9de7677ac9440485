"""Real Kafka for tests: without its jars those that need it are skipped, and fail with ``CI_KAFKA=required``."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from tickwheel_bench.cluster.kafka import LIBS, Kafka, is_there, kafka
from tickwheel_broker.sharedlog.kafka.topic import TopicSettings
from tickwheel_broker.sharedlog.shared_log import SharedLog, Stored

MISSING: Final = (
    f"no Kafka: its jars are not in {LIBS}, or there is no java; `make kafka` fetches it with Maven"
)
IS_REQUIRED: Final = os.environ.get("CI_KAFKA") == "required"
ALONE: Final = TopicSettings(partitions=1, replication_factor=1, min_insync_replicas=1)
"""A topic on one broker."""

PATIENCE_S: Final = 120.0

needs_kafka = pytest.mark.skipif(not is_there() and not IS_REQUIRED, reason=MISSING)
"""For tests that start one themselves."""


def running_kafka(factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """For a fixture: one for all tests of a module."""
    if not is_there():
        if IS_REQUIRED:
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with kafka(kafka_directory(factory)) as broker:
        yield broker


def kafka_directory(factory: pytest.TempPathFactory) -> Path:
    """Where a broker keeps what it has."""
    return factory.mktemp("kafka") / "broker"


async def records_of(log: SharedLog) -> list[Stored]:
    """All that it has left."""
    records: list[Stored] = []
    with trio.fail_after(PATIENCE_S):
        offset, end = await log.first(), await log.end()
        while offset < end:
            records += await log.read(offset)
            offset = records[-1].offset + 1
    return records


@asynccontextmanager
async def stopped(kafka: Kafka) -> AsyncIterator[None]:
    """It hangs."""
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kafka.pid, signal.SIGCONT)


async def longest_pause_s(work: Callable[[], Awaitable[object]]) -> float:
    """How long the event loop did nothing else meanwhile."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s = trio.current_time()
            await trio.sleep(0.01)
            longest_s = max(longest_s, trio.current_time() - began_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await work()
        nursery.cancel_scope.cancel()
    return longest_s
