"""Clients of the real web process that go away, do not read, or are there when it ends: nothing stays leased."""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing
from typing import Any

import pytest

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web

pytestmark = pytest.mark.shared_daemon

JSON = {"Content-Type": "application/json"}
LARGE = b"x" * (3 << 20)


def post(web: Web, target: str, what: Any) -> Any:
    with closing(web.connection()) as connection:
        connection.request("POST", target, json.dumps(what), JSON)
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())


def request(target: str, what: Any) -> bytes:
    body = json.dumps(what)
    head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


def until_waiting(daemon: Daemon, topic: str, count: int) -> None:
    """Until so many wait for messages."""
    deadline = time.monotonic() + PATIENCE_S
    with tickwheel.sync.Client(daemon.url) as client:
        while sum(group.subscribers for group in client.groups(topic)) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_client_that_goes_away_while_it_waits(web: Web, daemon: Daemon, topic: str) -> None:
    target = f"/v1/topics/{topic}/groups/g/receive"
    assert post(web, target, {}) == {"items": []}
    with socket.create_connection(("127.0.0.1", web.port), PATIENCE_S) as raw:
        raw.sendall(request(target, {"wait": "60s", "lease": "1h"}))
        until_waiting(daemon, topic, 1)
    until_waiting(daemon, topic, 0)
    with tickwheel.sync.Client(daemon.url) as client:
        client.send(topic, b"x")
    (item,) = post(web, target, {"wait": "60s"})["items"]
    assert item["attempt"] == 1


def test_an_answer_that_is_not_read_before_its_client_goes_away(web: Web, daemon: Daemon, topic: str) -> None:
    target = f"/v1/topics/{topic}/groups/g/receive"
    with tickwheel.sync.Client(daemon.url) as client:
        client.send(topic, LARGE)
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            raw.settimeout(PATIENCE_S)
            raw.connect(("127.0.0.1", web.port))
            raw.sendall(request(target, {"wait": "60s", "lease": "1h"}))
            assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
            assert [group.leased for group in client.groups(topic)] == [1]
    item = post(web, target, {"wait": "60s"})["items"][0]
    assert (item["attempt"], len(item["base64"])) == (1, 4 << 20)


def test_who_waits_when_it_ends_is_answered(web: Web, daemon: Daemon, topic: str) -> None:
    target = f"/v1/topics/{topic}/groups/g/receive"
    assert post(web, target, {}) == {"items": []}
    with closing(web.connection()) as connection:
        connection.request("POST", target, json.dumps({"wait": "60s"}), JSON)
        until_waiting(daemon, topic, 1)
        web.process.terminate()
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())) == (200, {"items": []})
    _, said = web.process.communicate(timeout=PATIENCE_S)
    assert (web.process.returncode, said) == (0, b"")
