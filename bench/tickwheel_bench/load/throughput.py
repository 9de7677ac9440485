"""Sends, deliveries and acks a second, through the SDK, durable. ``flags`` are the broker's."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.messages import BODY, DAY_MS, fill, work_off


async def _share(tasks: int, work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Runs the same work in several tasks; returns the seconds until all are done."""
    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(work)
    return time.perf_counter() - start


def send_many(directory: Path, scale: float, *flags: str) -> dict[str, Any]:
    """``send_many`` of future messages: one producer process, one connection, several batches in flight."""

    async def work(client: Client) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        deliver_at = int(time.time() * 1000) + DAY_MS
        for size in (500, 1000):
            bodies = [BODY] * size
            batches = int(5_000_000 * scale) // size // 8

            async def producer(bodies: list[bytes] = bodies, batches: int = batches) -> None:
                for _ in range(batches):
                    results = await client.send_many("bulk", bodies, deliver_at=deliver_at)
                    results.raise_for_errors()

            await client.send_many("bulk", bodies, deliver_at=deliver_at)
            seconds = await _share(8, producer)
            figures[f"messages_per_s_batches_of_{size}"] = round(batches * 8 * size / seconds)
        return figures

    with Daemon(directory, *flags) as daemon:
        return daemon.run(work)


def send_single(directory: Path, scale: float, *flags: str) -> dict[str, Any]:
    """``send`` from 64 tasks over one connection: 64 in flight, each waits for its own durable answer."""

    async def work(client: Client) -> dict[str, Any]:
        deliver_at = int(time.time() * 1000) + DAY_MS
        rounds = max(10, int(200_000 * scale) // 64)
        figures: dict[str, Any] = {}
        for name, moment in (("with_automatic_keys", None), ("deliver_at_given", deliver_at)):

            async def producer(moment: int | None = moment) -> None:
                for _ in range(rounds):
                    await client.send("single", BODY, deliver_at=moment)

            await client.send("single", BODY)
            figures[f"messages_per_s_{name}"] = round(rounds * 64 / await _share(64, producer))
        return figures

    with Daemon(directory, *flags) as daemon:
        return daemon.run(work)


def deliver(directory: Path, scale: float, *flags: str) -> dict[str, Any]:
    """One subscriber takes and acks a backlog: by batches, then (another group) one by one."""
    count = int(2_000_000 * scale) // 1000 * 1000

    async def by_batches(client: Client) -> float:
        start = time.perf_counter()
        await work_off(client, "backlog", count, group="batches", credit=20_000, batch=1_000)
        return count / (time.perf_counter() - start)

    async def one_by_one(client: Client) -> float:
        taken, start = 0, time.perf_counter()
        async with client.subscribe("backlog", group="singles", credit=20_000, batch=1_000) as subscription:
            async for message in subscription:
                await message.ack()
                taken += 1
                if taken >= count:
                    break
            await subscription.flush()
        return count / (time.perf_counter() - start)

    async def work(client: Client) -> dict[str, Any]:
        await fill(client, "backlog", count)
        return {
            "messages_per_s_by_batches": round(await by_batches(client)),
            "messages_per_s_one_by_one": round(await one_by_one(client)),
        }

    with Daemon(directory, *flags) as daemon:
        return daemon.run(work)
