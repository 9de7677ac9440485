"""Which tests run in the same process, and which go first.

When several processes run tests, the last to begin should be short, and none should hold what others could do
meanwhile. So what takes long goes first, test by test; other files stay together, because what their first test makes,
the others use. A figure that is wrong makes a run a little longer, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.run.profile import PROCESSES

SPARK: Final = "tests/spark/"
"""All of it stays together: a session of Spark takes long to start, and gets faster with each test."""

SECONDS_S: Final[dict[str, float]] = json.loads(Path(__file__).with_name("durations.json").read_text())
"""Processor seconds of the files that take more than a few, as `make durations` has written them."""
SPLIT_S: Final = 15
"""The tests of a file that takes longer are handed out one by one, unless they share the programs of their file."""


class LongestFirst(LoadScopeScheduling):
    """Hands out tests in their order: those of long files one by one, those of other files together."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would go by the number of tests

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(SPARK):
            return SPARK
        return nodeid if SECONDS_S.get(file, 0) > SPLIT_S and not file.startswith(PROCESSES) else file

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


def _rank(file: str) -> tuple[bool, float, str]:
    """Spark, then what is known to take long, then the rest as it lies in its folders."""
    return not file.startswith(SPARK), -SECONDS_S.get(file, 0), file
