"""What tests that share a daemon need."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.cluster import in_a_cluster
from tests.support.cluster.kafka import running_kafka

FOLDER = Path(__file__).parent
OTHERS = ("celery", "django")
"""Folders whose servers are brokers of their own in any case."""
_numbers = count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--cluster`, only tests that start a server are of interest, and some of them cannot be run so."""
    if not config.option.cluster:
        return
    files = {one.path for one in items}
    with_servers = {
        file for file in files if file.parent.name not in OTHERS and "Daemon(" in file.read_text()
    }
    config.hook.pytest_deselected(items=[one for one in items if one.path not in with_servers])
    items[:] = [one for one in items if one.path in with_servers]
    for item in items:
        reason = in_a_cluster.reason_of(f"{item.path.relative_to(FOLDER)}::{item.nodeid.partition('::')[2]}")
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"not in a cluster: {reason}"))


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="session", autouse=True)
def clusters(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With `--cluster`, servers are clusters."""
    nodes = pytestconfig.option.cluster
    if not nodes:
        yield
        return
    for kafka in running_kafka(tmp_path_factory):
        in_a_cluster.running = in_a_cluster.Clusters(
            kafka.servers, nodes, tmp_path_factory.mktemp("followers")
        )
        yield
        in_a_cluster.running = None
