"""`tickwheel top`: on a terminal, on none, as JSON."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from datetime import timedelta
from pathlib import Path
from select import select
from time import monotonic

import pytest

from tests.support.processes.cli_harness import PATIENCE_S, PROGRAM, Shell
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync

SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])(?:;\d+)*m")


@pytest.fixture(scope="module")
def daemon(daemon: Daemon) -> Daemon:
    """Has 60 topics."""
    with sync.Client(daemon.url) as client:
        for number in range(60):
            client.create_topic(f"topic-{number:02}")
        client.create_group("topic-07", "waiting")
        client.send_many("topic-07", [b"x"] * 7)
        client.send("topic-59", b"x", delay=timedelta(minutes=30))
        client.pause_topic("topic-03")
    return daemon


class Terminal:
    """One, with the command on it."""

    def __init__(self, url: str, *arguments: str, rows: int = 30, columns: int = 100, **more: str) -> None:
        self.leader, follower = pty.openpty()
        self.before = termios.tcgetattr(follower)
        self._follower = follower
        self.resize(rows, columns)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [*PROGRAM, "top", *arguments],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**environment, "TERM": "xterm-256color", "TICKWHEEL_URL": url, **more},
            start_new_session=True,
        )
        self.raw = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._follower)
        os.close(self.leader)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """And forget what was drawn before."""
        self.raw = b""
        os.write(self.leader, keys.encode())

    def until(self, pattern: str) -> str:
        """What was drawn, once it has this."""
        end_s = monotonic() + PATIENCE_S
        while not re.search(pattern, self.text, re.DOTALL):
            assert monotonic() < end_s, self.text
            self._read(0.2)
        return self.text

    def _read(self, seconds: float) -> None:
        if select([self.leader], [], [], seconds)[0]:
            self.raw += os.read(self.leader, 1 << 16)

    @property
    def text(self) -> str:
        return SEQUENCE.sub(b"", self.raw).decode("utf-8", "replace").replace("\r", "")

    def end(self) -> int:
        """Its exit code."""
        end_s = monotonic() + PATIENCE_S
        while self.process.poll() is None:  # it may have more to say
            assert monotonic() < end_s
            self._read(0.1)
        assert termios.tcgetattr(self._follower)[3] == self.before[3], "the terminal is as it was"
        return self.process.returncode


def test_it_is_drawn_again_and_again(daemon: Daemon) -> None:
    with Terminal(daemon.url) as terminal:
        first = terminal.until(r"q quit")
        assert "within an hour 1" in first
        assert "topic-03 is paused" in first
        assert "topic-07 / waiting has no consumer; 7 messages wait." in first
        rows = re.findall(r"^topic-\d\d.*", first, re.MULTILINE)
        assert rows[0].startswith("topic-07")
        assert 5 < len(rows) < 30
        assert re.search(r"and \d\d more topics", first)
        terminal.press("n")
        terminal.until(r"topic \*.*\ntopic-00")
        terminal.press("r")
        terminal.until(r"topic \*.*\ntopic-59")
        terminal.press("s")
        terminal.until(r"scheduled \*.*\ntopic-59")
        with sync.Client(daemon.url) as client:
            client.send_many("topic-42", [b"x"] * 3, delay=timedelta(days=3))
        terminal.until(r"topic-42 +3 ")
        terminal.until("within 30 days 3")
        terminal.press("q")
        assert terminal.end() == 0


def test_another_size_is_followed_at_once(daemon: Daemon) -> None:
    with Terminal(daemon.url, "--sort", "name", columns=150, rows=20) as terminal:
        terminal.until(r"consumers.*acked/s.*q quit")
        terminal.resize(24, 50)
        terminal.press("")
        os.kill(terminal.process.pid, signal.SIGWINCH)
        narrow = terminal.until(r"topic \*  +scheduled +backlog *\n.*q quit")
        assert "acked/s" not in narrow.rpartition("topic *")[2]
        assert max(map(len, narrow.rpartition("topic *")[2].splitlines())) <= 50
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 0


def test_without_colours(daemon: Daemon) -> None:
    with Terminal(daemon.url) as coloured, Terminal(daemon.url, NO_COLOR="1") as plain:
        coloured.until("q quit")
        plain.until("q quit")
        assert COLOUR.search(coloured.raw)
        assert not COLOUR.search(plain.raw)
        for terminal in (coloured, plain):
            terminal.press("q")
            assert terminal.end() == 0


def test_a_broker_that_goes_is_waited_for(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as running, Terminal(running.url) as terminal:
        terminal.until("q quit")
        running.process.kill()
        terminal.until("Not up to date: ")
        terminal.press("q")
        assert terminal.end() == 0


def test_without_a_terminal(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    refused = shell.run("top", code=1)
    assert b"--once" in refused.stderr
    assert b"no_terminal" in refused.stderr
    with Terminal(daemon.url, TERM="dumb") as terminal:
        terminal.until("no_terminal")
        assert terminal.end() == 1


def test_once(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    text = shell.text("top", "--once", "--sort", "name")
    assert re.findall(r"^topic-\d\d", text, re.MULTILINE) == [f"topic-{number:02}" for number in range(60)]
    assert "\x1b" not in text
    found = shell.json("top")
    assert set(found["coming"]) == {
        *("within a minute", "within an hour", "within a day", "within 30 days", "later")
    }
    assert found["coming"]["within an hour"] == 1
    assert found["per_second"]["sent"] == 0.0
    assert (found["health"]["disk_size_bytes"] or 0) > 0
    (row,) = [one for one in found["topics"] if one["name"] == "topic-07"]
    assert (row["backlog"], row["consumers"], row["paused"]) == (7, 0, False)
    with sync.Client(daemon.url) as client:
        stats = client.stats()
    assert (found["scheduled"], found["version"]) == (stats.scheduled, stats.version)


def test_a_token_that_may_not_look_is_told(tmp_path: Path) -> None:
    shell, data = Shell(tmp_path), str(tmp_path / "data")
    token = str(shell.json("tokens", "create", "ada", "--grant", "publish:*", "--data", data)["token"])
    with Daemon(tmp_path / "data") as running:
        asking = Shell(tmp_path, running.url)
        asking.environment["TICKWHEEL_TOKEN"] = token
        assert b"query:*" in asking.run("top", "--once", code=1).stderr
