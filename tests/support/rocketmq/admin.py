"""A name server and a broker of RocketMQ, as far as ``mqadmin`` needs them to make topics: they are made in Tickwheel.

Test suites that were written for a cluster of RocketMQ make their topics and groups so, and then talk to a proxy. With
this beside a gateway they need no RocketMQ, and the gateway is asked about a topic only after it has been made. The
protocol is RocketMQ's "remoting": a frame is its length, the length of a head in JSON, the head, and a body.

The settings of a group are for the gateway, from its start on, so making one is only answered.
"""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeAlias

import tickwheel.sync
from tests.support.clients.serving import ServerThread
from tickwheel.errors import TopicExists
from tickwheel_gateway.wire.names import topic_of

CLUSTER: Final = "DefaultCluster"
_BROKER: Final = "tickwheel"
_MAX_FRAME_BYTES: Final = 1 << 20
_IS_RESPONSE: Final = 1
_IS_ONE_WAY: Final = 2

_UPDATE_TOPIC: Final = 17
_HEARTBEAT: Final = 34
_UNREGISTER: Final = 35
_ROUTE: Final = 105
_CLUSTER_INFO: Final = 106
_UPDATE_GROUP: Final = 200
_TOPIC_STATS: Final = 202
_TOPIC_CONFIG: Final = 351

_OK: Final = 0
_NOT_SUPPORTED: Final = 3
_NO_TOPIC: Final = 17

Answer: TypeAlias = tuple[int, Any]
"""A code, and what becomes the body: bytes as they are, None for none."""


class Administration:
    """Listens on loopback while it is entered."""

    def __init__(self, url: str) -> None:
        """``url``: of the broker of Tickwheel."""
        self._client = tickwheel.sync.connect(url)
        self._lock = threading.Lock()
        self._topics: dict[str, int] = {}
        server = _Server(("127.0.0.1", 0), _Connection)
        server.answer = self._answer
        host, port = server.server_address[:2]
        self.address = f"{host!s}:{port}"
        self._serving = ServerThread(server)

    @property
    def made(self) -> list[str]:
        """The topics that were asked for, as RocketMQ has their names."""
        with self._lock:
            return list(self._topics)

    def __enter__(self) -> Administration:
        self._client.__enter__()
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.stop()
        self._client.__exit__(kind, error, trace)

    def _answer(self, code: int, fields: dict[str, str]) -> Answer:
        with self._lock:
            if code == _UPDATE_TOPIC:
                self._make(fields["topic"], int(fields.get("writeQueueNums", 1)))
                return _OK, None
            if code == _ROUTE:
                return self._route(fields["topic"])
            if code == _TOPIC_STATS:
                return self._stats(fields["topic"])
            if code == _TOPIC_CONFIG:
                return self._config(fields["topic"])
        if code == _CLUSTER_INFO:
            broker = {"brokerName": _BROKER, "cluster": CLUSTER, "brokerAddrs": {"0": self.address}}
            return _OK, {"brokerAddrTable": {_BROKER: broker}, "clusterAddrTable": {CLUSTER: [_BROKER]}}
        if code in (_HEARTBEAT, _UNREGISTER, _UPDATE_GROUP):
            return _OK, None
        return _NOT_SUPPORTED, None

    def _make(self, topic: str, queues: int) -> None:
        with suppress(TopicExists):
            self._client.create_topic(topic_of(topic))
        self._topics[topic] = queues

    def _route(self, topic: str) -> Answer:
        """A cluster is asked for like a topic: that is how a new topic's brokers are found."""
        if topic != CLUSTER and topic not in self._topics:
            return _NO_TOPIC, None
        count = self._topics.get(topic, 1)
        queues = {"brokerName": _BROKER, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
        broker = {"brokerName": _BROKER, "cluster": CLUSTER, "brokerAddrs": {"0": self.address}}
        return _OK, {"brokerDatas": [broker], "queueDatas": [queues], "filterServerTable": {}}

    def _config(self, topic: str) -> Answer:
        if topic not in self._topics:
            return _NO_TOPIC, None
        count = self._topics[topic]
        return _OK, {"topicName": topic, "readQueueNums": count, "writeQueueNums": count, "perm": 6}

    def _stats(self, topic: str) -> Answer:
        if topic not in self._topics:
            return _NO_TOPIC, None
        queue = json.dumps({"brokerName": _BROKER, "queueId": 0, "topic": topic})
        offsets = json.dumps({"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0})
        return (
            _OK,
            f'{{"offsetTable":{{{queue}:{offsets}}}}}'.encode(),
        )  # RocketMQ's maps have objects as keys


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    answer: Callable[[int, dict[str, str]], Answer]


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """One request after another, until the other end has no more."""
        with suppress(ConnectionError):
            while (request := self._request()) is not None:
                code, body = self.server.answer(request["code"], request.get("extFields") or {})
                if not request["flag"] & _IS_ONE_WAY:
                    self._reply(request, code, body)

    def _request(self) -> dict[str, Any] | None:
        prefix = self.rfile.read(8)
        if len(prefix) < 8:
            return None
        length, head_length = struct.unpack(">II", prefix)
        head_length &= 0xFF_FFFF  # the byte before it says JSON
        if not 4 + head_length <= length <= _MAX_FRAME_BYTES:
            return None
        rest = self.rfile.read(length - 4)
        if len(rest) < length - 4:
            return None
        head: dict[str, Any] = json.loads(rest[:head_length])
        return head

    def _reply(self, request: dict[str, Any], code: int, body: Any) -> None:
        head = {
            "code": code,
            "flag": _IS_RESPONSE,
            "language": "OTHER",
            "opaque": request["opaque"],
            "version": request.get("version", 0),
        }
        if code != _OK:
            head["remark"] = "there is no such topic" if code == _NO_TOPIC else "not supported"
        top = json.dumps(head).encode()
        if not isinstance(body, bytes):
            body = b"" if body is None else json.dumps(body).encode()
        self.wfile.write(struct.pack(">II", 4 + len(top) + len(body), len(top)) + top + body)
