"""Shared test set-up: how many examples hypothesis tries, and which tests wait for `make soak`."""

import os

import pytest
from hypothesis import HealthCheck, settings

SOAK = os.environ.get("TICKWHEEL_SOAK") == "1"

# No deadline: a shared machine may stall any single example. Explicit `max_examples` in a test still wins.
settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile(
    "soak", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("soak" if SOAK else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `soak` in an ordinary run."""
    if SOAK:
        return
    skip = pytest.mark.skip(reason="takes minutes: run `make soak`")
    for item in items:
        if item.get_closest_marker("soak") is not None:
            item.add_marker(skip)
