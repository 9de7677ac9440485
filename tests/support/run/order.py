"""Which tests run in the same process, and which go first.

When several processes run tests, the last to begin should be short, and none should hold what others could do
meanwhile. So what takes long goes first, test by test; other files stay together, because what their first test makes,
the others use. Seconds are rough: a figure that is wrong makes a run a little longer.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SPARK: Final = "tests/spark/"
"""All of it stays together: a session of Spark takes long to start, and gets faster with each test."""

CLUSTER: Final = "tests/cluster/"
"""Tests of a file there stay together: each file starts a Kafka."""

LONG_S: Final = {
    "tests/crash/test_kill_loop.py": 30,
    "tests/crash/test_purge_kill.py": 20,
    "tests/crash/test_web_kill.py": 10,
    "tests/crash/test_gateway_kill.py": 10,
    "tests/cluster/test_nodes_kill.py": 40,
    "tests/cluster/test_daemons_kill.py": 40,
    "tests/cluster/test_cluster_page.py": 20,
    "tests/cluster/test_integration_core.py": 90,
    "tests/cluster/test_compose.py": 45,
    "tests/cluster/test_kafka_log.py": 45,
    "tests/cluster/test_kafka_group.py": 40,
    "tests/outbox/test_relay_kill.py": 15,
    "tests/outbox/test_messages_kill.py": 10,
    "tests/outbox/test_queue_kill.py": 15,
    "tests/outbox/test_keys_kill.py": 13,
    "tests/integration/test_push.py": 25,
    "tests/integration/test_overload.py": 25,
    "tests/integration/test_query.py": 35,
    "tests/integration/test_documents.py": 25,
    "tests/integration/test_how_to.py": 35,
    "tests/integration/test_daemon_lifecycle.py": 25,
    "tests/integration/test_daemon_endings.py": 15,
    "tests/integration/test_purge_kinds.py": 20,
    "tests/integration/test_several_nodes.py": 20,
    "tests/integration/test_tokens.py": 10,
    "tests/integration/test_tls.py": 15,
    "tests/integration/test_cli_directory.py": 15,
    "tests/integration/test_cli_outbox.py": 15,
    "tests/integration/test_purge.py": 12,
    "tests/outbox/test_messages_table.py": 20,
    "tests/outbox/test_messages_delivery.py": 20,
    "tests/outbox/test_keys.py": 19,
    "tests/outbox/test_keys_services.py": 18,
    "tests/outbox/test_messages_transactions.py": 13,
    "tests/outbox/test_messages_changes.py": 12,
    "tests/outbox/test_messages_idle.py": 12,
    "tests/outbox/test_queue_consumer.py": 15,
    "tests/simulation/test_cluster_mutations.py": 20,
    "tests/simulation/test_repeatable.py": 20,
    "tests/model/test_cluster_model.py": 20,
    "tests/simulation/test_cluster_seeds_0.py": 8,
    "tests/simulation/test_cluster_seeds_1.py": 8,
    "tests/simulation/test_cluster_seeds_2.py": 8,
    "tests/simulation/test_mutations.py": 16,
    "tests/simulation/test_seeds_0.py": 6,
    "tests/simulation/test_seeds_1.py": 6,
    "tests/simulation/test_seeds_2.py": 6,
    "tests/simulation/test_seeds_3.py": 6,
    "tests/unit/tickwheel/test_examples.py": 30,
    "tests/unit/tickwheel/client/consumer/test_holding.py": 10,
    "tests/unit/timerlog/bulk/test_adopt.py": 10,
    "tests/unit/timerlog/engine/test_full_disk.py": 20,
    "tests/crash/test_torn_write.py": 5,
}
"""Files that take long, in seconds of one core, and whose tests have no need to stay together."""


class LongestFirst(LoadScopeScheduling):
    """Hands out tests in their order: those of ``LONG_S`` one by one, others and a cluster's by file."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would go by the number of tests

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(SPARK):
            return SPARK
        return nodeid if file in LONG_S and not file.startswith(CLUSTER) else file

    def remove_node(self, node: WorkerController) -> str | None:
        """Of a process that ended with tests left, the one that it ran, which has failed; others run the rest.

        The scheduler of xdist 3.8 gives the failed test to others, again and again, and what was done already as work
        of no tests, for which they wait without end (its issues 1323 and 1378)."""
        units = self.assigned_work.pop(node)
        left = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        if not left:
            return None
        scope, unit = next(iter(left.items()))
        failed = next(test for test, is_done in unit.items() if not is_done)
        unit[failed] = True
        if all(unit.values()):
            del left[scope]
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return failed

    def _reschedule(self, node: WorkerController) -> None:
        """One that still collects has its turn when it has done so."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def schedule(self) -> None:
        """Also for a process that comes in place of another: it gets two units of work, or is told that there is no
        more, because a process runs a test only when it knows what comes behind it."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts them; those of a file stay in their order."""
    items.sort(key=lambda item: _rank(item.nodeid.partition("::")[0]))


def _rank(file: str) -> tuple[bool, int, str]:
    """Spark, then what is known to take long, then the rest as it lies in its folders."""
    return not file.startswith(SPARK), -LONG_S.get(file, 0), file
