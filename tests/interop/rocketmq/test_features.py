"""Versions of RocketMQ's client for Java, unchanged, with the gateway: in plain text, and with TLS and access keys.

What each can do is as it is written down in ``features.json``; ``TICKWHEEL_RECORD=1`` writes it. The program is
compiled with the newest version; where an older one lacks a method, it says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.interop.rocketmq.programs import JAVA_VERSIONS, Program, java_with, printed
from tests.interop.rocketmq.servers import ours
from tests.support.rocketmq.differences import observed
from tests.support.rocketmq.features import STEPS, cells, record, recorded
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.rocketmq.guarded_gateway import Guarded
from tests.support.run.registries import Registries

LIMIT_S: Final = 600

PLAIN: Final = "plain text"
SECURE: Final = "TLS, access keys"
RUNS: Final = [
    *((version, PLAIN) for version in JAVA_VERSIONS[1:]),
    *((version, SECURE) for version in JAVA_VERSIONS),
]
"""The oldest has no way to switch TLS off."""

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(LIMIT_S),
]


def run_of(version: str, how: str) -> str:
    """The name of a run: part of topics and groups."""
    return f"{version}_{how.split()[0].strip(',')}".replace(".", "_")


def runs_of(how: str) -> list[str]:
    return [run_of(*one) for one in RUNS if one[1] == how]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with ours(tmp_path_factory.mktemp("ours"), runs_of(PLAIN)) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    return Guarded(tmp_path_factory.mktemp("guarded"), {"all": "all:*"})


@pytest.fixture(scope="module")
def secure(guarded: Guarded) -> Iterator[Gateway]:
    """It takes who has TLS and access keys."""
    with ours(guarded.data.parent, runs_of(SECURE), *guarded.flags) as running:
        yield running


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    return java_with(JAVA_VERSIONS, tmp_path_factory.mktemp("java"), Registries(LIMIT_S))


@pytest.mark.parametrize(("version", "how"), RUNS)
def test_what_a_version_can_do(
    version: str, how: str, request: pytest.FixtureRequest, programs: dict[str, Program]
) -> None:
    words = [run_of(version, how)]
    if how == SECURE:
        address = request.getfixturevalue("secure").address
        pair = request.getfixturevalue("guarded").pairs["all"]
        words += ["--tls", "--access", pair.access_key, pair.secret_key]
    else:
        address = request.getfixturevalue("gateway").address
    done = printed(programs[version], address, *words, *map(str, STEPS), limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = cells(observed(done.stdout.splitlines()))
    client = f"Java {version}, {how}"
    if "TICKWHEEL_RECORD" in os.environ:
        record(client, found)
    assert recorded().get(client) == found, json.dumps(found, indent=2)
