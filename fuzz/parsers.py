"""What reads bytes or texts of others in Python: each entry takes any bytes, and raises only if there is a defect.

tests/fuzz runs them under hypothesis, on any input and on what once failed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tickwheel.client.admin.vitess import parse_vitess
from tickwheel.client.url import parse_urls
from tickwheel.errors import (
    BadFrame,
    BadRequest,
    BadSchedule,
    BadTopicSettings,
    ConfigError,
    RemoteProtocolError,
)
from tickwheel.protocol.bodies.requests import (
    REQUEST_CLASSES,
    HelloOk,
    decode_error,
    decode_request,
    encode_body,
    hello,
)
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.limits import MAX_HANDSHAKE_BYTES
from tickwheel.protocol.machine import ClientMachine, ServerMachine
from tickwheel.protocol.messages import decode_ack, decode_ack_ok, decode_deliver, decode_send, decode_send_ok
from tickwheel_broker.config import load as config
from tickwheel_broker.documents.schedule_slots import check, decide, merged, upcoming
from timerlog.recovery import checkpoint

NOW_MS: Final = 1_900_000_000_000
HELLO_OK: Final = encode_body(
    HelloOk(
        protocol=1,
        server="fuzz",
        now_ms=0,
        max_frame_bytes=1 << 20,
        max_body_bytes=1 << 16,
        max_key_bytes=255,
        max_headers_bytes=32_768,
    )
)


def _frames(data: bytes) -> bytes:
    """A stream of frames with right checksums: for each its type, the length of its payload, the payload."""
    stream, at = b"", 0
    while at + 3 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 3], "little") % 2_048
        stream += encode_frame(data[at], data[at] % 5, data[at + 3 : at + 3 + size])
        at += 3 + size
    return stream


def _events(machine: ClientMachine | ServerMachine, parts: Iterator[bytes]) -> list[object]:
    found: list[object] = []
    try:
        for part in parts:
            found.extend(map(repr, machine.receive_data(part)))
    except RemoteProtocolError as error:
        found.append(error.code)
    return found


def _both_ways(make: Callable[[], ClientMachine | ServerMachine], stream: bytes) -> None:
    """At once and byte by byte give the same."""
    at_once = _events(make(), iter([stream]))
    single = _events(make(), (stream[i : i + 1] for i in range(len(stream))))
    assert at_once == single, "how the bytes are cut makes a difference"


def _greeted_client() -> ClientMachine:
    machine = ClientMachine()
    machine.hello("fuzz")
    list(machine.receive_data(encode_frame(FrameType.HELLO_OK, 1, HELLO_OK)))
    machine.request(FrameType.STATS, b"")
    machine.request(FrameType.SEND, b"")
    machine.request(FrameType.CANCEL, b"")
    return machine


def _greeted_server() -> ServerMachine:
    machine = ServerMachine(1 << 20)
    list(machine.receive_data(encode_frame(FrameType.HELLO, 1, encode_body(hello("fuzz")))))
    return machine


def client(data: bytes) -> None:
    """What a broker, or somebody in its place, sends to a client."""
    stream = _frames(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    _both_ways(ClientMachine if data[:1] and data[0] & 2 else _greeted_client, stream)


def server(data: bytes) -> None:
    """What anybody sends to a broker."""
    stream = _frames(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    start = data[:1] and data[0] & 2
    _both_ways(lambda: ServerMachine(MAX_HANDSHAKE_BYTES) if start else _greeted_server(), stream)


def bodies(data: bytes) -> None:
    """The payload of every kind of frame."""
    for decode in (decode_send, decode_ack, decode_deliver, decode_send_ok, decode_ack_ok, decode_error):
        try:
            decode(data)
        except BadFrame:
            continue
    for frame_type in REQUEST_CLASSES:
        try:
            decode_request(frame_type, data)
        except BadRequest:
            continue


def toml(data: bytes) -> None:
    """A configuration file."""
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        try:
            config.load(Path(file.name), {})
        except ConfigError:
            return


def settings(data: bytes) -> None:
    """One setting of the environment after the other."""
    text = data.decode(errors="replace")
    for name in config.FIELDS:
        try:
            config.load(None, {f"TICKWHEEL_{name.upper()}": text})
        except ConfigError:
            continue


def url(data: bytes) -> None:
    """The address of a broker."""
    try:
        parse_urls(data.decode(errors="replace"))
    except ConfigError:
        return


def vitess(data: bytes) -> None:
    """The comment of a Vitess message table."""
    try:
        parse_vitess(data.decode(errors="replace"))
    except BadTopicSettings:
        return


def cron(data: bytes) -> None:
    """A schedule with a cron expression and a time zone; then its next slots, and what it missed in a year."""
    expression, _, zone = data.decode(errors="replace").partition("|")
    known: dict[str, Any] = {"name": "s", "topic": "t"}
    try:
        schedule = merged(known, {"cron": expression, "tz": zone or "UTC"})
        check(schedule)
    except BadSchedule:
        return
    found = upcoming(schedule, NOW_MS, 5)
    assert found == sorted(set(found))
    behind = merged(schedule, {"catch_up": "last"})
    list(islice(decide(behind, NOW_MS), 1_000))


def checkpoints(data: bytes) -> None:
    """A checkpoint whose checksum is right."""
    body = checkpoint.MAGIC + checkpoint.crc32c(data).to_bytes(4, "little") + data
    for content in (data, body):
        disk: Any = SimpleNamespace(read=lambda name, content=content: content)
        checkpoint.load(disk)


PARSERS: Final[dict[str, Callable[[bytes], None]]] = {
    parser.__name__: parser
    for parser in (client, server, bodies, toml, settings, url, vitess, cron, checkpoints)
}
