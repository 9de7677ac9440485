"""Programs as they are started: beats, a worker and the command line, with a daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tickwheel.sync
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.celery.names import schedule_name
from tickwheel.celery.slots import Slot
from tickwheel_bench.processes import wait_until

PROJECT = """
import json, os, time
from celery import Celery

app = Celery("project", broker=os.environ["BROKER"], control="tickwheel.celery.control:Control")
app.conf.update(broker_connection_retry_on_startup=True, beat_schedule=json.load(open("entries.json")))


def write(line):
    with open("notes", "a") as file:
        file.write(line + "\\n")


@app.task(name="note", bind=True)
def note(self, text):
    write(f"{text}: {self.request.id}")


@app.task(name="long", bind=True)
def long(self):
    write(f"began: {self.request.id}")
    while not os.path.exists("enough"):
        time.sleep(0.05)
    write(f"ended: {self.request.id}")
"""


ENTRIES: dict[str, Any] = {
    "each second": {"task": "note", "schedule": 1, "args": ["tick"]},
    "over at once": {"task": "note", "schedule": 1, "args": ["too late"], "options": {"expires": 0.001}},
}
NAME = schedule_name("each second")
WORKER = ("worker", "--loglevel", "INFO", "--concurrency", "1")
BEAT = ("beat", "--scheduler", "tickwheel", "--loglevel", "INFO")


class Project:
    """A folder with an app of Celery, and the programs that were started in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "project.py").write_text(PROJECT)
        self.configure(ENTRIES)
        self._environment = {**os.environ, "BROKER": url, "PYTHONPATH": str(folder)}

    def configure(self, entries: Mapping[str, Any]) -> None:
        """The ``beat_schedule`` of programs that start from now on."""
        (self.folder / "entries.json").write_text(json.dumps(entries))

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program of Celery; SIGTERM at the end."""
        with open(self.folder / f"{words[0]}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "project", *words],
                cwd=self.folder, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, (self.folder / f"{words[0]}.log").read_text()

    def celery(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of Celery that ends by itself."""
        command = [sys.executable, "-m", "celery", "-A", "project", *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def python(self, program: str) -> str:
        """What a program prints that has the app."""
        command = [sys.executable, "-c", f"import tickwheel.celery\nfrom project import *\n{program}"]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def notes(self, about: str) -> list[str]:
        """The ids of the tasks that have written this."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{about}: ") for line in lines if line.startswith(f"{about}: ")]

    def log(self, program: str) -> str:
        """What a program said."""
        return (self.folder / f"{program}.log").read_text()


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


@pytest.fixture
def project(tmp_path: Path, daemon: Daemon) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, daemon.url)


WORKER = ("worker", "--loglevel", "INFO", "--concurrency", "1")
BEAT = ("beat", "--scheduler", "tickwheel", "--loglevel", "INFO")


def test_tasks_come_with_two_beats_and_with_none(project: Project, daemon: Daemon) -> None:
    with project.running(*WORKER):
        with project.running(*BEAT), project.running(*BEAT):
            wait_until(lambda: project.log("beat").count("the broker keeps 3 schedules") == 2)
            wait_until(lambda: len(project.notes("tick")) >= 3)
        with_beats = len(project.notes("tick"))
        wait_until(lambda: len(project.notes("tick")) >= with_beats + 3)
    ids = project.notes("tick")
    with tickwheel.sync.Client(daemon.url) as client:
        start_ms = client.schedule(NAME).start_ms
        assert client.schedule(NAME).missed == 0
    # Each slot has run once, in order, and under its own id.
    assert ids == [Slot(NAME, start_ms + number * 1_000).task_id for number in range(1, len(ids) + 1)]
    # What has expired when it is delivered does not run.
    assert project.notes("too late") == []
    assert "Discarding revoked task: note" in project.log("worker")


def test_an_entry_that_is_gone_runs_no_more(project: Project, daemon: Daemon) -> None:
    with project.running(*BEAT):
        wait_until(lambda: "the broker keeps 3 schedules: 3 new" in project.log("beat"))
    project.configure({"other": {"task": "note", "schedule": 3600, "args": ["other"]}})
    with project.running(*BEAT):
        wait_until(lambda: "the broker keeps 2 schedules: 1 new, 0 changed, 2 deleted" in project.log("beat"))
    with tickwheel.sync.Client(daemon.url) as client:
        assert {one.name for one in client.schedules()} == {"celery.other", "celery.project.backend_cleanup"}


def test_a_revoke_tells_the_truth(project: Project) -> None:
    with project.running(*WORKER):
        running = project.python("print(long.delay().id)")
        wait_until(lambda: project.notes("began") == [running])
        scheduled = project.python("print(note.apply_async(('late',), countdown=3600).id)")
        done = project.celery("tickwheel", "cancel", running, scheduled, "none", "--json")
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout) == {
            running: "already_delivered",
            scheduled: "cancelled",
            "none": "unknown",
        }
        # Workers are told, too: one that runs is ended if that is asked for.
        program = f"print(app.control.revoke({running!r}, terminate=True)[{running!r}])"
        assert project.python(program) == "already_delivered"
        wait_until(lambda: f"Terminating {running}" in project.log("worker"))
        kept = project.python("print(note.apply_async(('kept',), countdown=3600).id)")
        assert project.celery("tickwheel", "reschedule", kept, "--in", "0s").returncode == 0
        wait_until(lambda: project.notes("kept") == [kept])
        seen = project.celery("inspect", "scheduled").stdout
        assert "tickwheel@" in seen
        assert "celery@" in seen
        assert project.celery("tickwheel", "doctor").returncode == 0
    assert project.notes("ended") == project.notes("late") == []
