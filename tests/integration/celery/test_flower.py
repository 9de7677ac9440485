"""Flower, as it is: it shows workers and tasks by their events, and asks workers by remote control."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.celery.test_workers import Place
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel_bench.processes import wait_until

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("flower") is None, reason="Flower is not installed"),
]


class Flower:
    """``celery flower`` on a port of its own."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """The JSON of an answer; None: there is none."""
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            return None

    def asked(self) -> dict[str, Any]:
        """What the worker answers, or has answered before."""
        answers: dict[str, dict[str, Any]] = self.get("/api/workers?refresh=1") or {}
        return next(iter(answers.values()), {})

    def states(self) -> Counter[tuple[str, str]]:
        """How many tasks it shows, by name and state."""
        tasks: dict[str, dict[str, str]] = self.get("/api/tasks") or {}
        return Counter((one["name"], one["state"]) for one in tasks.values())


@contextmanager
def flower(place: Place, port: int) -> Iterator[Flower]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(place.directory),
        "BROKER": place.url,
        "QUEUE": place.queue,
        "FLOWER_UNAUTHENTICATED_API": "true",
    }
    words = [sys.executable, "-m", "celery", "-A", "app", "flower", f"--port={port}", "--address=127.0.0.1"]
    with (place.directory / "flower.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=place.directory, env=environment, stdout=log, stderr=log)
    try:
        one = Flower(port)
        wait_until(lambda: one.get("/api/workers") is not None, (place.directory / "flower.log").read_text)
        yield one
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def test_it_shows_workers_and_tasks(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    place = Place(daemon.url, queue, tmp_path)
    with (
        place.app,
        place.worker("--pool", "threads", "-c", "1", "--task-events"),
        flower(place, free_port()) as shown,
    ):
        wait_until(lambda: (shown.get("/workers?json=1") or {}).get("data"))
        for number in range(3):
            place.send("note", f"n{number}")
        place.send("slow")  # without its arguments
        expected = Counter({("note", "SUCCESS"): 3, ("slow", "FAILURE"): 1})
        wait_until(lambda: shown.states() == expected, lambda: shown.states())
        (worker,) = shown.get("/workers?json=1")["data"]
        assert (worker["status"], worker["task-succeeded"], worker["task-failed"]) == (True, 3, 1)
        # By remote control, which it waits a second for.
        totals = {"note": 3, "slow": 1}
        wait_until(lambda: shown.asked().get("stats", {}).get("total") == totals, shown.asked)
        assert [one["name"] for one in shown.asked()["active_queues"]] == [queue]
