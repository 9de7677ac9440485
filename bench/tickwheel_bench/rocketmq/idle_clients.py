"""Many clients of RocketMQ that have nothing to do, cheaply: one process, one thread, HTTP/2 by hand.

Each has a connection of its own, as RocketMQ's clients have: a telemetry stream with its settings, a heartbeat every 10
seconds, and a receive that waits 20 seconds, again and again. Headers are as those clients send them, in HPACK with a
dynamic table. Prints a line of JSON when all have their settings, and another with counts when standard input ends.

python -m tickwheel_bench.rocketmq.idle_clients HOST:PORT COUNT
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from typing import Any, Final

from hpack import Decoder, Encoder

from tickwheel_broker.net.open_files import allow_many
from tickwheel_gateway.wire import schema

HEARTBEAT_S: Final = 10.0
POLL_S: Final = 20
_TAG: Final = 1
"""Of the types of a filter."""
OF_A_GROUP: Final = 50
GROUPS_OF_A_TOPIC: Final = 10
_TICK_S: Final = 0.01
_AT_A_TIME: Final = 64
"""So many begin before others do."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = struct.Struct(">BHBBI")
_SETTING: Final = struct.Struct(">HI")
_TABLE_SIZE: Final = 1
"""Of HPACK, as a setting."""
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_TELEMETRY_STREAM: Final = 1
_LATE: Final = "4"
"""The status of gRPC of a call whose deadline has passed, on a machine that has more to do than it can."""


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


OPENING: Final = _PREFACE + _frame(_SETTINGS, 0, 0, b"")
"""Of each connection."""


def _message(request: Any) -> bytes:
    data = bytes(request.SerializeToString())
    return b"\0" + len(data).to_bytes(4, "big") + data


class IdleClient:
    """One of them."""

    def __init__(self, number: int, address: tuple[str, int], counts: Counter[str]) -> None:
        group = number // OF_A_GROUP
        self._name = f"host-{number % 97}@{number}@0@bench"
        self._group, self._topic = f"group-{group}", f"topic-{group // GROUPS_OF_A_TOPIC}"
        self._counts = counts
        self._encoder, self._decoder = Encoder(), Decoder()
        self._authority = "{}:{}".format(*address)
        self._received = bytearray()
        self._next = _TELEMETRY_STREAM
        self._requests = 0
        self._kinds: dict[int, str] = {}
        self.has_settings = False
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(OPENING + self._opening())

    def _opening(self) -> bytes:
        command = schema.TelemetryCommand()
        command.settings.client_type = schema.PUSH_CONSUMER
        command.settings.subscription.group.name = self._group
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = self._topic, "*"
        entry.expression.type = _TAG
        return self._call("Telemetry", _message(command), is_open=True)

    def beat(self) -> None:
        """A heartbeat."""
        request = schema.HeartbeatRequest(client_type=schema.PUSH_CONSUMER)
        request.group.name = self._group
        self.sock.sendall(self._call("Heartbeat", _message(request), timeout_ms=3_000))

    def poll(self) -> None:
        """A receive."""
        request = schema.ReceiveMessageRequest(batch_size=32, auto_renew=True)
        request.group.name, request.message_queue.topic.name = self._group, self._topic
        request.filter_expression.expression = "*"
        request.filter_expression.type = _TAG
        request.long_polling_timeout.seconds = POLL_S
        self.sock.sendall(self._call("ReceiveMessage", _message(request), timeout_ms=POLL_S * 1_000 + 3_000))

    def _call(self, name: str, message: bytes, *, timeout_ms: int = 0, is_open: bool = False) -> bytes:
        stream, self._next = self._next, self._next + 2
        self._requests += 1
        self._kinds[stream] = name
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", schema.SERVICE + name),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-java-netty/1.50.0"),
            ("x-mq-language", "JAVA"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-client-id", self._name),
            ("x-mq-date-time", time.strftime("%Y%m%dT%H%M%SZ")),
            ("x-mq-request-id", f"{id(self):032x}"[-24:] + f"{self._requests:08x}"),
            *([("grpc-timeout", f"{timeout_ms}m")] if timeout_ms else []),
        ]
        head = _frame(_HEADERS, _END_HEADERS, stream, self._encoder.encode(headers))
        return head + _frame(_DATA, 0 if is_open else _END_STREAM, stream, message)

    def read(self) -> None:
        """What has come. Raises RuntimeError if the gateway does not do what it should."""
        data = self.sock.recv(65_536)
        if not data:
            raise RuntimeError("the gateway has hung up")
        self._received += data
        while len(self._received) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._received)
            end = _HEAD.size + (high << 16 | low)
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEAD.size : end])
            del self._received[:end]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (_RESET, _GOAWAY):
            raise RuntimeError(f"the gateway has ended stream {stream}: {payload!r}")
        if kind == _SETTINGS:
            for name, value in _SETTING.iter_unpack(payload):
                if name == _TABLE_SIZE:
                    self._encoder.header_table_size = value
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.sock.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _DATA:
            self._read_message(stream, payload)
        elif kind == _HEADERS:
            status = dict(self._decoder.decode(payload, raw=True)).get(b"grpc-status", b"0").decode()
            if status not in ("0", _LATE):
                raise RuntimeError(f"{self._kinds[stream]} ended with gRPC status {status}")
            if flags & _END_STREAM:
                name = self._kinds.pop(stream)
                self._counts[f"{name} late" if status == _LATE else name] += 1
                if name == "ReceiveMessage":
                    self.poll()

    def _read_message(self, stream: int, payload: bytes) -> None:
        """Of those that matter here, each has a frame of its own, or is the first in one."""
        name = self._kinds[stream]
        answer = (schema.TelemetryCommand if name == "Telemetry" else getattr(schema, f"{name}Response"))()
        answer.MergeFromString(payload[5 : 5 + int.from_bytes(payload[1:5], "big")])
        if answer.HasField("status"):
            self._counts[f"{name} {answer.status.code}"] += 1
        if name == "Telemetry" and not self.has_settings:
            self.has_settings = True
            self.poll()


def main(place: str, count: int) -> None:
    """See above."""
    allow_many()
    host, _, port = place.rpartition(":")
    counts: Counter[str] = Counter()
    selector = selectors.DefaultSelector()
    clients: list[IdleClient] = []
    selector.register(sys.stdin, selectors.EVENT_READ)
    beats: list[float] = []
    is_told = False
    while True:
        begun = [one for one in clients[-_AT_A_TIME:] if not one.has_settings]
        while len(clients) < count and len(begun) < _AT_A_TIME:
            one = IdleClient(len(clients), (host, int(port)), counts)
            selector.register(one.sock, selectors.EVENT_READ, one)
            clients.append(one)
            begun.append(one)
            # Evenly over the time, however fast they came.
            beats.append(time.monotonic() + HEARTBEAT_S * (1 + len(clients) / count))
        if not is_told and len(clients) == count and all(one.has_settings for one in clients):
            print(json.dumps({"clients": count}), flush=True)
            is_told = True
        for key, _ in selector.select(_TICK_S):
            if key.data is None:
                print(json.dumps(counts), flush=True)
                return
            key.data.read()
        now = time.monotonic()
        for number, due in enumerate(beats):
            if due <= now:
                clients[number].beat()
                beats[number] += HEARTBEAT_S


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
