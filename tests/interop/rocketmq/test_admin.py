"""What ``mqadmin`` asks for is made in Tickwheel: its frames, as it sends them, without it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

import pytest

import tickwheel.sync
from tests.support.processes.daemon_harness import Daemon
from tests.support.rocketmq.admin import CLUSTER, Administration

UPDATE_TOPIC: Final = {"topic": "%DLQ%billing", "writeQueueNums": "8", "attributes": "+message.type=DELAY"}


class Asking:
    """A connection to the name server, or to the broker: they are one."""

    def __init__(self, administration: Administration) -> None:
        host, port = administration.address.split(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._opaque = 0

    def tell(self, code: int, flag: int, **fields: str) -> None:
        self._opaque += 1
        head = {"code": code, "flag": flag, "opaque": self._opaque, "version": 401, "extFields": fields}
        top, body = json.dumps(head).encode(), b'{"groupName":"g"}'
        self.send(struct.pack(">II", 4 + len(top) + len(body), len(top)) + top + body)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, code: int, **fields: str) -> tuple[int, str]:
        self.tell(code, 0, **fields)
        length, top_length = struct.unpack(">II", self._receive(8))
        rest = self._receive(length - 4)
        head: dict[str, Any] = json.loads(rest[:top_length])
        assert (head["opaque"], head["flag"]) == (self._opaque, 1)
        return head["code"], rest[top_length:].decode()

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the connection was closed"
            data += more
        return data

    def is_closed(self) -> bool:
        return self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("admin") / "data", auto_create_topics=False) as running:
        yield running


@pytest.fixture
def asking(daemon: Daemon) -> Iterator[Asking]:
    with Administration(daemon.unix_url) as administration:
        one = Asking(administration)
        yield one
        one.close()


def test_a_topic_is_there_when_it_is_answered(daemon: Daemon, asking: Asking) -> None:
    asked_for = {"topic": UPDATE_TOPIC["topic"]}
    for code in (105, 202, 351):
        assert asking.ask(code, **asked_for) == (17, "")
    for _ in range(2):  # again changes nothing
        assert asking.ask(17, **UPDATE_TOPIC) == (0, "")
        with tickwheel.sync.connect(daemon.unix_url) as client:
            assert [topic.name for topic in client.topics()] == ["rmq.DLQ.billing"]
    code, body = asking.ask(105, **asked_for)
    (broker,), (queues,) = json.loads(body)["brokerDatas"], json.loads(body)["queueDatas"]
    assert (code, broker["cluster"], queues["writeQueueNums"]) == (0, CLUSTER, 8)
    code, body = asking.ask(202, **asked_for)
    assert code == 0
    assert body.startswith('{"offsetTable":{{')
    assert asking.ask(351, **asked_for)[0] == 0


def test_the_cluster_has_one_broker(asking: Asking) -> None:
    code, body = asking.ask(106)
    cluster = json.loads(body)
    (name,) = cluster["clusterAddrTable"][CLUSTER]
    assert (code, cluster["brokerAddrTable"][name]["brokerName"]) == (0, name)
    assert asking.ask(105, topic=CLUSTER)[0] == 0


def test_what_is_not_known_is_not_supported(asking: Asking) -> None:
    for code in (34, 35, 200):
        assert asking.ask(code) == (0, "")
    asking.tell(34, 2)  # wants no answer, and gets none
    assert asking.ask(9_999) == (3, "")


@pytest.mark.parametrize(
    "frame", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">II", 2, 9), struct.pack(">II", 9, 9)]
)
def test_what_is_no_frame_ends_the_connection(asking: Asking, frame: bytes) -> None:
    asking.send(frame)
    assert asking.is_closed()
