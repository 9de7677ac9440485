"""RocketMQ's own client for Java, unchanged, on a real broker and gateway.

The clients come from the registries of their languages, so only ``make interop`` runs this.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.daemon_harness import Daemon
from tests.support.gateway_process import Gateway
from tests.support.registries import Registries, needs, succeed

HERE: Final = Path(__file__).parent
LANGUAGES: Final = ("java",)
ATTEMPTS: Final = 2
"""Of a message that fails each time."""

SEEN: Final[dict[str, dict[str, Any]]] = {
    "normal": {
        "body": "10 €",
        "tag": "red",
        "keys": ["one", "two"],
        "properties": {"colour": "rot", "Größe": "süß \U0001f680"},
        "attempt": 1,
        "sameId": True,
    },
    "acked": {"left": 0},
    "delay": {"bodies": ["last", "on time"], "early": False, "sameId": True},
    "fifo": {"groups": {"group 0": [0, 3, 6, 9], "group 1": [1, 4, 7, 10], "group 2": [2, 5, 8, 11]}},
    "transaction": {"bodies": ["checked", "committed"], "checked": ["checked", "checked in vain"]},
    "retry": {"fails": [1, 2], "works": [1]},
    "filter": {"tag": ["0", "2", "3"], "sql": ["3"]},
    "dead": {"attempts": [1, ATTEMPTS], "bodies": ["fails"]},
}
"""What a client sees, by step. It is what they see of RocketMQ 5.3.3, too: compared by hand, but for ``dead``, which
wants groups there that were made with so many attempts."""

pytestmark = pytest.mark.skipif("TICKWHEEL_INTEROP" not in os.environ, reason="runs with make interop")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rocketmq")
    groups = " ".join(f"dead-{language}={ATTEMPTS}:1s" for language in LANGUAGES)
    flags = ("--fifo-groups", "fifo-*", "--groups", groups)
    with Daemon(folder / "data") as daemon, Gateway(daemon.unix_url, folder, *flags) as running:
        yield running.address


@pytest.fixture(scope="module")
def registries() -> Registries:
    return Registries()


def seen(printed: str) -> dict[str, dict[str, Any]]:
    """What a program has printed, by step."""
    lines = [json.loads(line) for line in printed.splitlines()]
    return {line.pop("what"): line for line in lines}


def at_home(folder: Path) -> dict[str, str]:
    """These clients write logs into the user's home."""
    return {"HOME": str(folder)}


def test_the_client_for_java(address: str, registries: Registries, tmp_path: Path) -> None:
    java, javac, maven = needs("java"), needs("javac"), needs("mvn")
    folder = shutil.copytree(HERE / "java", tmp_path / "java")
    registries.fetch(folder, maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    succeed(folder, javac, "-encoding", "UTF-8", "-cp", "lib/*", "-d", "classes", "Conformance.java")
    options = (f"-Duser.home={tmp_path}", "-Drocketmq.log.level=warn", "-cp", "lib/*:classes")
    assert seen(succeed(folder, java, *options, "Conformance", address)) == SEEN
