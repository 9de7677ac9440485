"""The dashboard of a large broker: how long each page takes, and how punctual the broker is beside ten open tabs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import numpy as np

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import median_later_ms, p99_later_ms
from tickwheel_bench.load.lateness import lateness_of
from tickwheel_bench.load.messages import DAY_MS, schedule
from tickwheel_bench.program import Program, module_command
from tickwheel_bench.usage import percent, used_s
from tickwheel_web.dashboard.table import PAGES

MESSAGES: Final = 1_000_000
TOPICS: Final = 200
SCHEDULES: Final = 1_000
ROUNDS: Final = 8
_TIMES: Final = 5
_SECONDS: Final = 15.0
_DUE_PER_S: Final = 500
"""So many that two cores have room: else p99 differs by 20 ms between two rounds of the same."""
_AT_A_TIME: Final = 32
_ENDPOINTS: Final = 20
_DEAD_OF_EACH: Final = 50
_TOPICS_WITH_DEAD: Final = 40
_ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
_NO_PAGES: Final = ("/events", "/messages/{id}/body", "/dead/export", "/audit/lines", "/query/rows")
"""Of the table: streams and downloads."""
_MORE_PAGES: Final = (
    "/forecast?horizon=decade",
    "/lateness?window=day",
    "/messages?q=topic:{topic}",
    "/messages?q=topic:{topic}+state:scheduled+due:>1d",
    "/messages?q=topic:{topic}+key:nothing",
    "/dead?topic={topic}",
)
_SCANS: Final = ("/forecast?horizon=hour&topic={topic}",)
"""Whose buttons say so."""


def dashboard(directory: Path, scale: float) -> dict[str, Any]:
    """Each page five times; then 500 due each second without and beside ten tabs, eight times in turns."""
    seconds = max(2.0, _SECONDS * scale)
    with Daemon(directory, "--web", "--web-port", "0") as daemon:
        (url,) = daemon.announced["web"]
        parts = daemon.run(_fill, scale)
        paths = [row.path for row in PAGES if row.method == "GET" and row.path not in _NO_PAGES]
        pages = _loaded(daemon, url, parts, (*paths, *_MORE_PAGES))
        scans = _loaded(daemon, url, parts, _SCANS)
        rounds = [_round(daemon, url, number, seconds) for number in range(ROUNDS)]
    slowest = max(pages, key=lambda path: float(pages[path]["median_ms"]))
    return {
        "messages": int(MESSAGES * scale),
        "topics": TOPICS,
        "schedules": int(SCHEDULES * scale),
        "pages": pages,
        "scans": scans,
        "slowest": slowest,
        "slowest_median_ms": pages[slowest]["median_ms"],
        "slower_than_200_ms": [path for path, found in pages.items() if found["median_ms"] >= 200],
        "rounds": rounds,
        "p99_later_ms": median_later_ms(rounds),
    }


# -- what the broker holds ----------------------------------------------------------------------------------


async def _fill(client: Client, scale: float) -> dict[str, str]:
    """Half of the messages are in one topic; they are due within a year. What stands for the parts of paths."""
    random = np.random.default_rng(1)
    messages = int(MESSAGES * scale)
    for create, count in ((_create_topic, TOPICS), (_create_schedule, int(SCHEDULES * scale))):
        numbers = iter(range(count))
        async with anyio.create_task_group() as group:
            for _ in range(_AT_A_TIME):
                group.start_soon(_each, create, client, numbers)
    for number in range(TOPICS):
        count = messages // 2 if number == 0 else messages // 2 // (TOPICS - 1)
        due_ms = int(time.time() * 1_000) + random.integers(DAY_MS // 24, 365 * DAY_MS, count)
        await schedule(client, _topic(number), due_ms)
        if number < _TOPICS_WITH_DEAD:
            await _give_up(client, _topic(number))
    for number in range(_ENDPOINTS):
        await client.set_endpoint(
            f"endpoint-{number}", topic=_topic(number), url=f"https://example.org/{number}"
        )
    kept = await client.send(_topic(0), b'{"order": 17}', key="order-17", delay_ms=DAY_MS)
    return {
        "topic": _topic(0),
        "group": "billing",
        "id": str(kept.id),
        "schedule": "schedule-0",
        "endpoint": "endpoint-0",
    }


async def _each(
    create: Callable[[Client, int], Awaitable[None]], client: Client, numbers: Iterator[int]
) -> None:
    for number in numbers:
        await create(client, number)


async def _create_topic(client: Client, number: int) -> None:
    await client.create_topic(_topic(number))
    await client.create_group(_topic(number), "billing")


async def _create_schedule(client: Client, number: int) -> None:
    cron = f"{number % 60} {number % 24} * * {'*' if number % 3 else '1-5'}"
    zone = _ZONES[number % len(_ZONES)]
    await client.create_schedule(f"schedule-{number}", _topic(number % TOPICS), cron=cron, tz=zone)


async def _give_up(client: Client, topic: str) -> None:
    """Some dead letters, with a few errors."""
    (await client.send_many(topic, [b"x"] * _DEAD_OF_EACH)).raise_for_errors()
    async with client.subscribe(topic, "billing") as subscription, anyio.create_task_group() as group:
        for number in range(_DEAD_OF_EACH):
            message = await subscription.receive(60)
            assert message is not None
            group.start_soon(partial(message.nack, error=f"error {number % 5}", give_up=True))


def _topic(number: int) -> str:
    return f"topic-{number:03}"


# -- pages --------------------------------------------------------------------------------------------------


def _loaded(
    daemon: Daemon, url: str, parts: dict[str, str], paths: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Of each path: milliseconds until all of it has come, and its size. ``cpu_ms``: what broker
    and web process worked for it, which tells more on a busy machine."""
    found = {}
    for path in paths:
        times_ms, statuses, size = [], [], 0
        cpu_s = _cpu_s(daemon)
        for _ in range(_TIMES):
            begun_s = time.perf_counter()
            try:
                with urlopen(url + path.format(**parts), timeout=60) as answer:
                    size = len(answer.read())
            except HTTPError as refused:  # a scan that took too long
                refused.close()
                statuses.append(refused.code)
            times_ms.append((time.perf_counter() - begun_s) * 1_000)
        found[path] = {
            "median_ms": round(float(np.median(times_ms)), 1),
            "first_ms": round(times_ms[0], 1),
            "max_ms": round(max(times_ms), 1),
            "cpu_ms": round((_cpu_s(daemon) - cpu_s) * 1_000 / _TIMES, 1),
            "bytes": size,
            **({"refused": statuses} if statuses else {}),
        }
    return found


# -- tabs ---------------------------------------------------------------------------------------------------


def _round(daemon: Daemon, url: str, number: int, seconds: float) -> dict[str, Any]:
    """How late messages are without tabs and beside them."""
    without = daemon.run(lateness_of, f"without-{number}", seconds, _DUE_PER_S)
    with Program(module_command("tickwheel_bench.web.tabs", url)) as tabs:
        tabs.line()  # all are open
        processes, begun_s = daemon.processes("web"), time.perf_counter()
        before_s = used_s(processes)
        beside = daemon.run(lateness_of, f"beside-{number}", seconds, _DUE_PER_S)
        cpu_percent = percent(before_s, used_s(processes), time.perf_counter() - begun_s)
        seen = tabs.last()
    return {
        "without": without,
        "beside_ten_tabs": beside,
        "p99_later_ms": p99_later_ms(beside, without),
        "seen_by_tabs": seen,
        **{f"{name}_cpu_percent": value for name, value in cpu_percent.items()},
    }


def _cpu_s(daemon: Daemon) -> float:
    return sum(used_s(daemon.processes("web")).values())
