"""What has a fault becomes a dead letter where Celery would ack it, and only in a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import kombu
import pytest
from kombu.exceptions import DecodeError

import tickwheel.celery
from tickwheel import sync
from tickwheel.celery.task_message import fault_of_message, fault_of_payload
from tickwheel.celery.transport import consumer, message
from tickwheel.testing import TestBroker, broker
from tickwheel_bench.processes import wait_until

assert tickwheel.celery.TRANSPORT

GOOD: dict[str, Any] = {
    "body": "[[], {}, {}]",
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {"task": "report", "id": "17"},
    "properties": {},
}


@pytest.fixture(scope="module")
def running() -> Iterator[TestBroker]:
    with broker(ack_wait="1h") as one:
        yield one


@pytest.fixture
def client(running: TestBroker) -> Iterator[sync.Client]:
    with running.sync_client() as one:
        yield one


@pytest.fixture
def connection(running: TestBroker) -> Iterator[kombu.Connection]:
    with kombu.Connection(running.url) as one:
        yield one


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [message.Check(fault_of_message, fault_of_payload)]
    monkeypatch.setattr(message, "CHECKS", checks)
    monkeypatch.setattr(consumer, "CHECKS", checks)


def get(connection: kombu.Connection, client: sync.Client, queue: str, **changed: Any) -> Any:
    client.send(queue, json.dumps({**GOOD, **changed}).encode())
    return connection.default_channel.basic_get(queue)


def dead(client: sync.Client, queue: str) -> int:
    return client.group(queue, "celery").dead


@pytest.mark.usefixtures("in_a_worker")
def test_a_wrong_header_is_not_handed_out(connection: kombu.Connection, client: sync.Client) -> None:
    headers = {**GOOD["headers"], "timelimit": 5}
    assert get(connection, client, "headers", headers=headers) is None
    wait_until(lambda: dead(client, "headers") == 1)


@pytest.mark.usefixtures("in_a_worker")
@pytest.mark.parametrize("body", ["17", "{", '{"args": 5}'])
def test_a_wrong_body_is_never_acked(connection: kombu.Connection, client: sync.Client, body: str) -> None:
    queue = f"body-{len(body)}"
    found = get(connection, client, queue, body=body)
    with pytest.raises(DecodeError):
        found.decode()
    assert found.fault
    found.ack()  # as Celery's worker does then
    assert found.acknowledged
    wait_until(lambda: dead(client, queue) == 1)


@pytest.mark.usefixtures("in_a_worker")
def test_what_is_right_is_acked(connection: kombu.Connection, client: sync.Client) -> None:
    found = get(connection, client, "right")
    assert found.payload == [[], {}, {}]
    found.ack()
    wait_until(lambda: client.group("right", "celery").acked == 1)
    assert dead(client, "right") == 0


def test_without_a_worker_messages_are_as_they_are(connection: kombu.Connection, client: sync.Client) -> None:
    headers = {**GOOD["headers"], "timelimit": 5}
    found = get(connection, client, "kombu", headers=headers, body="17")
    assert found.payload == 17
    found.ack()
    wait_until(lambda: client.group("kombu", "celery").acked == 1)


def test_one_that_is_given_back_for_later_was_no_attempt(
    running: TestBroker, connection: kombu.Connection, client: sync.Client
) -> None:
    found = get(connection, client, "later")
    found.requeue_delay_ms = 60_000
    found.reject(requeue=True)
    wait_until(lambda: client.group("later", "celery").leased == 0)
    assert connection.default_channel.basic_get("later") is None
    running.clock.advance(timedelta(minutes=1))
    again = wait_until(lambda: connection.default_channel.basic_get("later"))
    assert again.delivery_info["redelivered"] is False
    again.ack()
