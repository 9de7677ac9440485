"""Which tests run in the same process, and which go first.

When several processes run tests, the last to begin should be short, and none should hold what others could do
meanwhile. So what takes long goes first, and its files are handed out test by test; other files stay together, because
what their first test makes, the others use. Seconds are rough: a figure that is wrong makes a run a little longer.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = "tests/spark/"
"""A session of Spark takes long to start, and gets faster with each test."""

LONG_S: dict[str, int] = {}
"""Files that take long, in seconds, whose tests need not stay together."""


class LongestFirst(LoadScopeScheduling):
    """Hands out tests in their order: those of ``LONG_S`` one by one, others by file."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by the number of tests

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(TOGETHER):
            return TOGETHER
        return nodeid if file in LONG_S else file


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts them; those of a file stay in their order."""
    items.sort(key=lambda item: _rank(item.nodeid.partition("::")[0]))


def _rank(file: str) -> tuple[int, str]:
    """Spark, then what is known to take long, then the rest as it is in its folders."""
    seconds = 10_000 if file.startswith(TOGETHER) else LONG_S.get(file, 0)
    return -seconds, file
