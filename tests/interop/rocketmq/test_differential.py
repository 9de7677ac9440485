"""RocketMQ's own clients, unchanged: each sees of the gateway what it sees of a real RocketMQ 5.3.3, but for what is
known and has a reason.

Both run here, so this needs Java and Maven, and only ``make interop`` and ``make rocketmq-diff`` run it. What was seen
last is in ``build/rocketmq/seen``. With ``TICKWHEEL_RECORD=1`` it writes what the clients saw of RocketMQ into
files, for the tests that have none beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.interop.rocketmq.known_differences import known_of
from tests.interop.rocketmq.programs import HERE, PROGRAMS, Program, printed
from tests.interop.rocketmq.servers import ours, theirs
from tests.support.rocketmq.differences import FAILED, differences, observed
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.run.registries import Registries
from tickwheel_bench.rocketmq.their_server import RocketMQ, fetch, missing

RECORDED: Final = ("go", "node", "python")
SEEN: Final = HERE.parents[2] / "build" / "rocketmq" / "seen"
LIMIT_S: Final = 600
"""Seconds: it takes a quarter of that, if the machine is not busy."""

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(2 * LIMIT_S),
]


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    why = fetch() or missing()
    if why is not None:
        pytest.skip(why)
    with theirs(tmp_path_factory.mktemp("theirs"), PROGRAMS) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with ours(tmp_path_factory.mktemp("ours"), PROGRAMS) as running:
        yield running


@pytest.fixture(scope="module")
def registries() -> Registries:
    return Registries()


def seen_by(program: Program, address: str, language: str, side: str) -> list[str]:
    """What it prints, the steps in their order: they run side by side."""
    done = printed(program, address, language, limit_s=LIMIT_S)
    lines = sorted(done.stdout.splitlines(), key=lambda line: int(json.loads(line)["step"]))
    SEEN.mkdir(parents=True, exist_ok=True)
    (SEEN / f"{language}_{side}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert done.returncode == 0, [line for line in lines if json.loads(line)["what"] == FAILED] or done.stderr
    return lines


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_client_sees_what_it_sees_of_rocketmq(
    language: str, rocketmq: RocketMQ, gateway: Gateway, registries: Registries, tmp_path: Path
) -> None:
    program = PROGRAMS[language](tmp_path, registries)
    with ThreadPoolExecutor(2) as pool:
        seen_there = pool.submit(seen_by, program, rocketmq.address, language, "theirs")
        seen_here = pool.submit(seen_by, program, gateway.address, language, "ours")
        there, here = seen_there.result(), seen_here.result()
    recording = HERE / f"{language}_of_rocketmq_5_3_3.jsonl"
    if language in RECORDED and "TICKWHEEL_RECORD" in os.environ:
        recording.write_text("".join(f"{line}\n" for line in there))
    print(f"{language}: {len(there)} observations there, {len(here)} here")
    assert differences(observed(there), observed(here), known_of(language)) == []
    if language in RECORDED:  # the recording is as RocketMQ is
        recorded = observed(recording.read_text().splitlines())
        assert differences(recorded, observed(here), known_of(language)) == []
