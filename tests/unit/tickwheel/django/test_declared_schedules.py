"""``TICKWHEEL_SCHEDULES`` of several deployments: at once, again, after a pause, while another deployment deletes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from tickwheel import Schedule, sync
from tickwheel.django import TickwheelBackend
from tickwheel.django.framework import task_backends
from tickwheel.django.options import BackendOptions
from tickwheel.django.schedules import declared_schedules, synchronise
from tickwheel.django.worker.workshop import prepare_topic
from tickwheel.testing import TestBroker, broker

TASKS = "tests.support.frameworks.django_project.tasks"
FIRST = {"hourly": {"task": f"{TASKS}.write", "args": ["tick"], "every": timedelta(hours=1)}}
SECOND = {"hourly": {**FIRST["hourly"], "args": ["tock"]}}
NAME = "django.hourly"


@pytest.fixture
def running() -> Iterator[TestBroker]:
    with broker() as one:
        yield one


@pytest.fixture
def client(running: TestBroker) -> Iterator[sync.Client]:
    with running.sync_client() as one:
        yield one


def declare(client: sync.Client, schedules: dict[str, Any]) -> list[str]:
    """What a deployment does with each schedule."""
    backend = task_backends["default"]
    assert isinstance(backend, TickwheelBackend)
    with override_settings(TICKWHEEL_SCHEDULES=schedules):
        declared, troubles = declared_schedules()
    assert not troubles
    return [one.action for one in synchronise(client, backend, declared, dry_run=False)]


def test_six_deployments_at_once_declare_what_one_does(running: TestBroker, client: sync.Client) -> None:
    backend = task_backends["default"]
    assert isinstance(backend, TickwheelBackend)
    with override_settings(TICKWHEEL_SCHEDULES=FIRST):
        declared, _ = declared_schedules()

    def synchronised() -> list[str]:
        with running.sync_client() as one:
            return [change.action for change in synchronise(one, backend, declared, dry_run=False)]

    with ThreadPoolExecutor(6) as pool:
        done = [one.result(60) for one in [pool.submit(synchronised) for _ in range(6)]]
    assert ["create"] in done
    assert [one.name for one in client.schedules()] == [NAME]
    assert declare(client, FIRST) == ["keep"]


def test_what_somebody_has_paused_stays_paused(client: sync.Client) -> None:
    declare(client, FIRST)
    client.pause_schedule(NAME)
    assert declare(client, FIRST) == ["keep"]
    assert declare(client, SECOND) == ["change"]
    assert client.schedule(NAME).paused


@pytest.mark.parametrize("second", [FIRST, SECOND, {}], ids=["kept", "changed", "deleted"])
def test_what_another_deployment_deletes_meanwhile_is_no_error(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any]
) -> None:
    declare(client, FIRST)
    listed = client.schedules

    def schedules(**options: Any) -> list[Schedule]:
        found = listed(**options)
        client.delete_schedule(NAME)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(client, "schedules", schedules)
        declare(client, second)
    declare(client, second)
    assert [one.name for one in client.schedules()] == [f"django.{name}" for name in second]


def test_what_another_deployment_makes_meanwhile_is_changed(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, change = client.schedules, client.set_schedule
    races = iter([True])

    def schedules(**options: Any) -> list[Schedule]:
        found = listed(**options)
        with monkeypatch.context() as patched:
            patched.setattr(client, "schedules", listed)
            declare(client, FIRST)
        return found

    def set_schedule(name: str, **fields: Any) -> Schedule:
        if next(races, False):
            client.delete_schedule(name)
        return change(name, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(client, "set_schedule", set_schedule)
        patched.setattr(client, "schedules", schedules)
        declare(client, SECOND)
    assert declare(client, SECOND) == ["keep"]


@pytest.mark.parametrize("lease", [None, timedelta(minutes=5)])
def test_the_topic_of_a_queue_is_prepared_again_and_when_it_is_paused_or_deleted_meanwhile(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch, lease: timedelta | None
) -> None:
    options = BackendOptions(lease=lease)
    client.create_topic("queue", rate=5)
    prepare_topic(client, "queue", options)
    client.pause_topic("queue")
    prepare_topic(client, "queue", options)
    assert client.topic("queue").paused
    shown, races = client.topic, iter([True])

    def topic(name: str) -> Any:
        if next(races, False):
            client.delete_topic(name)
        return shown(name)

    with monkeypatch.context() as patched:
        patched.setattr(client, "topic", topic)
        prepare_topic(client, "queue", options)
    assert client.topic("queue").settings == ({} if lease is None else {"ack_wait_ms": 300_000})
