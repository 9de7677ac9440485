"""Fixtures for tests of ``tickwheel.django``; those of its folders import them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.frameworks import django_setup

django_setup.set_up()


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The project's tables in a file of SQLite: one for all tests of a process."""
    with django_setup.database(django_setup.sqlite(tmp_path_factory.mktemp("django") / "db.sqlite")) as one:
        yield one


@pytest.fixture
def project(sqlite_file: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same without rows."""
    django_setup.empty()
    yield sqlite_file
    from django.db import connections

    connections.close_all()


@pytest.fixture(autouse=True, scope="module")
def tables(sqlite_file: dict[str, Any]) -> None:
    """For test cases of Django's, which take no fixtures."""
