"""The blocking client: what one durable send takes, beside Redis that writes each change to disk before it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tickwheel import sync
from tickwheel_bench.contenders import Redis
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import percentiles
from tickwheel_bench.load.messages import BODY, DAY_MS

ROUND = 200
"""Sends of one kind before it is the next one's turn, so that all meet the same machine."""


def blocking(directory: Path, scale: float) -> dict[str, Any]:
    """Single sends of one thread, milliseconds; processor time of the client for messages that it takes and acks."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(directory / "tickwheel"))
        client = stack.enter_context(sync.Client(daemon.url))
        deliver_at = int(time.time() * 1000) + DAY_MS
        works: dict[str, Callable[[int], object]] = {
            "tickwheel_send": lambda _: client.send("single", BODY),
            "tickwheel_send_later": lambda _: client.send("single", BODY, deliver_at=deliver_at),
        }
        if Redis.missing() is None:
            import redis

            server = stack.enter_context(Redis(directory / "redis"))
            theirs = stack.enter_context(redis.Redis(port=server.port))
            works["redis_zadd"] = lambda number: theirs.zadd("due", {BODY + b"%d" % number: deliver_at})
            works["redis_xadd"] = lambda _: theirs.xadd("stream", {b"body": BODY})
        figures = _alternately(works, max(3, int(25 * scale)))
        if "redis_zadd" in works:
            ratio = figures["tickwheel_send_later_p50_ms"] / figures["redis_zadd_p50_ms"]
            figures["send_later_over_redis_zadd_p50"] = round(ratio, 2)
        return {**figures, **_consumed(client, max(1_000, int(50_000 * scale)))}


def _alternately(works: dict[str, Callable[[int], object]], rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in works}
    number = 0
    for _ in range(rounds + 1):
        for name, work in works.items():
            for _ in range(ROUND):
                number += 1
                start = time.perf_counter()
                work(number)
                times[name].append(time.perf_counter() - start)
    figures: dict[str, Any] = {}
    for name, taken in times.items():
        warm_ms = np.array(taken[ROUND:]) * 1e3
        figures |= {f"{name}_{share}_ms": ms for share, ms in percentiles(warm_ms, "p50", "p99").items()}
    return figures


def _consumed(client: sync.Client, count: int) -> dict[str, Any]:
    for start in range(0, count, 1_000):
        client.send_many("taken", [BODY] * min(1_000, count - start)).raise_for_errors()
    with client.subscribe("taken") as subscription:
        first = subscription.receive(timeout=10)
        assert first is not None
        first.ack()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(count - 1):
            message = subscription.receive(timeout=10)
            assert message is not None
            message.ack()
        seconds, used = time.perf_counter() - began, time.process_time() - used
    return {
        "receive_and_ack_cpu_us": round(used / (count - 1) * 1e6, 1),
        "receive_and_ack_per_s": round((count - 1) / seconds),
    }
