"""Tests of endpoints: where they are kept, and which headers say for which endpoint one is."""

from __future__ import annotations

from typing import Final

from tickwheel.protocol.limits import TESTS_SUFFIX

GROUP: Final = "push"
"""The group from which `tickwheel push` takes those of all endpoints of a topic."""
ENDPOINT: Final = "tickwheel-endpoint"
"""The endpoint's name."""
VERSION: Final = "tickwheel-endpoint-version"
"""As of which version of it."""
KEPT_MS: Final = 600_000
"""A test that nothing has taken by then is not made any more."""


def tests_topic(topic: str) -> str:
    """The topic in which tests of a topic's endpoints are kept; no consumer of the topic sees them.

    >>> tests_topic("orders")
    'orders.push-tests'
    """
    return topic + TESTS_SUFFIX
