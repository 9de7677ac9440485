"""What AMQP's verbs do, between connections that know nothing of each other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

import tickwheel.celery
import tickwheel.sync
from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import wait_until

assert tickwheel.celery.TRANSPORT


@pytest.fixture
def here(daemon: Daemon) -> Iterator[kombu.Connection]:
    with kombu.Connection(daemon.url) as connection:
        yield connection


@pytest.fixture
def there(daemon: Daemon) -> Iterator[kombu.Connection]:
    with kombu.Connection(daemon.url) as connection:
        yield connection


class Reader:
    """A consumer that keeps what it is given, un-acked."""

    def __init__(self, connection: kombu.Connection, queue: kombu.Queue, **options: Any) -> None:
        self.messages: list[Any] = []
        self._connection = connection
        self.consumer = kombu.Consumer(
            connection, [queue], on_message=self.messages.append, accept=["json", "text/plain"], **options
        )
        self.consumer.consume()

    def wait_for(self, count: int) -> list[Any]:
        while len(self.messages) < count:
            self._connection.drain_events(timeout=60)
        return [message.payload for message in self.messages]

    def has_none(self) -> bool:
        """Looks once at what has come, after something that was sent later has come."""
        with pytest.raises(TimeoutError):
            self._connection.drain_events(timeout=0.1)
        return not self.messages


def reader_of_one(connection: kombu.Connection, queue: str) -> Reader:
    """It has a message."""
    connection.Producer().publish("once", routing_key=queue)
    reader = Reader(connection, kombu.Queue(queue))
    reader.wait_for(1)
    return reader


def test_a_fanout_reaches_queues_that_the_sender_does_not_know(
    here: kombu.Connection, there: kombu.Connection, queue: str
) -> None:
    exchange = kombu.Exchange(f"fan-{queue}", type="fanout")
    readers = [Reader(there, kombu.Queue(f"{queue}-{name}", exchange)) for name in "ab"]
    here.Producer().publish({"n": 1}, exchange=exchange, declare=[exchange])
    assert [reader.wait_for(1) for reader in readers] == [[{"n": 1}], [{"n": 1}]]


def test_a_direct_exchange_reaches_a_binding_that_the_sender_does_not_know(
    here: kombu.Connection, there: kombu.Connection, queue: str
) -> None:
    exchange = kombu.Exchange(f"replies-{queue}", type="direct")
    one = Reader(there, kombu.Queue(f"{queue}-1", exchange, routing_key="one"))
    other = Reader(there, kombu.Queue(f"{queue}-2", exchange, routing_key="other"))
    here.Producer().publish({"n": 1}, exchange=exchange, routing_key="one", declare=[exchange])
    assert one.wait_for(1) == [{"n": 1}]
    assert other.has_none()


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("task.*", ["task.sent"]),
        ("task.#", ["task", "task.sent", "task.sent.now"]),
        ("#.now", ["task.sent.now"]),
    ],
)
def test_patterns_of_topic_exchanges(
    here: kombu.Connection, there: kombu.Connection, queue: str, pattern: str, matches: list[str]
) -> None:
    exchange = kombu.Exchange(f"topics-{queue}", type="topic")
    reader = Reader(there, kombu.Queue(queue, exchange, routing_key=pattern))
    producer = here.Producer()
    for key in ("task", "worker.online", "task.sent", "task.sent.now"):
        producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
    assert reader.wait_for(len(matches)) == matches


def test_a_consumer_that_is_cancelled_keeps_what_it_has(
    here: kombu.Connection, there: kombu.Connection, queue: str
) -> None:
    for number in range(3):
        here.Producer().publish(number, routing_key=queue)
    reader = Reader(here, kombu.Queue(queue), prefetch_count=1)
    reader.wait_for(1)
    reader.consumer.cancel()
    other = Reader(there, kombu.Queue(queue))
    assert other.wait_for(2) == [1, 2]
    reader.messages[0].ack()
    assert other.has_none() is False
    assert len(other.messages) == 2


def test_leases_are_renewed_while_a_program_asks_for_events(
    here: kombu.Connection, there: kombu.Connection, queue: str
) -> None:
    """A lease lasts three seconds here, so in four it has been renewed or lost."""
    reader = reader_of_one(here, queue)
    other = Reader(there, kombu.Queue(queue))
    until = time.monotonic() + 4
    while time.monotonic() < until:
        with pytest.raises(TimeoutError):
            here.drain_events(timeout=0.5)
    assert other.has_none()
    reader.messages[0].ack()


def test_a_program_that_stood_still_knows_what_another_was_given(
    here: kombu.Connection, there: kombu.Connection, queue: str
) -> None:
    reader = reader_of_one(here, queue)
    reader.consumer.cancel()
    other = Reader(there, kombu.Queue(queue))
    other.wait_for(1)  # when the lease has ended, after three seconds in which nothing was renewed
    assert not reader.messages[0].is_ours
    assert other.messages[0].is_ours
    other.messages[0].ack()
    assert not other.messages[0].is_ours


def test_a_program_that_stood_still_is_not_given_again_what_it_has(
    daemon: Daemon, here: kombu.Connection, queue: str
) -> None:
    reader = reader_of_one(here, queue)
    (message,) = reader.messages
    with tickwheel.sync.Client(daemon.url) as client:
        wait_until(lambda: client.group(queue, "celery").leased == 0)
        message.ack()
        wait_until(lambda: client.group(queue, "celery").backlog == 0)
        reader.messages.clear()
        assert reader.has_none()


def test_what_is_rejected_comes_again_or_becomes_a_dead_letter(
    daemon: Daemon, here: kombu.Connection, queue: str
) -> None:
    here.Producer().publish("bad", routing_key=queue)
    reader = Reader(here, kombu.Queue(queue))
    reader.wait_for(1)
    assert reader.messages[0].delivery_info["redelivered"] is False
    reader.messages[0].reject(requeue=True)
    reader.wait_for(2)
    assert reader.messages[1].delivery_info["redelivered"] is True
    reader.messages[1].reject()
    with tickwheel.sync.Client(daemon.url) as client:
        assert wait_until(lambda: client.group(queue, "celery").dead) == 1


def test_get_sees_what_a_consumer_here_was_sent(here: kombu.Connection, queue: str) -> None:
    here.Producer().publish("seen", routing_key=queue)
    reader = Reader(here, kombu.Queue(queue))
    message = here.default_channel.basic_get(queue)
    assert message is not None
    assert message.body == b"seen"
    assert not reader.messages
    message.ack()


def test_channels_that_close_give_back_what_is_not_acked(
    here: kombu.Connection, there: kombu.Connection, queue: str
) -> None:
    here.Producer().publish("again", routing_key=queue)
    Reader(here, kombu.Queue(queue)).wait_for(1)
    here.release()
    reader = Reader(there, kombu.Queue(queue))
    assert reader.wait_for(1) == ["again"]


def test_a_queue_that_is_not_there_is_not_found(here: kombu.Connection, queue: str) -> None:
    with pytest.raises(kombu.exceptions.ChannelError, match="NOT_FOUND"):
        here.default_channel.queue_declare(queue, passive=True)


def test_what_has_no_route_is_returned(here: kombu.Connection, queue: str) -> None:
    returned: list[Any] = []
    producer = here.Producer(on_return=lambda *what: returned.append(what[1:3]))
    exchange = kombu.Exchange(f"empty-{queue}", type="topic")
    producer.publish("lost", exchange=exchange, routing_key="a.b", declare=[exchange], mandatory=True)
    assert returned == [(exchange.name, "a.b")]


def test_queues_that_delete_themselves_leave_nothing(
    daemon: Daemon, here: kombu.Connection, queue: str
) -> None:
    exchange = kombu.Exchange(f"fan-{queue}", type="fanout")
    reader = Reader(here, kombu.Queue(queue, exchange, auto_delete=True, durable=False))
    with tickwheel.sync.Client(daemon.url) as client:
        (group,) = client.groups(f"x.fan-{queue}")
        assert group.ephemeral_ms == 60_000, "should this process be killed"
        reader.consumer.cancel()
        here.Producer().publish("meanwhile", exchange=exchange)
        reader.consumer.consume()
        assert reader.wait_for(1) == ["meanwhile"], "a consumer that comes back has missed nothing"
        here.release()
        assert client.groups(f"x.fan-{queue}") == []


def test_a_program_that_imports_nothing_names_the_transport(daemon: Daemon, queue: str) -> None:
    program = """
import sys
from celery import Celery
app = Celery(broker=sys.argv[1])
app.conf.broker_transport = "tickwheel.celery:Transport"
app.send_task("report", queue=sys.argv[2])
"""
    subprocess.run([sys.executable, "-c", program, daemon.url, queue], check=True)
    with tickwheel.sync.Client(daemon.url) as client:
        assert client.topic(queue).messages == 1
