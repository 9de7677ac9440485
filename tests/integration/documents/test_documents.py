"""Runs the commands and programs of README and quick start as they are written, against a real daemon."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.run.warned import filters_of_a_process
from tickwheel_bench.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
DEFAULT_URL = "tickwheel://127.0.0.1:7411"
START_SECONDS = 30
BLOCK_SECONDS = 60
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def shell_commands(page: str) -> list[str]:
    """The `tickwheel` commands of a page, in order. Installing and `make` have their own jobs."""
    lines = [line for block in blocks_of(page) if block.language == "sh" for line in block.text.splitlines()]
    return [line for line in lines if line.startswith("tickwheel ")]


class Terminal:
    """A directory and an environment in which a page's commands are run one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"tickwheel://127.0.0.1:{self.port}"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # The port is the only thing that differs from what a reader types: 7411 may be taken here.
        self.environment = {
            **os.environ,
            "PATH": path,
            "PYTHONWARNINGS": filters_of_a_process(),
            "TICKWHEEL_URL": self.url,
            "TICKWHEEL_LISTEN_PORT": str(self.port),
        }

    def start(self, command: str) -> subprocess.Popen[bytes]:
        daemon = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self.environment,
            stderr=subprocess.PIPE,
        )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and daemon.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return daemon
        daemon.kill()
        _, errors = daemon.communicate()
        pytest.fail(f"{command} did not start: {errors.decode(errors='replace')}")

    def run(self, arguments: list[str]) -> str:
        done = subprocess.run(
            arguments,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{arguments[-1]}\n\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(params=["README.md", "docs/quick-start.md"])
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def terminal(tmp_path: Path, page: str) -> Iterator[Terminal]:
    """A terminal beside which the page's own `tickwheel serve` runs."""
    terminal = Terminal(tmp_path)
    (serve,) = [command for command in shell_commands(page) if command.startswith("tickwheel serve")]
    daemon = terminal.start(serve)
    try:
        yield terminal
        daemon.terminate()
        _, errors = daemon.communicate(timeout=START_SECONDS)
        assert daemon.returncode == 0, errors.decode(errors="replace")
    finally:
        daemon.kill()
        daemon.wait()
        if daemon.stderr is not None:
            daemon.stderr.close()


def test_every_command_works_as_written(page: str, terminal: Terminal) -> None:
    outputs = {
        command: terminal.run(["bash", "-c", command])
        for command in shell_commands(page)
        if not command.startswith("tickwheel serve")
    }
    assert any("call Ada" in text for command, text in outputs.items() if " receive " in command)


def test_every_program_works_as_written(page: str, terminal: Terminal) -> None:
    programs = [block.text for block in blocks_of(page) if block.language == "python"]
    assert len(programs) >= 3
    for number, program in enumerate(programs):
        script = terminal.directory / f"program_{number}.py"
        script.write_text(program.replace(DEFAULT_URL, terminal.url))
        for _ in range(2):  # a reader tries it again
            terminal.run([sys.executable, str(script)])


@pytest.mark.parametrize("page", ["README.md"], indirect=True)
def test_the_commands_print_what_the_page_says(page: str, terminal: Terminal) -> None:
    """But for times."""
    blocks = blocks_of(page)
    shown = [
        (commands.text, output.text)
        for commands, output in pairwise(blocks)
        if commands.language == "sh" and output.language == "text" and "tickwheel serve" not in commands.text
    ]
    assert shown
    for commands, expected in shown:
        printed = "".join(terminal.run(["bash", "-c", line]) for line in commands.splitlines())
        assert re.sub(TIME, "(time)", printed) == re.sub(TIME, "(time)", expected)
