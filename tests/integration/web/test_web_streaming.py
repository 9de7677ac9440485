"""Streams of the real web process: messages as they become due, settled by other requests and other clients."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

import tickwheel
from tests.integration.web.test_web_presence import post
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web
from tickwheel_bench.processes import wait_until

LONG = timedelta(seconds=PATIENCE_S)


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


class Events:
    """An open stream."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> tuple[str, Any]:
        """The kind of the next event, and its data; `end` at the end."""
        kind, data = "message", ""
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                data += value
            elif not line.strip() and data:
                return kind, json.loads(data)
        return "end", None

    def message(self) -> Any:
        kind, item = self.next()
        assert kind == "message"
        return item


@contextmanager
def stream(web: Web, topic: str, query: str) -> Iterator[Events]:
    connection: HTTPConnection = web.connection()
    with closing(connection):
        connection.request(
            "GET", f"/v1/topics/{topic}/groups/g/stream?{query}", headers={"Accept-Encoding": "gzip"}
        )
        with closing(connection.getresponse()) as answer:
            assert (answer.status, answer.headers["content-type"]) == (
                200,
                "text/event-stream; charset=utf-8",
            )
            yield Events(answer)


def test_messages_come_as_they_become_due_and_as_there_is_credit(
    web: Web, daemon: Daemon, topic: str
) -> None:
    settle = f"/v1/topics/{topic}/groups/g/settle"
    with tickwheel.sync.Client(daemon.url) as client:
        with stream(web, topic, "credit=2") as events:
            client.send(
                topic, b'{"order":\n\n17,\r\n"of": "ada"}', headers={"content-type": "application/json"}
            )
            first = events.message()
            assert (first["body"], first["attempt"]) == ({"order": 17, "of": "ada"}, 1)
            client.send_many(topic, [b"b", b"c", b"d"])
            second = events.message()
            assert post(web, settle, {"ack": [first["receipt"]]})["ack"] == ["acked"]
            third = events.message()
            assert client.ack(client.group(topic, "g").group_id, [(int(third["id"]), 1)]) == ["acked"]
            fourth = events.message()
            assert post(web, settle, {"ack": [fourth["receipt"]]})["ack"] == ["acked"]
        back = client.fetch(topic, "g", count=9, wait=LONG)
        assert ([str(one.id) for one in back], back.attempts) == ([second["id"]], (2,))


def test_the_end_of_the_web_process_is_no_attempt(web: Web, daemon: Daemon, topic: str) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        client.send(topic, b"x")
        with stream(web, topic, "credit=1&lease=1h") as events:
            assert events.message()["attempt"] == 1
            web.process.terminate()
            assert events.next() == ("end", None)
        _, said = web.process.communicate(timeout=PATIENCE_S)
        assert (web.process.returncode, said) == (0, b"")
        assert client.fetch(topic, "g", wait=LONG).attempts == (1,)


def test_the_end_of_the_broker_is_told(web: Web, daemon: Daemon, topic: str) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        client.send(topic, b"x")
    with stream(web, topic, "credit=2") as events:
        assert events.message()["id"] == "1"
        daemon.kill()
        kind, problem = events.next()
        assert (kind, problem["code"]) == ("problem", "request_uncertain")
        assert events.next() == ("end", None)


def test_what_a_web_process_was_given_while_it_stood_still_was_no_attempt(
    web: Web, daemon: Daemon, topic: str
) -> None:
    """SIGSTOP, until the leases have ended: a stream that asked before gets all messages, which are tried once only."""
    with tickwheel.sync.Client(daemon.url) as client:
        client.create_topic(topic, max_attempts=1)
        with stream(web, topic, "credit=10&lease=1s") as events:
            client.send(topic, b'"before"')
            post(web, f"/v1/topics/{topic}/groups/g/settle", {"ack": [events.message()["receipt"]]})
            web.process.send_signal(signal.SIGSTOP)
            client.send_many(topic, [b"1", b"2", b"3"])
            wait_until(lambda: client.group(topic, "g").leased > 0)
            wait_until(lambda: client.group(topic, "g").leased == 0)
            assert client.group(topic, "g").backlog == 3
            web.process.send_signal(signal.SIGCONT)
            seen = set()
            while client.group(topic, "g").acked < 4:
                item = events.message()
                seen.add(item["id"])
                post(web, f"/v1/topics/{topic}/groups/g/settle", {"ack": [item["receipt"]]})
        assert client.group(topic, "g").dead == 0
        assert len(seen) == 3
