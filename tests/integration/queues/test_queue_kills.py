"""Workers of Dramatiq and Taskiq are killed while tasks run, and so is the broker under them: no task is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.run.profile import amount
from tickwheel.dramatiq import TickwheelBroker
from tickwheel.taskiq import TickwheelBroker as TaskiqBroker

PROGRAM = """
import os, time

def note(number):
    time.sleep(0.002)
    file = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{number}\\n".encode())
    os.close(file)

"""
ACTORS = f"""{PROGRAM}
import dramatiq
from tickwheel.dramatiq import TickwheelBroker

dramatiq.set_broker(TickwheelBroker(connect_timeout=60))
work = dramatiq.actor(note, queue_name="work", actor_name="work")
"""
TASKS = f"""{PROGRAM}
from tickwheel.taskiq import TickwheelBroker

broker = TickwheelBroker(topic="work", connect_timeout=60)

@broker.task(task_name="work")
def work(number: int) -> None:
    note(number)
"""


class Workers:
    """The program of a framework, with two processes."""

    def __init__(self, kind: str, folder: Path, url: str) -> None:
        (folder / "tasks.py").write_text(ACTORS if kind == "dramatiq" else TASKS)
        self._words = (
            ["dramatiq", "tasks", "--processes", "2", "--threads", "4", "--worker-shutdown-timeout", "20000"]
            if kind == "dramatiq"
            else ["taskiq", "worker", "tasks:broker", "--workers", "2", "--max-async-tasks", "20"]
        )
        self._folder = folder
        self.notes = folder / "notes"
        self._around = {**os.environ, "TICKWHEEL_URL": url, "NOTES": str(self.notes)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._folder / "worker.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._words],
                cwd=self._folder,
                env=self._around,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def done(self) -> list[int]:
        return [int(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S * 2
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Sender:
    """Sends numbers in a thread until it is told to stop; those that were confirmed."""

    def __init__(self, kind: str, url: str) -> None:
        self.sent: list[int] = []
        self._is_over = threading.Event()
        self._failed: list[BaseException] = []
        self._url = url
        self._thread = threading.Thread(target=self._run, args=(kind,))
        self._thread.start()

    def _run(self, kind: str) -> None:
        try:
            if kind == "dramatiq":
                self._send_to_dramatiq()
            else:
                asyncio.run(self._send_to_taskiq())
        except BaseException as error:
            self._failed.append(error)

    def _send_to_dramatiq(self) -> None:
        broker = TickwheelBroker(self._url)
        while not self._is_over.is_set():
            number = len(self.sent)
            broker.enqueue(
                dramatiq.Message("work", "work", (number,), {}, {}), delay=50 if number % 3 == 0 else None
            )
            self.sent.append(number)
        broker.close()

    async def _send_to_taskiq(self) -> None:
        broker = TaskiqBroker(self._url, topic="work")

        @broker.task(task_name="work")
        def work(number: int) -> None: ...

        await broker.startup()
        while not self._is_over.is_set():
            number = len(self.sent)
            labels = {"delay": 0.05} if number % 3 == 0 else {}
            await work.kicker().with_labels(**labels).kiq(number)
            self.sent.append(number)
        await broker.shutdown()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert not self._failed, self._failed


@contextmanager
def sending(kind: str, url: str) -> Iterator[Sender]:
    sender = Sender(kind, url)
    try:
        yield sender
    finally:
        sender.stop()


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Leases end soon."""
    return {"ack_wait": "2s"}


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


@pytest.fixture(params=["dramatiq", "taskiq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def workers(kind: str, daemon: Daemon, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(kind, tmp_path, daemon.unix_url)
    made.start()
    yield made
    made.kill()


def test_workers_that_are_killed_lose_no_task(kind: str, daemon: Daemon, workers: Workers) -> None:
    with sending(kind, daemon.unix_url) as sender:
        for _ in range(amount("kills") // 10):
            seen = len(workers.done())
            until(lambda seen=seen: len(workers.done()) >= seen + 50, "the workers do nothing")  # type: ignore[misc]
            workers.kill()
            workers.start()
    until(lambda: not set(sender.sent) - set(workers.done()), "tasks are lost")
    assert len(sender.sent) > 50


def test_a_broker_that_is_killed_under_load_loses_no_task(
    kind: str, daemon: Daemon, workers: Workers
) -> None:
    with sending(kind, daemon.unix_url) as sender:
        for _ in range(amount("kills") // 10):
            seen = len(workers.done())
            until(lambda seen=seen: len(workers.done()) >= seen + 50, "the workers do nothing")  # type: ignore[misc]
            daemon.kill()
            daemon.start()
    until(lambda: not set(sender.sent) - set(workers.done()), "tasks are lost")
    # What was acked is not delivered again, but for what was on its way when the broker was killed.
    twice = len(workers.done()) - len(set(workers.done()))
    assert twice <= 200 * (amount("kills") // 10)
