"""Results by ``rpc://``: their topic goes with the process that waited for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import tickwheel.sync
from tests.integration.celery.conftest import Worker
from tests.integration.celery.test_workers import PROGRAM, Place
from tests.support.processes.daemon_harness import Daemon
from tickwheel.celery.replies import ReplyTopics
from tickwheel.celery.transport.envelope import TASK_HEADER
from tickwheel_bench.processes import wait_until

SENDING = """
import os, sys, time
from celery import Celery
import tickwheel.celery

app = Celery("app", broker=sys.argv[1], backend="rpc://")
result = app.send_task("one", queue=sys.argv[2])
try:
    result.get(timeout=0.2)
except Exception as error:
    print(type(error).__name__, flush=True)
if sys.argv[3] == "stays":
    time.sleep(600)
if sys.argv[3] == "forks":
    child = os.fork()
    if child == 0:
        sys.exit()  # its connections are the parent's
    os.waitpid(child, 0)
    print("forked", flush=True)
    sys.stdin.read()
"""
WAITING = """
from celery.result import allow_join_result

@app.task(name="waits")
def waits(text):
    with allow_join_result():
        note(say.delay(text).get(timeout=60))
"""
UUID = re.compile("[0-9a-f-]{36}")


def replies(client: tickwheel.sync.Client) -> set[str]:
    return {topic.name for topic in client.topics() if UUID.fullmatch(topic.name)}


def program(daemon: Daemon, queue: str, directory: Path, end: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SENDING, daemon.url, queue, end]
    one = subprocess.Popen(words, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert one.stdout is not None
    assert one.stdout.readline() == "TimeoutError\n"
    return one


def test_a_process_takes_its_results_with_it(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        before = replies(client)
        with program(daemon, queue, tmp_path, "ends") as one:
            assert one.wait(60) == 0
        assert replies(client) == before
        assert TASK_HEADER in client.browse(queue)[0].headers  # it has sent


def test_a_child_of_a_process_takes_nothing_with_it(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        before = replies(client)
        with program(daemon, queue, tmp_path, "forks") as one:
            assert one.stdout is not None
            assert one.stdout.readline() == "forked\n"
            assert len(replies(client) - before) == 1
            one.communicate()
        assert replies(client) == before


def test_a_result_that_is_too_late_leaves_nothing(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    """And one that is awaited later comes."""
    sending = (
        "from app import app, say; import sys, tickwheel.celery; app.conf.result_backend = 'rpc://'\n"
        "result = say.apply_async((sys.argv[1],), ignore_result=False)\n"
        "if sys.argv[1] == 'awaited': print(result.get(timeout=60))\n"
    )
    place = Place(daemon.url, queue, tmp_path)
    (tmp_path / "app.py").write_text(PROGRAM)
    environment = {**os.environ, "BROKER": daemon.url, "QUEUE": queue, "OUT": str(place.out)}
    said = partial(
        subprocess.run, cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    with tickwheel.sync.Client(daemon.url) as client, place.app:
        before = replies(client)
        said([sys.executable, "-c", sending, "too late"])
        with place.worker("--pool", "prefork", "-c", "1", RESULT_BACKEND="rpc://") as worker:
            worker.wait_for("succeeded")
            assert said([sys.executable, "-c", sending, "awaited"]).stdout == "None\n"
            wait_until(lambda: client.group(queue, "celery").backlog == 0)
            assert worker.stop() == 0
        assert place.lines() == ["too late", "awaited"]
        assert replies(client) == before


def test_results_of_what_a_task_sends(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    """They come if it waits for them, and else leave nothing."""
    place = Place(daemon.url, queue, tmp_path)
    program = PROGRAM.replace("task_ignore_result=True", "result_backend='rpc://'") + WAITING
    with (
        tickwheel.sync.Client(daemon.url) as client,
        place.app,
        Worker(program, tmp_path, "-c", "2", BROKER=daemon.url, QUEUE=queue, OUT=str(place.out)) as worker,
    ):
        before = replies(client)
        place.send("parent", "child")
        place.send("waits", "awaited")
        wait_until(lambda: len(place.lines()) == 4, place.lines)
        assert Counter(place.lines()) == Counter(["child", "child", "awaited", "None"])
        wait_until(lambda: client.group(queue, "celery").backlog == 0)
        assert len(replies(client) - before) <= 1, "of the one that waits"
        assert worker.stop() == 0
        assert replies(client) == before


def test_what_a_killed_process_leaves_is_swept(daemon: Daemon, queue: str, tmp_path: Path) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        before = replies(client)
        with program(daemon, queue, tmp_path, "stays") as one:
            (left,) = replies(client) - before
            one.send_signal(signal.SIGKILL)
            one.wait(60)
        assert left in wait_until(lambda: ReplyTopics(client).sweep(timedelta(0)))
        assert left not in replies(client)
