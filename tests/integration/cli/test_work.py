"""`tickwheel work` as a process, and the page on consumers, as it is written."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import PROGRAM, Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel_bench.processes import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "consumers.md"


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Leases end soon."""
    return {"ack_wait": "2s"}


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def acked(client: tickwheel.sync.Client, topic: str) -> int:
    return sum(group.acked for one in client.topics() if one.name == topic for group in one.groups)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_the_program_of_the_page(daemon: Daemon, shell: Shell, tmp_path: Path) -> None:
    (program,) = blocks("py")
    (tmp_path / "app.py").write_text(program)
    with tickwheel.sync.Client(daemon.url) as client:
        client.send_many("mails", [b"a", b"b"])
        client.send("invoices", b"c")
        process = shell.popen("work", "app:handlers", "--json", "--metrics", "127.0.0.1:0")
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["topics"] == ["mails", "invoices"]
        wait_until(lambda: (acked(client, "mails"), acked(client, "invoices")) == (2, 1))
        figures = get(told["metrics"])[1]
        assert 'tickwheel_work_messages_total{group="default",outcome="done",topic="mails"} 2.0' in figures
        assert 'tickwheel_work_concurrency{group="default",topic="mails"} 50.0' in figures
        assert get(told["metrics"].replace("/metrics", "/readyz")) == (200, "ok\n")
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


SLOW = """
import time, tickwheel
handlers = tickwheel.Handlers()
@handlers.on("mails", concurrency=2)
async def mail(message):
    open(f"begun-{message.body.decode()}-{message.attempt}", "w").close()
    import asyncio
    while message.attempt == 1:
        await asyncio.sleep(0.01)
"""


def begun(folder: Path) -> set[str]:
    return {one.name for one in folder.glob("begun-*")}


def comes_as_a_first_attempt(client: tickwheel.sync.Client) -> None:
    fetched = client.fetch("mails", wait=timedelta(seconds=PATIENCE_S))
    assert fetched.attempts == (1,)
    fetched.ack(confirm=True)


def test_a_second_signal_does_not_wait_and_what_was_handled_was_no_attempt(
    daemon: Daemon, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    with tickwheel.sync.Client(daemon.url) as client:
        client.send("mails", b"a")
        process = shell.popen("work", "app:handlers")
        wait_until(lambda: begun(tmp_path))
        process.terminate()
        assert process.stderr is not None
        wait_until(lambda: b"stops; 1 messages" in process.stderr.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        comes_as_a_first_attempt(client)


IN_A_THREAD = """
import time, tickwheel
handlers = tickwheel.Handlers()
@handlers.on("mails")
def mail(message):
    open(f"begun-{message.body.decode()}-{message.attempt}", "w").close()
    while message.attempt == 1:
        time.sleep(0.01)
"""


def test_a_thread_that_does_not_end_does_not_keep_the_program(
    daemon: Daemon, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(IN_A_THREAD)
    with tickwheel.sync.Client(daemon.url) as client:
        client.send("mails", b"a")
        process = shell.popen("work", "app:handlers", "--drain", "100ms")
        wait_until(lambda: begun(tmp_path))
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        comes_as_a_first_attempt(client)


RELOADED = """
import asyncio, os, tickwheel
handlers = tickwheel.Handlers()
@handlers.on("mails")
async def mail(message):
    open(f"begun-{message.body.decode()}-{message.attempt}", "w").close()
    while not os.path.exists("goes-on"):
        await asyncio.sleep(0.01)
"""


def test_reloading_waits_for_handlers(daemon: Daemon, shell: Shell, tmp_path: Path) -> None:
    """At a change of a file, and at the end: also at a Ctrl-C, which a terminal tells all processes of."""
    pytest.importorskip("watchfiles")
    (tmp_path / "app.py").write_text(RELOADED)
    with tickwheel.sync.Client(daemon.url) as client:
        client.send("mails", b"a")
        with subprocess.Popen(
            [*PROGRAM, "work", "app:handlers", "--reload"],
            cwd=tmp_path,
            env=shell.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stderr is not None
            said = process.stderr
            wait_until(lambda: begun(tmp_path) == {"begun-a-1"})
            (tmp_path / "app.py").write_text(f"{RELOADED}\n")
            _read_until(said, b"stops; 1 messages")
            (tmp_path / "goes-on").touch()
            wait_until(lambda: acked(client, "mails") == 1)
            client.send("mails", b"b")
            wait_until(lambda: acked(client, "mails") == 2)
            (tmp_path / "goes-on").unlink()
            client.send("mails", b"c")
            wait_until(lambda: "begun-c-1" in begun(tmp_path))
            os.killpg(process.pid, signal.SIGINT)
            _read_until(said, b"stops; 1 messages")
            (tmp_path / "goes-on").touch()
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert acked(client, "mails") == 3
        assert begun(tmp_path) == {"begun-a-1", "begun-b-1", "begun-c-1"}


def _read_until(stream: IO[bytes], words: bytes) -> None:
    while line := stream.readline():
        if words in line:
            return
    pytest.fail(f"{words!r} was not said")


def test_what_a_killed_worker_had_comes_again(daemon: Daemon, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    with tickwheel.sync.Client(daemon.url) as client:
        client.send("mails", b"a")
        with shell.popen("work", "app:handlers") as process:
            wait_until(lambda: begun(tmp_path))
            process.kill()
        with shell.popen("work", "app:handlers") as process:
            wait_until(lambda: acked(client, "mails") == 1)
            process.terminate()
        assert begun(tmp_path) == {"begun-a-1", "begun-a-2"}


@pytest.mark.parametrize(
    ("program", "words", "says"),
    [
        (SLOW, ["app"], "module:name"),
        (SLOW, ["nix:handlers"], "no module 'nix'"),
        (SLOW, ["app:nix"], "no 'nix'"),
        (SLOW, ["app:mail"], "no tickwheel.Handlers"),
        ("import nonexistent", ["app:handlers"], "Install nonexistent"),
        ("raise ValueError('too few')", ["app:handlers"], "ValueError: too few"),
        (SLOW, ["app:handlers", "--topic", "other"], "no handler of 'other'"),
        (SLOW, ["app:handlers", "--metrics", "here"], "--metrics"),
        ("import tickwheel\nhandlers = tickwheel.Handlers()", ["app:handlers"], "has no handler"),
        ("import sys; sys.exit('usage: app')", ["app:handlers"], "SystemExit: usage: app"),
        ("import sys; sys.exit()", ["app:handlers"], "SystemExit"),
        ("import nothing_of_the_kind", ["app:handlers"], "nothing_of_the_kind"),
    ],
)
def test_what_is_wrong_is_said(
    program: str, words: list[str], says: str, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(program)
    done = shell.run_process(("work", *words))
    assert done.returncode != 0
    assert says in done.stderr.decode()


def test_a_place_that_is_taken_is_said(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = shell.run_process(("work", "app:handlers", "--metrics", place))
    said = done.stderr.decode()
    assert done.returncode == 1
    assert f"error [cannot_listen]: cannot listen on {place} for --metrics" in said
    assert "a port that is free" in said


def test_the_shortest_program_of_the_page(daemon: Daemon, shell: Shell, tmp_path: Path) -> None:
    first = blocks("python")[0]
    with tickwheel.sync.Client(daemon.url) as client:
        client.send("mails", b"hello")
        with subprocess.Popen(
            [sys.executable, "-c", first], cwd=tmp_path, env=shell.environment, stdout=subprocess.PIPE
        ) as process:
            wait_until(lambda: acked(client, "mails") == 1)
            process.terminate()
            assert process.communicate(timeout=PATIENCE_S)[0] == b"hello\n"
        assert process.returncode == 0


class Deliverer:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, message: tickwheel.Message) -> None:
        self.bodies.append(message.body)


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *values: Any) -> None:
        self.lines.append(text % values)


async def test_the_pieces_of_the_page(daemon: Daemon) -> None:
    """Where it works, a signal ends it when the message is handled; where it raises, that is what it does."""
    deliverer, log = Deliverer(), Log()
    async with tickwheel.Client(daemon.url) as client:
        around: dict[str, Any] = {
            "client": client,
            "send_mail": deliverer,
            "log": log,
            "tickwheel": tickwheel,
            "time": time,
            "timedelta": timedelta,
            **{name: getattr(tickwheel, name) for name in ("Retry", "GiveUp", "RetryPolicy")},
        }
        for block in blocks("python")[1:]:
            if block.startswith("raise "):
                for line in block.splitlines():
                    with pytest.raises((tickwheel.Retry, tickwheel.GiveUp)):
                        exec(line, around)
                continue
            code = compile(block, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with trio.fail_after(PATIENCE_S):
                if "client.work" in block:
                    await client.send("mails", b"hello")
                    expected = len(deliverer.bodies) + 1
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_end_when, lambda: len(deliverer.bodies) == expected)  # noqa: B023
                        await eval(code, around)
                elif isinstance(result := eval(code, around), Awaitable):
                    await result
    assert deliverer.bodies == [b"hello"]
    assert len(log.lines) == 1
    assert around["retry"].attempts == 5


async def _end_when(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
