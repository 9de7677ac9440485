"""A run of the tests outlives its processes: what one was at fails once, and others do the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.workermanage import WorkerController

from tests.support.run.order import LongestFirst

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from tests.support.run import crashes
from tests.support.run.order import LongestFirst

def pytest_configure(config):
    config.pluginmanager.register(crashes)

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return LongestFirst(config, log)
"""
TESTS = """
import os
import pytest
import signal

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    if number in {crashing}:
        os._exit(3) if number else os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.ci
@pytest.mark.parametrize("crashing", [(2,), (0, 1, 2)])
def test_a_run_goes_on_when_processes_crash(tmp_path: Path, crashing: tuple[int, ...]) -> None:
    """In the middle, and at the end, where no other work is left."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(crashing=crashing if name in "bf" else ()))
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={
            name: value for name, value in os.environ.items() if name != "CI"
        }  # with it pytest says all twice
        | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    failed = 2 * len(crashing)
    assert f"{failed} failed, {18 - failed} passed" in ran.stdout, ran.stdout + ran.stderr
    ends = re.findall(r"^gw\d+ (.*): worker 'gw", ran.stdout, re.MULTILINE)
    expected = ["ended with status 3" if number else "was ended by SIGSEGV" for number in crashing]
    assert sorted(ends) == sorted(2 * expected)
    assert ran.stdout.count("in test_it") == 2 * (0 in crashing), "where its threads were"


class Node:
    """A process of tests, as its scheduler sees it."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.sent += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_second_process_crashes_while_the_first_is_being_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda _: ["popen"] * 2)
    config: Any = SimpleNamespace(option=SimpleNamespace())
    scheduler = LongestFirst(config)
    tests = [f"tests/{file}.py::{name}" for file in "abcdefgh" for name in "123"]
    nodes = [cast(WorkerController, Node(name)) for name in "1234"]
    first, second, third, fourth = nodes
    for node in (first, second):
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    assert scheduler.remove_node(first) == tests[0]
    scheduler.add_node(third)
    assert scheduler.remove_node(second) is not None
    scheduler.add_node_collection(third, tests)
    scheduler.schedule()
    scheduler.add_node(fourth)
    scheduler.add_node_collection(fourth, tests)
    scheduler.schedule()
    while not all(cast(Node, node).shutting_down for node in (third, fourth)):
        for node in (third, fourth):
            for index in cast(Node, node).sent[:]:
                cast(Node, node).sent.remove(index)
                scheduler.mark_test_complete(node, index)
    assert scheduler.tests_finished
    assert not scheduler.has_pending
