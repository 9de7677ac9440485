"""The test suites of RocketMQ's people, on a real broker and gateway.

They are not here and not fetched: who has a checkout names it, and the command that runs its tests there, in the
environment. Without them ``make interop`` skips this and says so. What should pass is in ``known_failures.toml``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import tickwheel.sync
from tests.support.clients.certificates import Files
from tests.support.processes.daemon_harness import Daemon
from tests.support.rocketmq.admin import CLUSTER, Administration
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.run.their_suites import (
    MOCHAWESOME,
    SUREFIRE,
    BadReport,
    Reports,
    complaints,
    expected,
    read_mochawesome,
    read_surefire,
    run,
    tail,
)

KNOWN: Final = Path(__file__).parent / "known_failures.toml"
E2E: Final = "TICKWHEEL_ROCKETMQ_E2E"
NODE: Final = "TICKWHEEL_ROCKETMQ_NODE"
LIMIT_S: Final = 1_200

ORDERLY: Final = "GID_testOrder_Send_PushConsumeOrderly_* GID_testFiFoTopic* GID_testFIFO_simple_*"
"""The groups that the suite makes so; it gives each the name of a test."""
NODE_TOPICS: Final = (
    "TopicTestForNormal",
    "TopicTestForFifo",
    "TopicTestForDelay",
    "TopicTestForTransaction",
)
NODE_GROUP: Final = "nodejs-unittest-group"

pytestmark = pytest.mark.interop


class Suite(NamedTuple):
    """Where a suite is, and how its tests are run."""

    folder: Path
    command: str


def suite(name: str, what: str) -> Suite:
    """From the environment. Without it there is no test."""
    names = name, f"{name}_COMMAND"
    folder, command = (os.environ.get(one, "") for one in names)
    if not folder or not command:
        pytest.skip(
            f"THE SUITE OF ROCKETMQ'S PEOPLE DID NOT RUN: {names[0]} must name a folder with {what}, and {names[1]} "
            "the command that runs its tests there (CONTRIBUTING.md)"
        )
    assert Path(folder).is_dir(), f"{names[0]}: there is no folder {folder}"
    return Suite(Path(folder), command)


def judge(
    one: Suite, reports: Reports, name: str, environment: dict[str, str], gateway: Gateway, log: Path
) -> None:
    """Run it, and compare what it did with what is known."""
    code = run(one.command, one.folder, environment, log, LIMIT_S)
    try:
        wrong = complaints(reports.ran(), expected(KNOWN, name), code)
    except BadReport as error:
        wrong = [f"a report cannot be read: {error}"]
    ended = gateway.end()
    said = gateway.said()
    assert wrong == [], "\n".join([*wrong, "", tail(log), "", "The gateway:", said])
    assert (ended, "internal error" in said or "Traceback" in said) == (0, False), said


@pytest.mark.timeout(LIMIT_S + 120)
def test_rocketmq_e2e(tmp_path: Path) -> None:
    """With TLS, as its client always has it. Topics exist only once the suite has made them."""
    one = suite(E2E, "java of apache/rocketmq-e2e")
    certificates = Files(tmp_path / "certificates")
    flags = (
        *("--tls-certificate", certificates.certificate_path, "--tls-key", certificates.key_path),
        *("--no-auto-create-topics", "--max-delay", "24h", "--fifo-groups", ORDERLY),
    )
    with (
        Daemon(tmp_path / "data", auto_create_topics=False) as daemon,
        Gateway(daemon.unix_url, tmp_path, *flags) as gateway,
        Administration(daemon.unix_url) as administration,
    ):
        environment = {
            "ROCKETMQ_ENDPOINT": gateway.address,
            "ROCKETMQ_NAMESRV": administration.address,
            "ALL_IP": "127.0.0.1",
            "cluster": CLUSTER,
        }
        reports = Reports(one.folder, SUREFIRE, read_surefire)
        judge(one, reports, "e2e", environment, gateway, tmp_path / "e2e.log")


@pytest.mark.timeout(LIMIT_S + 120)
def test_the_suite_of_the_client_for_node(tmp_path: Path) -> None:
    """Its group takes messages of a message group as they come, as a group of RocketMQ does that is not orderly."""
    one = suite(NODE, "nodejs of apache/rocketmq-clients")
    with (
        Daemon(tmp_path / "data", auto_create_topics=False) as daemon,
        Gateway(daemon.unix_url, tmp_path, "--no-auto-create-topics") as gateway,
    ):
        with tickwheel.sync.connect(daemon.unix_url) as client:
            for topic in NODE_TOPICS:
                client.create_topic(topic)
            client.create_group("TopicTestForFifo", NODE_GROUP, ignore_ordering_keys=True)
        environment = {
            "ROCKETMQ_NODEJS_CLIENT_ENDPOINTS": gateway.address,
            "ROCKETMQ_NODEJS_CLIENT_GROUP": NODE_GROUP,
        }
        reports = Reports(one.folder, MOCHAWESOME, read_mochawesome)
        judge(one, reports, "node", environment, gateway, tmp_path / "node.log")
