"""Shared test set-up: how many examples hypothesis tries, and which tests wait for `make soak`."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
SOAK = os.environ.get("TICKWHEEL_SOAK") == "1"

# No deadline: a shared machine may stall any single example. Explicit `max_examples` in a test still wins.
settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile(
    "soak", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("soak" if SOAK else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests one process runs, where there are several (`make test`); skip those marked `soak`."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item.path)))
    if SOAK:
        return
    skip = pytest.mark.skip(reason="takes minutes: run `make soak`")
    for item in items:
        if item.get_closest_marker("soak") is not None:
            item.add_marker(skip)


def _group(path: Path) -> str:
    """A file's tests share its fixtures; those of Spark share a session, which takes seconds to start."""
    parts = path.relative_to(TESTS).parts
    return "spark" if parts[0] == "spark" else "/".join(parts)
