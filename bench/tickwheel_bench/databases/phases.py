"""What the outbox benchmark measures on one database: throughput, lateness, and what waiting costs."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import numpy as np

from tickwheel_bench.databases.contenders import (
    Contender,
    MessageTableStream,
    OwnerColumn,
    Poller,
    QueueConsumer,
    Work,
)
from tickwheel_bench.databases.databases import Place, ServerCount
from tickwheel_bench.figures import percentiles

PATIENCE_S: Final = 900.0
_BETWEEN_PROBES_S: Final = 0.3
_OPENED_S: Final = 2.5
"""A hub looks again some times after it was opened, and PostgreSQL's counts come a second later."""
_NS: Final = 1_000_000_000
_SETTLED_S: Final = 0.5
"""What a consumer has to start, before the first message comes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. ``at_once``: consumers one after the other, or, to save time, beside each other."""

    messages: int
    rate: int
    seconds: float
    future_s: tuple[float, float]
    pending: int
    idle_s: float
    probes: int
    at_once: bool


def sizes(scale: float) -> Sizes:
    """The real ones at a scale of 1."""
    return Sizes(
        messages=int(50_000 * scale),
        rate=200 if scale >= 1 else 100,
        seconds=max(3.0, 20 * scale),
        future_s=(0.2, 3.0) if scale >= 1 else (0.2, 0.6),
        pending=int(1_000_000 * scale),
        idle_s=max(5.0, 20 * scale),
        probes=5 if scale >= 1 else 2,
        at_once=scale < 1,
    )


# -- throughput --


def throughput(place: Place, size: Sizes) -> dict[str, Any]:
    """Messages a second, from connecting to the commit of the last; the same number waits in each table."""
    ours: list[Contender] = [MessageTableStream(), QueueConsumer()]
    theirs: list[Contender] = [Poller(1), Poller(10), Poller(100), Poller(100, deletes=True), OwnerColumn()]
    rates: dict[str, float] = {}
    for one in (*ours, *theirs):
        # One by one takes minutes: a fifth says as much, and the first are not the slowest.
        wanted = size.messages // 5 if one.name.endswith("LIMIT 1") else size.messages
        _rate(
            place, one, size.messages // 50, size.messages // 50
        )  # imports, and the first use of everything
        rates[one.name] = _rate(place, one, size.messages, wanted)
    return {
        "messages": size.messages,
        "per_s": {name: round(rate) for name, rate in rates.items()},
        "times_as_fast": {
            one.name: {other.name: round(rates[one.name] / rates[other.name], 2) for other in theirs}
            for one in ours
        },
    }


def _rate(place: Place, contender: Contender, count: int, wanted: int) -> float:
    contender.create(place)
    contender.fill(place, count, time.time_ns() - 60 * _NS)
    work = Work(wanted, PATIENCE_S)
    contender.consume(place, work)
    contender.drop(place)
    assert len(work.numbers) == len(set(work.numbers)) >= wanted, f"{contender.name}: lost or done twice"
    return len(work.numbers) / (work.finished_at - work.started_at)


# -- lateness --


def lateness(place: Place, size: Sizes) -> dict[str, Any]:
    """How late a steady stream is handled: half of it is due at its commit, half later."""
    contenders: list[Contender] = [MessageTableStream(), Poller(100), OwnerColumn()]
    place.execute("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, price BIGINT NOT NULL)")
    started = range(0, len(contenders) << 32, 1 << 32)
    with ThreadPoolExecutor(len(contenders) if size.at_once else 1) as pool:
        figures = pool.map(lambda one, first: _late(place, one, size, first), contenders, started)
        return {
            "messages_per_s": size.rate,
            "seconds": size.seconds,
            "due_after_s": size.future_s,
            "late_ms": {one.name: found for one, found in zip(contenders, figures, strict=True)},
        }


def _late(place: Place, contender: Contender, size: Sizes, first_order: int) -> dict[str, Any]:
    contender.create(place)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    count = int(size.rate * size.seconds)
    producer = context.Process(
        target=_produce,
        args=(place, contender.insert(), size, first_order, theirs),
    )
    producer.start()
    theirs.close()
    try:
        ours.recv()  # it is connected
        ours.send("start")
        # Who never gets them all is waited for, and then what is missing is counted.
        work = Work(count, size.seconds + size.future_s[1] + 20)
        contender.consume(place, work)
        reference = np.array(ours.recv(), np.int64)
    finally:
        ours.close()
        producer.join()
    contender.drop(place)
    return _lateness_of(work, reference)


def _lateness_of(work: Work, reference_ns: Any) -> dict[str, Any]:
    numbers = np.array(work.numbers, np.int64)
    late_ms = (np.array(work.at_ns, np.int64) - reference_ns[numbers]) / 1e6
    distinct = len(np.unique(numbers))
    return {
        **percentiles(late_ms, "p50", "p99", "max", "min", digits=2),
        "lost": work.expected - distinct,
        "twice": len(numbers) - distinct,
    }


def _produce(place: Place, insert: str, size: Sizes, first_order: int, pipe: Pipe) -> None:
    """A process of its own: orders and messages at an even pace, each with a commit. Sends back when each was due;
    what is due at once counts from right before its COMMIT, which so belongs to everybody's lateness."""
    order = place.sql("INSERT INTO orders (id, price) VALUES (%s, %s)")
    insert = place.sql(insert)
    chance = random.Random(20_310_101)
    reference: list[int] = []
    with closing(place.connect()) as connection, closing(connection.cursor()) as cursor:
        pipe.send("connected")
        pipe.recv()
        begin = time.perf_counter() + _SETTLED_S
        for number in range(int(size.rate * size.seconds)):
            time.sleep(max(0.0, begin + number / size.rate - time.perf_counter()))
            wait_s = 0.0 if number % 2 else chance.uniform(*size.future_s)
            if place.kind == "sqlite":
                cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(order, (first_order + number, 100))
            due_ns = time.time_ns() + int(wait_s * _NS)
            cursor.execute(insert, (f"{number:0100d}", due_ns))
            reference.append(due_ns if wait_s else time.time_ns())
            connection.commit()
    pipe.send(reference)


# -- waiting --


def idle(place: Place, size: Sizes) -> dict[str, Any]:
    """What a hub asks of the database while a million messages wait, and how late the first that is due comes then."""
    ours = MessageTableStream()
    ours.create(place)
    ours.fill(place, size.pending, time.time_ns() + 30 * 86_400 * _NS)
    work = Work(size.probes, size.idle_s + 60)
    watcher = _Watcher(place, ours, size)
    watcher.start()
    ours.stream(place, work, watcher.count_statements)
    watcher.join()
    ours.drop(place)
    if watcher.error is not None:
        raise watcher.error
    first_number = np.array(work.numbers, np.int64) - size.pending
    late_ms = (np.array(work.at_ns, np.int64) - np.array(watcher.sent_ns)[first_number]) / 1e6
    return watcher.figures | {
        "pending": size.pending,
        "first_due_late_ms": round(float(late_ms[0]), 2),
        "later_ones_late_ms": [round(float(one), 2) for one in late_ms[1:]],
    }


class _Watcher(threading.Thread):
    """Counts what is executed while nothing happens, then sends some messages that are due at once."""

    def __init__(self, place: Place, ours: Contender, size: Sizes) -> None:
        super().__init__()
        self.figures: dict[str, Any] = {}
        self.sent_ns: list[int] = []
        self.error: Exception | None = None
        self._place, self._ours, self._size = place, ours, size
        self._executed = 0
        self._opened = threading.Event()

    def count_statements(self, database: Any) -> None:
        """Begins, with what is executed through this database's engine."""
        from sqlalchemy import event

        def executed(*_: object) -> None:
            self._executed += 1

        event.listen(database.engine, "before_cursor_execute", executed)
        self._opened.set()

    def run(self) -> None:
        """The thread."""
        try:
            with closing(ServerCount(self._place)) as count:
                self._opened.wait()
                time.sleep(_OPENED_S)
                self._measure(count)
            with closing(self._place.connect()) as connection, closing(connection.cursor()) as cursor:
                self._probe(connection, cursor)
        except Exception as error:
            self.error = error

    def _measure(self, count: ServerCount) -> None:
        asking = _cost_of_asking(count)
        executed, served = self._executed, count.read()
        started, cpu_s = time.perf_counter(), time.process_time()
        time.sleep(self._size.idle_s)
        spent = time.perf_counter() - started
        cpu_s = time.process_time() - cpu_s
        executed, after = self._executed - executed, count.read()
        self.figures = {
            "seconds": round(spent, 1),
            "statements_per_s": round(executed / spent, 3),
            "cpu_percent_of_a_core": round(100 * cpu_s / spent, 2),
        }
        if served is not None and after is not None:
            self.figures["by_the_servers_count_per_s"] = round(max(0, after - served - asking) / spent, 3)

    def _probe(self, connection: Any, cursor: Any) -> None:
        insert = self._place.sql(self._ours.insert())
        for number in range(self._size.pending, self._size.pending + self._size.probes):
            now = time.time_ns()
            cursor.execute(insert, (f"{number:0100d}", now))
            self.sent_ns.append(now)
            connection.commit()
            time.sleep(_BETWEEN_PROBES_S)


def _cost_of_asking(count: ServerCount) -> int:
    """What asking for the count adds to it: the least of some, because the hub may execute something too."""
    counts = []
    for _ in range(4):
        counts.append(count.read() or 0)
        time.sleep(0.2)
    return min(after - before for before, after in pairwise(counts))


PHASES: Final = {"throughput": throughput, "lateness": lateness, "idle": idle}


def measure(place: Place, size: Sizes, phases: Sequence[str] = tuple(PHASES)) -> dict[str, Any]:
    """All that is measured on one database."""
    return {name: PHASES[name](place, size) for name in phases}
