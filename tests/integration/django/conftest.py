"""Tests of ``tickwheel.django`` with a broker and processes: a project of Django's, here and in them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.frameworks.django_fixtures import *  # noqa: F403
from tests.support.frameworks.django_setup import Processes
from tests.support.processes.daemon_harness import Daemon


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Leases end soon, and tasks are tried again soon."""
    return {"ack_wait": "2s", "min_backoff": "1s"}


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Each test has topics of its own."""
    return f"{zlib.crc32(request.node.name.encode())}."


@pytest.fixture
def processes(project: dict[str, Any], daemon: Daemon, prefix: str) -> Iterator[Callable[..., Processes]]:
    """Makes those of a project with these options, in this process, too."""
    from django.test import override_settings

    from tickwheel.django.broker import close_clients

    made: list[Any] = []

    def make(**options: Any) -> Processes:
        found = Processes(project, daemon.url, prefix=prefix, **options)
        tasks = {
            "default": {
                "BACKEND": "tickwheel.django.TickwheelBackend",
                "QUEUES": ["default", "mails"],
                "OPTIONS": {"url": daemon.url, "prefix": prefix, **options},
            }
        }
        override = override_settings(TASKS=tasks)
        override.enable()
        made.extend([override.disable, found.close])
        return found

    yield make
    for end in reversed(made):
        end()
    close_clients()
