"""Pipelined messages are confirmed at the end: of their connection, and of a process that closes none."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest

import tickwheel.celery
import tickwheel.sync
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.celery.transport.sending import OPEN_MAX
from tickwheel.errors import ConnectionDenied
from tickwheel_bench.processes import free_port, wait_until

assert tickwheel.celery.TRANSPORT

SENT = 20
PROGRAM = f"""
import sys
import kombu, tickwheel.celery

connection = kombu.Connection(sys.argv[1], transport_options={{"publish": "pipelined"}})
producer = connection.Producer()
producer.publish("first", routing_key="t")
print("ready", flush=True)
input()
for number in range({SENT}):
    producer.publish(number, routing_key="t")
print("sent", flush=True)
if sys.argv[2] != "ends":
    while connection.connection.broker.is_connected:
        connection.connection.turn()
input()
if sys.argv[2] != "ends":
    connection.close() if sys.argv[2] == "closes" else connection.collect()
"""


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Daemon]:
    """A broker that has the same address after a kill."""
    with Daemon(tmp_path / "data", listen_port=free_port()) as daemon:
        yield daemon


def start(daemon: Daemon, end: str) -> subprocess.Popen[str]:
    """A process that has sent the first message."""
    words = [sys.executable, "-c", PROGRAM, daemon.url, end]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def send_rest(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "sent\n"


def messages(daemon: Daemon) -> int:
    with tickwheel.sync.Client(daemon.url) as client:
        return client.topic("t").messages


def test_many(daemon: Daemon, queue: str) -> None:
    with kombu.Connection(daemon.url, transport_options={"publish": "pipelined"}) as connection:
        producer = connection.Producer()
        for number in range(2_500):
            producer.publish(number, routing_key=queue)
    with tickwheel.sync.Client(daemon.url) as client:
        assert client.topic(queue).messages == 2_500


@pytest.mark.parametrize("end", ["closes", "collects", "ends"])
def test_while_there_is_no_broker(restartable: Daemon, end: str) -> None:
    """What is sent while the broker is away is there when the broker is back."""
    with start(restartable, end) as process:
        restartable.kill()
        send_rest(process)
        restartable.start()
        _, told = process.communicate("\n", timeout=PATIENCE_S)
        assert (process.returncode, told) == (0, "")
    wait_until(lambda: messages(restartable) == 1 + SENT)


def test_a_process_that_ends_without_a_broker_tells_of_it(restartable: Daemon) -> None:
    with start(restartable, "ends") as process:
        restartable.kill()
        send_rest(process)
        _, told = process.communicate("\n", timeout=PATIENCE_S)
    assert f"The broker has not confirmed {SENT} pipelined messages within 10 s." in told
    restartable.start()
    assert messages(restartable) == 1


def unconfirmed(caplog: pytest.LogCaptureFixture) -> int:
    told = [re.search(r"were not confirmed: (\d+)", record.getMessage()) for record in caplog.records]
    return sum(int(found[1]) for found in told if found is not None)


def test_a_connection_that_is_refused_for_good_tells_of_each(
    restartable: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    connection = kombu.Connection(restartable.url, transport_options={"publish": "pipelined"})
    producer = connection.Producer()
    producer.publish("first", routing_key="t")
    restartable.kill()
    for number in range(SENT):
        producer.publish(number, routing_key="t")
    connection.connection.broker.session.close(ConnectionDenied("The token was revoked."))
    with pytest.raises(ConnectionDenied):
        connection.close()
    assert unconfirmed(caplog) == SENT
    restartable.start()


def test_each_message_is_stored_or_told_of_where_kombu_tries_again(
    restartable: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Kombu drops its connection after an error, with what the connection had not confirmed yet."""
    options = {"publish": "pipelined", "timeout": 2}
    with kombu.Connection(restartable.url, transport_options=options) as connection:
        producer = connection.Producer()
        producer.publish("first", routing_key="t")
        restartable.kill()
        for number in range(OPEN_MAX - 1):
            producer.publish(number, routing_key="t")
        opened = connection.connection
        wait_until(lambda: not opened.broker.is_connected or opened.turn())

        def start_later() -> None:
            wait_until(lambda: unconfirmed(caplog) > 0)
            restartable.start()

        thread = threading.Thread(target=start_later)
        thread.start()
        producer.publish("last", routing_key="t", retry=True, retry_policy={"interval_start": 0.2})
        thread.join()
    assert messages(restartable) + unconfirmed(caplog) == OPEN_MAX + 1
