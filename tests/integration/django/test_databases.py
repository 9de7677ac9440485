"""The outbox and the worker on PostgreSQL and MariaDB: the tests of SQLite once more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.django.test_outbox import (
    test_a_relay_that_runs,
    test_cancel_and_reschedule_on_both_sides_of_the_relay,
    test_kills_of_producers_relays_and_workers,
    test_only_what_was_committed_is_sent,
    test_tasks_of_one_time_are_sent_in_the_order_of_enqueueing,
)
from tests.integration.django.test_worker import (
    test_a_killed_worker,
    test_processes_are_started_again_and_stopped,
    test_tasks_of_each_kind,
)
from tests.support.frameworks import django_setup
from tests.support.outbox.databases import DatabaseServer, MariaServer, PostgresServer, server_for_tests

__all__ = [
    "test_a_killed_worker",
    "test_a_relay_that_runs",
    "test_cancel_and_reschedule_on_both_sides_of_the_relay",
    "test_kills_of_producers_relays_and_workers",
    "test_only_what_was_committed_is_sent",
    "test_processes_are_started_again_and_stopped",
    "test_tasks_of_each_kind",
    "test_tasks_of_one_time_are_sent_in_the_order_of_enqueueing",
]


@pytest.fixture(scope="module", params=[PostgresServer, MariaServer])
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """Each in turn; it forgets everything in a crash."""
    with server_for_tests(request.param, durable=False) as running:
        yield running


@pytest.fixture(scope="module")
def server_project(server: DatabaseServer) -> Iterator[dict[str, Any]]:
    """The project's tables there."""
    with server.database() as url, django_setup.database(django_setup.database_of(url)) as config:
        yield config


@pytest.fixture
def project(server_project: dict[str, Any]) -> dict[str, Any]:
    """Instead of the one on SQLite."""
    django_setup.empty()
    return server_project
