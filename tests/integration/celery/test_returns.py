"""Messages that are rejected or requeued: the log tells what did not become of them; and acks at the end of a
connection."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

import tickwheel.celery
import tickwheel.sync
from tests.integration.celery.test_channels import Reader
from tests.support.processes.daemon_harness import Daemon
from tickwheel.celery.transport import returns
from tickwheel_bench.processes import free_port, wait_until

assert tickwheel.celery.TRANSPORT


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Daemon]:
    """A broker that has the same address after a kill."""
    with Daemon(tmp_path / "data", listen_port=free_port()) as daemon:
        yield daemon


def received(connection: kombu.Connection, queue: str, count: int = 1) -> list[Any]:
    """Messages of a queue, as a program has them."""
    for number in range(count):
        connection.Producer().publish(number, routing_key=queue)
    reader = Reader(connection, kombu.Queue(queue))
    reader.wait_for(count)
    return reader.messages


def settle_elsewhere(daemon: Daemon, messages: list[Any]) -> None:
    """By their receipts, which are in their tags."""
    receipts = [[int(part) for part in message.delivery_tag.split("-")] for message in messages]
    with tickwheel.sync.Client(daemon.url) as client:
        client.ack(receipts[0][0], [(message_id, epoch) for _, message_id, epoch in receipts])


def lose(daemon: Daemon, connection: kombu.Connection) -> None:
    """Until the client knows it."""
    daemon.kill()
    opened = connection.connection
    wait_until(lambda: not opened.broker.is_connected or opened.turn())


@pytest.mark.parametrize(("requeue", "what"), [(False, "rejected"), (True, "requeued")])
def test_an_answer_that_was_not_asked_for(
    daemon: Daemon, queue: str, caplog: pytest.LogCaptureFixture, requeue: bool, what: str
) -> None:
    with kombu.Connection(daemon.url) as connection:
        (message,) = received(connection, queue)
        settle_elsewhere(daemon, [message])
        message.reject(requeue=requeue)
    assert f"1 messages of '{queue}' in group 'celery' were not {what}: already_acked (1)" in caplog.text


def test_many_answers_are_told_of_in_few_lines(
    daemon: Daemon, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with kombu.Connection(daemon.url) as connection:
        messages = received(connection, queue, 50)
        settle_elsewhere(daemon, messages)
        for message in messages:
            message.reject()
    lines = [one.getMessage() for one in caplog.records if "not rejected" in one.getMessage()]
    assert len(lines) == 2
    assert sum(int(re.match(r"\d+", line)[0]) for line in lines) == 50  # type: ignore[index]


def test_an_answer_that_does_not_come_in_time(
    daemon: Daemon, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with kombu.Connection(daemon.url, transport_options={"timeout": 1}) as connection:
        (message,) = received(connection, queue)
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            message.reject()
            opened = connection.connection
            wait_until(lambda: "were not rejected: The broker did not answer" in caplog.text or opened.turn())
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)


def test_a_connection_that_is_closed_without_a_broker(
    restartable: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    with kombu.Connection(restartable.url) as connection:
        (message,) = received(connection, "t")
        lose(restartable, connection)
        message.reject()
    assert "1 messages of 't' in group 'celery' were not rejected: The client is closed." in caplog.text
    restartable.start()


@pytest.mark.parametrize("drops", [False, True])
def test_the_end_of_a_connection_waits_for_the_next_one(
    restartable: Daemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, drops: bool
) -> None:
    monkeypatch.setattr("tickwheel.client.client.CLOSE_TIMEOUT_S", 30.0)
    connection = kombu.Connection(restartable.url)
    (message,) = received(connection, "t")
    lose(restartable, connection)
    message.reject()
    thread = threading.Thread(target=restartable.start)
    thread.start()
    connection.collect() if drops else connection.release()
    thread.join()
    with tickwheel.sync.Client(restartable.url) as client:
        assert client.group("t", "celery").dead == 1
    assert not [one for one in caplog.records if one.name == returns.logger.name]


@pytest.mark.parametrize("drops", [False, True])
def test_acks_that_a_connection_could_not_say_go_over_the_next_one(restartable: Daemon, drops: bool) -> None:
    connection = kombu.Connection(restartable.url)
    messages = received(connection, "t", 3)
    lose(restartable, connection)
    for message in messages[:2]:
        message.ack()
    connection.collect() if drops else connection.release()
    restartable.start()
    with kombu.Connection(restartable.url) as after, tickwheel.sync.Client(restartable.url) as client:
        after.connect()
        wait_until(lambda: client.group("t", "celery").backlog == 1)


def test_acks_that_a_connection_could_not_say_go_over_another_one(restartable: Daemon) -> None:
    first, second = kombu.Connection(restartable.url), kombu.Connection(restartable.url)
    (message,) = received(first, "t")
    second.connect()
    lose(restartable, first)
    message.ack()
    first.release()
    restartable.start()
    with tickwheel.sync.Client(restartable.url) as client:
        opened = second.connection
        wait_until(lambda: client.group("t", "celery").backlog == 0 or opened.turn())
    second.release()
