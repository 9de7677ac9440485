"""What benchmarks run in processes of their own: servers that are killed and come back, and programs that say JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tickwheel_bench.figures import late_figures, median_later_ms, p99_later_ms, percentiles
from tickwheel_bench.processes import children_of, is_gone, listens, wait_until
from tickwheel_bench.program import Program
from tickwheel_bench.server import Server

SERVE = """
import socket, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""


class Script(Server):
    """A server that is a script."""

    def __init__(self, directory: Path, script: str) -> None:
        super().__init__(directory)
        self._script = script

    def command(self) -> list[str]:
        """It is told its port."""
        return [sys.executable, "-c", self._script, str(self.port)]


def test_a_server_that_was_killed_comes_back_on_its_port(tmp_path: Path) -> None:
    with Script(tmp_path / "server", SERVE) as server:
        first, children = server.pid, children_of(server.pid)
        server.kill()
        assert is_gone(first)
        wait_until(lambda: all(map(is_gone, children)))
        assert not listens(server.port)
        server.kill()  # again, which does nothing
        server.start()
        assert listens(server.port)
        assert server.cpu_s() > 0
        assert server.memory_bytes("VmRSS") > 0
    assert not server.is_running()


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="no such disk"),
        Script(tmp_path, "raise SystemExit('no such disk')"),
    ):
        raise AssertionError("it is up")


def test_the_last_that_a_program_says_comes_when_its_input_ends() -> None:
    echo = "import sys; print(1, flush=True); sys.stdin.read(); print('[2]')"
    with Program([sys.executable, "-c", echo]) as program:
        assert program.line() == 1
        assert program.last() == [2]
    with Program([sys.executable, "-c", ""]) as program, pytest.raises(RuntimeError, match="nothing"):
        program.last()


def test_percentiles_have_names() -> None:
    assert percentiles(range(101), "min", "p50", "p99.9", "max", digits=1) == {
        "min": 0.0,
        "p50": 50.0,
        "p99.9": 99.9,
        "max": 100.0,
    }
    assert late_figures([-1.0, 1.0, 3.0], "p50") == {"early": 1, "late_ms": {"p50": 1.0}}


def test_what_something_beside_costs() -> None:
    quiet, busy = {"late_ms": {"p99": 1.0}}, {"late_ms": {"p99": 2.5}}
    assert p99_later_ms(busy, quiet) == 1.5
    assert median_later_ms([{"p99_later_ms": later} for later in (1.0, 9.0, 2.0)]) == 2.0
