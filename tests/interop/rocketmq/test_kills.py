"""RocketMQ's own clients while the gateway, its workers and its broker are killed: what they were answered holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.interop.rocketmq.programs import interpreter
from tests.support.rocketmq.official_client import GROUP, TOPIC, Official, kill_in_turn
from tests.support.run.profile import amount, limit_s
from tests.support.run.registries import Registries, needs, succeed

HERE: Final = Path(__file__).parent
KILLS: Final = amount("gateway_kills")

pytestmark = pytest.mark.interop

Start: TypeAlias = Callable[[str], Official]


@pytest.fixture(scope="module")
def registries() -> Registries:
    return Registries()


@pytest.fixture(params=["python", "java", "go"])
def start(request: pytest.FixtureRequest, registries: Registries, tmp_path: Path) -> Start:
    """A client of each language."""
    makers = {"python": python, "java": java, "go": go}
    return makers[request.param](registries, tmp_path)


def python(_: Registries, home: Path) -> Start:
    return partial(_begin, HERE, [interpreter(), "python_kill.py"], home)


def java(registries: Registries, home: Path) -> Start:
    _only_with_interop()
    java, javac, maven = needs("java"), needs("javac"), needs("mvn")
    folder = shutil.copytree(HERE / "java", home / "java")
    registries.fetch(folder, maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    succeed(folder, javac, "-encoding", "UTF-8", "-cp", "lib/*", "-d", "classes", "Kill.java")
    options = (f"-Duser.home={home}", "-Drocketmq.log.level=warn", "-cp", "lib/*:classes")
    return partial(_begin, folder, [java, *options, "Kill"], home)


def go(registries: Registries, home: Path) -> Start:
    _only_with_interop()
    go = needs("go")
    folder = shutil.copytree(HERE / "go", home / "go")
    registries.fetch(folder, go, "mod", "download")
    succeed(folder, go, "vet", "./kill")
    succeed(folder, go, "build", "-o", "killed", "./kill")
    return partial(_begin, folder, ["./killed"], home)


def _only_with_interop() -> None:
    if "TICKWHEEL_INTEROP" not in os.environ:
        pytest.skip("runs with make interop")


def _begin(folder: Path, words: list[str], home: Path, address: str) -> Official:
    # They write logs into the user's home; Go's client speaks TLS unless it is told not to.
    environment = {"HOME": str(home), "rocketmq.client.enableSsl": "false"}
    return Official(folder, [*words, address, TOPIC, GROUP], environment, home / "client.log")


@pytest.mark.timeout(limit_s(900))
def test_what_it_was_answered_holds(start: Start, tmp_path: Path) -> None:
    kill_in_turn(start, tmp_path, KILLS)


@pytest.mark.timeout(limit_s(900))
def test_workers_are_killed_one_after_the_other(start: Start, tmp_path: Path) -> None:
    kill_in_turn(start, tmp_path, KILLS, workers=2)
