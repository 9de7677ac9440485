"""What is measured with each broker that this machine has. Each measurement has a directory and a server of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from celery import Celery

from tickwheel_bench.celery.app import make, runs, settings
from tickwheel_bench.celery.brokers import Kind, installed
from tickwheel_bench.celery.workers import Worker
from tickwheel_bench.contenders import Contender
from tickwheel_bench.figures import percentiles
from tickwheel_bench.processes import wait_until

PREFORK: Final = ("--pool", "prefork", "--concurrency", "2")
PATIENCE_S: Final = 300.0
_CALM_S: Final = 5.0
_A_MIB: Final = 1 << 20


class Place:
    """A broker, an application that publishes, and what tasks write."""

    def __init__(self, broker: Contender, directory: Path, options: dict[str, Any]) -> None:
        self.broker = broker
        self.ran = directory / "ran"
        self.app: Celery = make(broker.url, options)
        self._directory = directory
        self._told = settings(broker.url, options, self.ran)
        self._workers = 0

    def worker(self, *flags: str) -> Worker:
        """A new one, to be started."""
        self._workers += 1
        return Worker(self._told, self._directory / f"worker{self._workers}.log", *flags)

    def publish(self, numbers: range, eta_ns: Callable[[int], int] | None = None) -> float:
        """Tasks with these numbers, one after the other, each confirmed by the broker as it does that. Seconds."""
        began_s = time.perf_counter()
        with self.app.producer_pool.acquire(block=True) as producer:
            for number in numbers:
                eta = None if eta_ns is None else datetime.fromtimestamp(eta_ns(number) / 1e9, UTC)
                self.app.send_task("bench.note", (number,), producer=producer, eta=eta)
        return time.perf_counter() - began_s

    def count(self) -> int:
        """How often a task ran."""
        return self.ran.stat().st_size // 16 if self.ran.exists() else 0

    def wait_for(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Until so many have run."""
        wait_until(lambda: self.count() >= count, lambda: f"{self.count()} of {count} ran", patience_s)


@contextmanager
def place(kind: Kind, directory: Path, *, is_killed: bool = False) -> Iterator[Place]:
    """A new broker, and what belongs to it."""
    directory.mkdir(parents=True)
    with kind.open(directory / "broker") as broker:
        options = {**kind.options, **(kind.killed_options if is_killed else {})}
        made = Place(broker, directory, options)
        try:
            yield made
        finally:
            made.app.close()


def throughput(kind: Kind, directory: Path, scale: float) -> dict[str, Any]:
    """Tasks that do nothing: published by one thread, then worked off by two processes."""
    count = max(200, int(20_000 * scale))
    with place(kind, directory) as here:
        seconds = here.publish(range(count))
        used_s = here.broker.cpu_s()
        with here.worker(*PREFORK):
            here.wait_for(count)
        used_s = here.broker.cpu_s() - used_s
        _, ran_ns = runs(here.ran)
    return {
        "published_per_s": round(count / seconds),
        "tasks_per_s": round((count - 1) / ((ran_ns.max() - ran_ns.min()) / 1e9)),
        "broker_cpu_us_a_task": round(used_s / count * 1e6),
    }


def punctuality(kind: Kind, directory: Path, scale: float) -> dict[str, Any]:
    """Tasks with an ETA, due evenly over a while, that a worker has been told of before."""
    count = max(200, int(10_000 * scale))
    spread_ns = int(count / 500 * 1e9)
    with place(kind, directory) as here, here.worker(*PREFORK):
        here.publish(range(1))
        here.wait_for(1)
        # As long as publishing may take, so that none is due before all have been published.
        begin_ns = time.time_ns() + int((5 + count / 300) * 1e9)

        def eta_ns(number: int) -> int:
            return (begin_ns + spread_ns * (number - 1) // count) // 1_000_000 * 1_000_000

        published_s = here.publish(range(1, count + 1), eta_ns)
        late_start = time.time_ns() > begin_ns
        here.wait_for(count + 1)
        numbers, ran_ns = runs(here.ran)
    numbers, ran_ns = numbers[1:], ran_ns[1:]
    late_ms = (ran_ns - np.array([eta_ns(int(number)) for number in numbers])) / 1e6
    late = percentiles(late_ms, "p50", "p99", "max", digits=1)
    return {
        "eta_published_per_s": round(count / published_s),
        "eta_published_too_late": late_start,
        "late_p50_ms": late["p50"],
        "late_p99_ms": late["p99"],
        "late_most_ms": late["max"],
        "early": int((late_ms < 0).sum()),
        "run_twice": len(numbers) - len(np.unique(numbers)),
    }


def memory(kind: Kind, directory: Path, scale: float) -> dict[str, Any]:
    """Tasks that are due tomorrow, and what they cost the worker."""
    count = max(500, int(100_000 * scale))
    tomorrow_ns = time.time_ns() + 86_400 * 10**9
    with place(kind, directory) as here, here.worker(*PREFORK) as worker:
        here.publish(range(1))
        here.wait_for(1)
        before = worker.memory_bytes("VmRSS")
        here.publish(range(1, count + 1), lambda _: tomorrow_ns)
        after = _calm(worker)
    return {
        "worker_mib_before": round(before / _A_MIB, 1),
        "worker_mib_with_etas": round(after / _A_MIB, 1),
        "etas": count,
    }


def _calm(worker: Worker) -> int:
    """The memory of a worker once it does not grow any more."""
    most, since_s, end_s = worker.memory_bytes("VmRSS"), time.monotonic(), time.monotonic() + PATIENCE_S
    while time.monotonic() - since_s < _CALM_S and time.monotonic() < end_s:
        time.sleep(0.2)
        now = worker.memory_bytes("VmRSS")
        if now > most + _A_MIB // 4:
            most, since_s = now, time.monotonic()
    return most


def killed(kind: Kind, directory: Path, scale: float) -> dict[str, Any]:
    """Tasks that are due within a while, while the worker is killed again and again, and the broker twice."""
    count, kills = max(200, int(3_000 * scale)), max(2, int(6 * scale))
    chance = random.Random(1)
    with place(kind, directory, is_killed=True) as here:
        begin_ns = time.time_ns()
        due_ns = [begin_ns + int(chance.uniform(2, 5 + 4 * kills) * 1e9) for _ in range(count)]
        here.publish(range(count), lambda number: due_ns[number])
        worker = here.worker(*PREFORK)
        worker.start()
        try:
            for kill in range(kills):
                seen = here.count()
                wait_until(lambda: here.count() > seen or here.count() >= count, str, PATIENCE_S)  # noqa: B023
                time.sleep(chance.uniform(1, 3))
                if kill % 3 == 1:
                    here.broker.kill()
                    here.broker.start()
                worker.kill()
                worker = here.worker(*PREFORK)
                worker.start()
            lasted_s = _all_ran(here, count)
        finally:
            worker.stop()
        numbers, _ = runs(here.ran)
    found = len(np.unique(numbers))
    return {
        "killed_tasks": count,
        "killed_workers": kills,
        "killed_brokers": (kills + 1) // 3,
        "lost": count - found,
        "run_again": len(numbers) - found,
        "whole_after_last_kill_s": round(lasted_s, 1),
    }


def _all_ran(here: Place, count: int) -> float:
    """How long it took until all had run, or none had for a minute."""
    began_s = news_s = time.monotonic()
    seen = 0
    while time.monotonic() - news_s < 60:
        numbers, _ = runs(here.ran)
        found = len(np.unique(numbers))
        if found >= count:
            break
        if found > seen:
            seen, news_s = found, time.monotonic()
        time.sleep(0.2)
    return news_s - began_s


_FIGURES: Final = {"throughput": throughput, "punctuality": punctuality, "memory": memory, "killed": killed}


def celery(directory: Path, scale: float) -> dict[str, Any]:
    """Figures by name, each with a value for each broker."""
    found: dict[str, Any] = {}
    for measured, figure in _FIGURES.items():
        for name, kind in installed().items():
            for what, value in figure(kind, directory / f"{measured}-{name}", scale).items():
                found.setdefault(what, {})[name] = value
    return found
