"""What tests of task queues have in common: a broker of Taskiq on the daemon."""

from __future__ import annotations

import pytest

from tests.support.frameworks.taskiq_brokers import new_broker
from tests.support.processes.daemon_harness import Daemon
from tickwheel.taskiq import TickwheelBroker


@pytest.fixture
def broker(daemon: Daemon) -> TickwheelBroker:
    """With a topic and results of its own."""
    return new_broker(daemon.url)
