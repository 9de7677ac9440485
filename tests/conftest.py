"""Shared test set-up: how many examples hypothesis tries, which tests wait for `make soak`, and which run in the same
process when several run tests.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from timerlog.files.holes import Holes

# A write to a page of a table that was given back to the disk ends the process: it may not happen.
Holes.are_read_only = True

SOAK = os.environ.get("TICKWHEEL_SOAK") == "1"

# No deadline: a shared machine may stall any single example. Explicit `max_examples` in a test still wins.
settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile(
    "soak", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("soak" if SOAK else "default")

# What starts for the first of these tests (Spark; database servers) is worth sharing with all of them.
TOGETHER = ("tests/spark", "tests/outbox")


class Together(LoadFileScheduling):
    """Tests of a file run in the same process, and so do those of some folders."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """In place of what `--dist` says."""
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `soak` in an ordinary run."""
    if SOAK:
        return
    skip = pytest.mark.skip(reason="takes minutes: run `make soak`")
    for item in items:
        if item.get_closest_marker("soak") is not None:
            item.add_marker(skip)
