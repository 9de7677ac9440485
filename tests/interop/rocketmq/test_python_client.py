"""RocketMQ's own client for Python, unchanged, on a real broker and gateway: it sees what it saw of RocketMQ 5.3.3.

That client has packages of its own, so only ``make rocketmq`` runs this, with an interpreter that has them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.rocketmq.known_differences import known_of
from tests.interop.rocketmq.programs import interpreter
from tests.interop.rocketmq.servers import ours
from tests.support.rocketmq.differences import differences, observed
from tests.support.rocketmq.gateway_process import Gateway

HERE: Final = Path(__file__).parent
THEIRS: Final = HERE / "python_of_rocketmq_5_3_3.jsonl"
LIMIT_S: Final = 200
RUN: Final = "python"

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def program() -> str:
    return interpreter()


@pytest.fixture(scope="module")
def gateway(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with ours(tmp_path_factory.mktemp("rocketmq"), [RUN]) as running:
        yield running


def conformance(program: str, gateway: Gateway) -> list[str]:
    done = subprocess.run(
        [program, str(HERE / "python_conformance.py"), gateway.address, RUN],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_it_sees_what_it_sees_of_rocketmq(program: str, gateway: Gateway) -> None:
    theirs = observed(THEIRS.read_text().splitlines())
    assert differences(theirs, observed(conformance(program, gateway)), known_of(RUN)) == []
