"""Versions of RocketMQ's client for Java, unchanged, with the gateway, in plain text and with TLS: what each can do is
as it is written down in ``features.json``; ``TICKWHEEL_RECORD=1`` writes it.

The program is compiled with the newest version; where an older one lacks a method, it says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.rocketmq.programs import JAVA_VERSIONS, java_with, printed
from tests.interop.rocketmq.servers import ours
from tests.support.certificates import Files
from tests.support.gateway_process import Gateway
from tests.support.registries import Registries
from tests.support.rocketmq_differences import observed
from tests.support.rocketmq_features import STEPS, cells, record, recorded

LIMIT_S: Final = 300

TLS: Final = "TLS"
RUNS: Final = [
    *((version, "") for version in JAVA_VERSIONS[1:]),
    *((version, TLS) for version in JAVA_VERSIONS),
]
"""The oldest has no way to switch TLS off."""

pytestmark = [
    pytest.mark.skipif("TICKWHEEL_INTEROP" not in os.environ, reason="runs with make interop"),
    pytest.mark.timeout(LIMIT_S),
]


def run_of(version: str, how: str) -> str:
    """The name of a run: part of topics and groups."""
    return f"{version}{how}".replace(".", "_")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("rocketmq")
    files = Files(folder / "tls")
    tls = ("--tls-certificate", files.certificate_path, "--tls-key", files.key_path)
    with ours(folder, [run_of(*one) for one in RUNS], *tls) as running:
        yield running


@pytest.fixture(scope="module")
def registries() -> Registries:
    return Registries()


@pytest.mark.parametrize(("version", "how"), RUNS)
def test_what_a_version_can_do(
    version: str, how: str, gateway: Gateway, registries: Registries, tmp_path: Path
) -> None:
    program = java_with(version, tmp_path, registries)
    words = ["--tls"] if how else []
    done = printed(program, gateway.address, run_of(version, how), *words, *map(str, STEPS), limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = cells(observed(done.stdout.splitlines()))
    client = f"Java {version}" + (f", {how}" if how else "")
    if "TICKWHEEL_RECORD" in os.environ:
        record(client, found)
    assert recorded().get(client) == found, json.dumps(found, indent=2)
