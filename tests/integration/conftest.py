"""What tests that share a daemon need."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import in_a_cluster
from tests.support.cluster.kafka import running_kafka
from tests.support.processes import stalls
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Guarded, guarding

FOLDER = Path(__file__).parent
OTHERS = ("celery", "django")
"""Folders whose servers are brokers of their own in any case."""
_numbers = count()


def has_servers(item: pytest.Item) -> bool:
    """Whether a test starts servers that can be clusters, or is given one."""
    if item.path.parent.name in OTHERS:
        return False
    given = getattr(item, "fixturenames", ())
    return "daemon" in given or "guarded" in given or "Daemon(" in item.path.read_text()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--cluster`, only tests that start a server are of interest, and some of them cannot be run so."""
    if not config.option.cluster:
        return
    with_servers = {one.path for one in items if has_servers(one)}
    config.hook.pytest_deselected(items=[one for one in items if one.path not in with_servers])
    items[:] = [one for one in items if one.path in with_servers]
    for item in items:
        reason = in_a_cluster.reason_of(f"{item.path.relative_to(FOLDER)}::{item.nodeid.partition('::')[2]}")
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"not in a cluster: {reason}"))


@pytest.fixture(scope="session")
def _watched_steps() -> Iterator[list[stalls.Stall]]:
    with stalls.watching_embedded() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_step_is_long(_watched_steps: list[stalls.Stall]) -> Iterator[None]:
    """No step of an embedded broker holds its event loop for long."""
    yield
    found = _watched_steps.copy()
    _watched_steps.clear()
    assert not found, "\n".join(map(str, found))


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Settings of `daemon` and `fresh_daemon`. A file whose tests need others has its own fixture of this name."""
    return {}


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests of this process that look at nothing but topics of their own."""
    with Daemon(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def daemon(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    daemon_settings: dict[str, Any],
) -> Iterator[Daemon]:
    """One for the tests of a file; with the marker `shared_daemon` the one that it shares with other files."""
    if request.node.get_closest_marker("shared_daemon") is not None:
        assert not daemon_settings, "what is shared has no settings of a file"
        yield request.getfixturevalue("shared_daemon")
        return
    with Daemon(tmp_path_factory.mktemp("broker") / "data", **daemon_settings) as running:
        yield running


@pytest.fixture
def fresh_daemon(tmp_path: Path, daemon_settings: dict[str, Any]) -> Iterator[Daemon]:
    """One for a single test, which may stop it, or counts all that it has."""
    with Daemon(tmp_path / "data", **daemon_settings) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that wants tokens, for the tests of a file."""
    yield from guarding(tmp_path_factory.mktemp("guarded"))


@pytest.fixture
def shell(daemon: Daemon, tmp_path: Path) -> Shell:
    """Commands against the daemon, in an empty directory."""
    return Shell(tmp_path, daemon.url)


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
