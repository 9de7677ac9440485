"""One process of Dramatiq: it sends tasks, or works on them. It prints what it saw as JSON.

``python -m tickwheel_bench.dramatiq.program send|work URL '{"count": 1000}'``
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Final

import dramatiq

from tickwheel_bench.figures import percentiles
from tickwheel_bench.processes import memory_bytes_of

QUEUE: Final = "bench"
THREADS: Final = 8
PATIENCE_S: Final = 300.0


def broker_of(url: str) -> dramatiq.Broker:
    """By the scheme of its URL."""
    if url.startswith("redis://"):
        from dramatiq.brokers.redis import RedisBroker

        return RedisBroker(url=url)
    from tickwheel.dramatiq import TickwheelBroker

    return TickwheelBroker(url)


def send(broker: dramatiq.Broker, count: int, threads: int, after_ms: int, within_ms: int) -> dict[str, Any]:
    """Sends no-ops, due now, or spread over ``within_ms`` from ``after_ms`` on."""
    broker.declare_queue(QUEUE)
    if not after_ms:
        # The connection is made before the clock starts; what this leaves is one no-op more.
        broker.enqueue(dramatiq.Message(QUEUE, "noop", (0,), {}, {}))
    began_ms = time.time() * 1_000

    def some(first: int) -> None:
        for number in range(first, count, threads):
            due_ms, delay = 0, None
            if after_ms:
                due_ms = int(began_ms + after_ms + number * within_ms / count)
                delay = max(0, due_ms - int(time.time() * 1_000))
            broker.enqueue(dramatiq.Message(QUEUE, "noop", (due_ms,), {}, {}), delay=delay)

    running = [threading.Thread(target=some, args=(first,)) for first in range(threads)]
    began_s = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    took_s = time.perf_counter() - began_s
    broker.close()
    return {"took_s": took_s, "per_s": count / took_s, "first_due_s": (began_ms + after_ms) / 1_000}


def work(broker: dramatiq.Broker, count: int) -> dict[str, Any]:
    """Works until so many are done: how fast, and how late those with a time were."""
    at_s: list[float] = []
    late_ms: list[float] = []
    is_over = threading.Event()

    @dramatiq.actor(broker=broker, queue_name=QUEUE)
    def noop(due_ms: int) -> None:
        if due_ms:
            late_ms.append(time.time() * 1_000 - due_ms)
        at_s.append(time.perf_counter())
        if len(at_s) >= count:
            is_over.set()

    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    worker.start()
    print("{}", flush=True)
    is_all = is_over.wait(PATIENCE_S)
    memory = memory_bytes_of(os.getpid())
    worker.stop()
    broker.close()
    figures: dict[str, Any] = {"done": len(at_s), "is_all": is_all, "end_bytes": memory}
    if len(at_s) > 1:
        figures["per_s"] = (len(at_s) - 1) / (at_s[-1] - at_s[0])
    if len(late_ms) > 1:
        figures["late_ms"] = percentiles(late_ms, "min", "p50", "p99", "max")
    return figures


def main() -> None:
    """See the module."""
    what, url, options = sys.argv[1:]
    broker = broker_of(url)
    given = json.loads(options)
    figures = send(broker, **given) if what == "send" else work(broker, **given)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
