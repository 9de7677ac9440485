"""Tasks that do nothing, through Dramatiq: on Tickwheel, and on Redis in the same run, taking turns.

Redis is measured as it is by default, which keeps tasks in memory when it confirms them, and with its log synced before
each answer (`appendfsync always`), which is what Tickwheel does.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from tickwheel_bench.contenders import Contender, Redis, Tickwheel
from tickwheel_bench.program import Program, module_command

ROUNDS: Final = 3
TASKS: Final = 10_000
ALONE: Final = 2_000
"""Of one thread that waits for each answer."""
DELAYED: Final = 20_000
DELAYED_AFTER_MS: Final = 30_000
DELAYED_WITHIN_MS: Final = 20_000
CONTENDERS: Final[dict[str, Callable[[Path], Contender]]] = {
    "tickwheel": Tickwheel,
    "redis": partial(Redis, is_durable=False),
    "redis, appendfsync always": Redis,
}


def _program(what: str, url: str, **options: int) -> Program:
    command = module_command("tickwheel_bench.dramatiq.program", what, url, json.dumps(options))
    return Program(command, errors=subprocess.DEVNULL)


def _send(url: str, count: int, threads: int, after_ms: int = 0, within_ms: int = 0) -> dict[str, Any]:
    options = {"count": count, "threads": threads, "after_ms": after_ms, "within_ms": within_ms}
    with _program("send", url, **options) as sender:
        figures: dict[str, Any] = sender.last()
    return figures


@contextmanager
def _worker(url: str, count: int) -> Iterator[Program]:
    """A worker that works."""
    with _program("work", url, count=count) as worker:
        worker.line()
        yield worker


def _round(url: str, scale: float) -> dict[str, float]:
    alone, tasks = int(ALONE * scale), int(TASKS * scale)
    one = _send(url, alone, 1)["per_s"]
    eight = _send(url, tasks, 8)["per_s"]
    with _worker(url, alone + tasks + 2) as worker:
        done = worker.last()
    assert done["is_all"], done
    return {
        "sent_by_one_thread_per_s": one,
        "sent_by_eight_threads_per_s": eight,
        "run_per_s": done["per_s"],
    }


def _delayed(url: str, scale: float) -> dict[str, Any]:
    count = int(DELAYED * scale)
    with _worker(url, count) as worker:
        before = worker.memory_bytes()
        within_ms = int(DELAYED_WITHIN_MS * max(scale, 0.1))
        sent = _send(url, count, 8, int(DELAYED_AFTER_MS * max(scale, 0.1)), within_ms)
        time.sleep(max(0.0, sent["first_due_s"] - time.time() - 1.0))
        waiting = worker.memory_bytes()
        is_ready = sent["first_due_s"] > time.time()
        done = worker.last()
    return {
        "sent_before_the_first_was_due": is_ready,
        "worker_bytes": before,
        "worker_while_they_wait_bytes": waiting,
        "done": done["done"],
        "late_ms": done.get("late_ms"),
    }


def dramatiq(directory: Path, scale: float) -> dict[str, Any]:
    """Prints what each server did; what could not be measured is in ``failed``."""
    if (why := Redis.missing()) is not None:
        return {"failed": [why]}
    names = list(CONTENDERS)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with CONTENDERS[name](directory / f"{number}-{names.index(name)}") as server:
                rounds[name].append(_round(server.url, scale))
    figures: dict[str, Any] = {
        name: {
            what: {"median": median(one[what] for one in of), "all": [round(one[what]) for one in of]}
            for what in of[0]
        }
        for name, of in rounds.items()
    }
    for name in names:
        with CONTENDERS[name](directory / f"delayed-{names.index(name)}") as server:
            figures[name]["delayed"] = _delayed(server.url, scale)
    return figures
