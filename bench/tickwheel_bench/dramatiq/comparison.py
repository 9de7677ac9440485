"""Tasks that do nothing, through Dramatiq: on Tickwheel, and on Redis in the same run, taking turns.

Redis is measured as it is by default, which keeps tasks in memory when it confirms them, and with its log synced before
each answer (`appendfsync always`), which is what Tickwheel does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.redis_server import is_installed, redis_server

ROUNDS: Final = 3
TASKS: Final = 10_000
ALONE: Final = 2_000
"""Of one thread that waits for each answer."""
DELAYED: Final = 20_000
DELAYED_AFTER_MS: Final = 30_000
DELAYED_WITHIN_MS: Final = 20_000
_REDIS: Final = {"redis": False, "redis, appendfsync always": True}
"""Whether each is durable."""


@contextmanager
def running(name: str, directory: Path) -> Iterator[str]:
    """A server with nothing in it; its URL."""
    if name in _REDIS:
        with redis_server(directory, is_durable=_REDIS[name]) as port:
            yield f"redis://127.0.0.1:{port}/0"
    else:
        directory.mkdir(parents=True)
        with Daemon(directory) as daemon:
            yield daemon.url


class _Worker:
    """A worker in a process of its own. Use as a context manager."""

    def __init__(self, url: str, count: int) -> None:
        words = _words("work", url, count=count)
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def memory_bytes(self) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("RssAnon:"))

    def figures(self) -> dict[str, Any]:
        """Waits for its end."""
        said, _ = self._process.communicate()
        figures: dict[str, Any] = json.loads(said.splitlines()[-1])
        return figures

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _words(what: str, url: str, **options: int) -> list[str]:
    return [sys.executable, "-m", "tickwheel_bench.dramatiq.program", what, url, json.dumps(options)]


def _send(url: str, count: int, threads: int, after_ms: int = 0, within_ms: int = 0) -> dict[str, Any]:
    words = _words("send", url, count=count, threads=threads, after_ms=after_ms, within_ms=within_ms)
    figures: dict[str, Any] = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return figures


def _round(url: str, scale: float) -> dict[str, float]:
    alone, tasks = int(ALONE * scale), int(TASKS * scale)
    one = _send(url, alone, 1)["per_s"]
    eight = _send(url, tasks, 8)["per_s"]
    with _Worker(url, alone + tasks + 2) as worker:
        done = worker.figures()
    assert done["is_all"], done
    return {
        "sent_by_one_thread_per_s": one,
        "sent_by_eight_threads_per_s": eight,
        "run_per_s": done["per_s"],
    }


def _delayed(url: str, scale: float) -> dict[str, Any]:
    count = int(DELAYED * scale)
    with _Worker(url, count) as worker:
        before = worker.memory_bytes()
        within_ms = int(DELAYED_WITHIN_MS * max(scale, 0.1))
        sent = _send(url, count, 8, int(DELAYED_AFTER_MS * max(scale, 0.1)), within_ms)
        time.sleep(max(0.0, sent["first_due_s"] - time.time() - 1.0))
        waiting = worker.memory_bytes()
        is_ready = sent["first_due_s"] > time.time()
        done = worker.figures()
    return {
        "sent_before_the_first_was_due": is_ready,
        "worker_bytes": before,
        "worker_while_they_wait_bytes": waiting,
        "done": done["done"],
        "late_ms": done.get("late_ms"),
    }


def dramatiq(directory: Path, scale: float) -> dict[str, Any]:
    """Prints what each server did; what could not be measured is in ``failed``."""
    if not is_installed():
        return {"failed": ["redis-server is not on this machine: `apt-get install redis-server` brings it"]}
    names = ["tickwheel", *_REDIS]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with running(name, directory / f"{number}-{names.index(name)}") as url:
                rounds[name].append(_round(url, scale))
    figures: dict[str, Any] = {
        name: {
            what: {"median": median(one[what] for one in of), "all": [round(one[what]) for one in of]}
            for what in of[0]
        }
        for name, of in rounds.items()
    }
    for name in names:
        with running(name, directory / f"delayed-{names.index(name)}") as url:
            figures[name]["delayed"] = _delayed(url, scale)
    return figures
