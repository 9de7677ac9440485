"""With `--cluster`, each server that tests of `tests/integration` start is a cluster: one log on a real Kafka, and one
node, or two of which the second follows.

A data directory is that of node 1 of a cluster of its own, however often a server is started on it. One that holds
something else already, a restored backup for example, is that of a broker of its own, as always.

`pytest --cluster 1 tests/integration` runs all tests that can be run so, `--cluster 2` with a node that follows, and
`CORE` are the files that the tests of a cluster run. What cannot be run so is in `NOT_IN_A_CLUSTER`, with the reason.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.support.clients import forking
from timerlog.files.disk import LOG_FOLDER
from timerlog.files.replica_mark import NAME

TIMEOUT: Final = "4s"
"""So long after its kill a server can own its log again."""

MODULES: Final = ("tickwheel_broker.node.process", "tickwheel_broker.sharedlog.kafka.log")
_PATIENCE_S: Final = 60.0

CORE: Final = (
    "delivery/test_daemon_messages.py",
    "delivery/test_transactions.py",
    "delivery/test_receipts.py",
    "groups/test_groups.py",
    "groups/test_group_requests.py",
    "schedules/test_scheduled.py",
    "schedules/test_bulk.py",
    "delivery/test_topic_settings.py",
    "delivery/test_purge.py",
    "cli/test_cli_changes.py",
    "watching/test_looking.py",
)
"""What clients do with messages, and what is left of it when a server was stopped, or killed."""

_NO_SYNC: Final = "a node waits for Kafka, not for its disk: it never calls fdatasync"
_ANOTHER: Final = "a node's directory is refused to a broker of its own"
_TOLD: Final = "a node tells more of itself than a broker of its own, and the test knows each word"
_SHIFTED: Final = (
    "the clock is set for what the process reads; librdkafka waits by the one of the kernel, which is not set"
)

NOT_IN_A_CLUSTER: Final = {
    "disk/test_failing_disk.py::test_a_failing_disk_ends_the_daemon[the first sync]": _NO_SYNC,
    "disk/test_failing_disk.py::test_a_failing_disk_ends_the_daemon[a later sync]": _NO_SYNC,
    "disk/test_failing_disk.py::test_a_failing_disk_ends_the_daemon[no space at a sync]": _NO_SYNC,
    "daemon/test_daemon_lifecycle.py::test_a_disk_that_does_not_sync_ends_the_daemon": _NO_SYNC,
    "watching/test_http.py::test_a_broken_disk_ends_the_process_also_with_http": _NO_SYNC,
    "daemon/test_deploy.py::test_the_broker_works_within_the_filter_of_system_calls": _NO_SYNC,
    "daemon/test_daemon_lifecycle.py::test_a_log_damaged_in_the_middle": (
        "a node cuts it there, and fetches the rest again"
    ),
    "disk/test_failing_disk.py::test_a_disk_that_cannot_be_read_at_a_start": "it breaks a start of a broker of its own",
    "daemon/test_daemon_endings.py::test_a_directory_that_goes_ends_it[replaced]": (
        "what was put there belongs to another cluster, and a node refuses it when it starts"
    ),
    "client/test_embedded.py::test_one_directory_one_owner": _ANOTHER,
    "client/test_embedded.py::test_the_daemon_can_serve_the_same_directory_later": _ANOTHER,
    "daemon/test_clock_set.py": _SHIFTED,
    "watching/test_http.py::test_a_healthy_broker": _TOLD,
    "watching/test_http.py::test_a_token_is_needed_for_metrics_once_there_is_one": _TOLD,
    "watching/test_metrics.py::test_metrics_follow_the_rules_of_names": _TOLD,
    "daemon/test_systemd.py::test_from_ready_to_stopping": _TOLD,
}
"""Tests, or files of them, and why."""

_MAKE: Final = """
import json, logging, sys, time
import trio
from tickwheel_broker.sharedlog.beginning import begin
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.kafka.topic import TopicSettings, create_topic
from tickwheel_broker.config.cluster_url import parse_cluster_url
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.daemon import store_settings

async def make(url, settings):
    await create_topic(url.servers, url.topic, TopicSettings(1, 1, 1))
    async with KafkaLog(url.servers, url.topic) as shared:
        await begin(shared, url.name, store_settings(settings), time.time_ns() // 1_000_000)

logging.getLogger("tickwheel.broker").addHandler(logging.NullHandler())
settings = from_arguments(**json.loads(sys.argv[1]))
trio.run(make, parse_cluster_url(settings.cluster), settings)
"""

_FOLLOW: Final = """
import json, sys
from tickwheel_broker.node.process import serve_node
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.daemon import run
sys.exit(run(from_arguments(**json.loads(sys.argv[1])), serving=serve_node))
"""


class Replica:
    """A data directory in its cluster."""

    def __init__(self, url: str, beside: Path, nodes: int) -> None:
        """``beside``: what the second node has, which is not on the disk of the first."""
        self._url, self._beside, self._nodes = url, beside, nodes
        self._is_made = False
        self._settings: dict[str, Any] = {}
        self._follower: forking.Forked | None = None

    def prepare(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of node 1, whose cluster is made from those of its first start."""
        self.end_follower()
        settings = settings | {"cluster": self._url, "node": 1, "cluster_timeout": TIMEOUT}
        if not self._is_made:
            made = forking.start(_MAKE, json.dumps(settings), modules=MODULES)
            assert made.wait(_PATIENCE_S) == 0, "the cluster could not be made"
            self._is_made = True
        self._settings = settings
        return settings

    def follow(self) -> None:
        """Start what else belongs to the cluster, when node 1 serves."""
        if self._nodes == 1:
            return
        own = {"data_dir": str(self._beside), "node": 2, "unix_socket": "", "http_listen": False}
        own |= {"listen_host": "127.0.0.1", "listen_port": 0}
        self._follower_log = self._beside.with_suffix(".log")
        with self._follower_log.open("wb") as log:
            self._follower = forking.start(
                _FOLLOW,
                json.dumps(self._settings | own),
                modules=MODULES,
                files=(0, log.fileno(), log.fileno()),
                environment={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            )

    def end_follower(self) -> None:
        """Before the server is started, stopped or killed: it would serve in its place."""
        if self._follower is None:
            return
        follower, self._follower = self._follower, None
        follower.send_signal(signal.SIGTERM)
        try:
            code = follower.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            follower.kill()
            raise
        # By the signal itself: it had just begun.
        assert code in (0, -signal.SIGTERM), self._follower_log.read_text()[-5_000:]


class Clusters:
    """Those of one run, on one Kafka."""

    def __init__(self, servers: str, nodes: int, root: Path) -> None:
        self._servers, self._nodes, self._root = servers, nodes, root
        self._replicas: dict[Path, Replica] = {}
        self._numbers = itertools.count(1)

    def replica_of(self, directory: Path) -> Replica | None:
        """That of a server's data directory, unless it holds something else."""
        if directory not in self._replicas:
            if any(directory.glob(f"{LOG_FOLDER}/*.log")):
                return None
            name = f"c{next(self._numbers)}"
            url = f"kafka://{self._servers}/{name}"
            self._replicas[directory] = Replica(url, self._root / name, self._nodes)
        return self._replicas[directory]


running: Clusters | None = None
"""Set for a run with `--cluster`."""


def reason_of(name: str) -> str | None:
    """Why a test, `folder/file::test[parameters]`, cannot be run against a cluster; None: it can."""
    whole = name.partition("[")[0]
    return next(
        (NOT_IN_A_CLUSTER[one] for one in (name, whole, name.partition("::")[0]) if one in NOT_IN_A_CLUSTER),
        None,
    )


def release(directory: Path) -> None:
    """Let a test open what a server has left as a store of its own."""
    if running is not None:
        (directory / NAME).unlink()


def replica_of(directory: Path) -> Replica | None:
    """None: servers are brokers of their own, as always."""
    return None if running is None else running.replica_of(directory)
