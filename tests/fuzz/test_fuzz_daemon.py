"""Garbage and mutated conversations over sockets of the real daemon: it stays up, nobody else is disturbed, and what it
confirmed meanwhile is delivered."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from tests.support.native.frames import ack_payload
from tests.support.native.native_frames import Item, SendFrame
from tests.support.processes.daemon_harness import Daemon, RawConnection
from tests.support.run.profile import amount
from tickwheel.protocol.bodies.requests import REQUEST_CLASSES, encode_body, hello
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.sync import Client

CONNECTIONS = amount("hostile_connections")
NAMES = sorted({name for kind in REQUEST_CLASSES.values() for name in kind.__struct_fields__})
VALUES = [
    None, True, -1, 0, 255, 65_536, (1 << 63) - 1, (1 << 64) - 1, 1.5, "", "t", "g", "x" * 200, "a/b",
    "* * * * *", "select 1", b"", bytes(16), [], [1 << 40], [0, 1 << 62], [[0, 2]], [0] * 50, {}, {"ack_wait_ms": 1},
    {"states": ["ready"]}, {"topic": "t"}, "cancel", "earliest", -(1 << 63),
]  # fmt: skip


def body(chance: random.Random, frame_type: int) -> bytes:
    """The fields of a request, with any values."""
    kind = REQUEST_CLASSES.get(FrameType(frame_type)) if frame_type in list(FrameType) else None
    names = list(kind.__struct_fields__) if kind is not None else NAMES
    chosen = [name for name in names if chance.random() < 0.8]
    return msgspec.msgpack.encode({name: chance.choice(VALUES) for name in chosen})


def payload(chance: random.Random, frame_type: int) -> bytes:
    match chance.randrange(4):
        case 0:
            return chance.randbytes(chance.randrange(100))
        case 1 if frame_type == FrameType.SEND:
            items = [
                Item(
                    chance.randbytes(20),
                    key=chance.randbytes(3),
                    headers=chance.randbytes(9),
                    time=chance.randrange(9),
                )
            ]
            return SendFrame(chance.randrange(1, 3), items, chance.randrange(64)).payload()
        case 1 if frame_type == FrameType.ACK:
            return ack_payload(chance.randrange(3), [chance.randrange(1 << 12)] * 3, [1, 0, 2])
        case _:
            return body(chance, frame_type)


def conversation(chance: random.Random) -> bytes:
    """Frames of all types; one in three ends in noise."""
    stream = bytearray()
    if chance.random() < 0.9:
        stream += encode_frame(FrameType.HELLO, 1, encode_body(hello("fuzz")))
    for correlation in range(2, 2 + chance.randrange(12)):
        frame_type = chance.choice([*REQUEST_CLASSES, FrameType.SEND, FrameType.ACK, chance.randrange(256)])
        stream += encode_frame(frame_type, correlation, payload(chance, frame_type))
    if stream and chance.random() < 0.3:
        cut = chance.randrange(len(stream))
        stream[cut:] = chance.randbytes(chance.randrange(40))
    return bytes(stream)


def talk(url: str, chance: random.Random) -> None:
    """Says it all, in pieces, and reads some of what comes or nothing."""
    with RawConnection(url) as raw:
        data = conversation(chance)
        try:
            while data:
                size = chance.choice([1, 7, 100, len(data)])
                raw.send(data[:size])
                data = data[size:]
            if chance.random() < 0.7:
                raw.socket.shutdown(1)
                while raw.socket.recv(1 << 16):
                    pass
        except ConnectionError:
            return


def test_garbage_disturbs_nobody(tmp_path: Path) -> None:
    limits = {
        "max_frame_bytes": "1MiB",
        "max_body_bytes": "64KiB",
        "segment_bytes": "16MiB",
        "max_topics": 50,
    }
    with Daemon(tmp_path / "data", ack_wait="1s", max_backoff="5s", log_level="info", **limits) as daemon:
        with Client(daemon.unix_url) as client, client.subscribe("safe", group="mine") as subscription:
            for seed in range(CONNECTIONS):
                talk(daemon.url, random.Random(seed))
                if seed % 10 == 0:
                    wait_for(subscription, client.send("safe", b"%d" % seed).id)
        defects = [event for event in daemon.events() if event["event"] == "defect"]
        assert defects == []
        assert daemon.process.poll() is None


def wait_for(subscription: Any, message_id: int) -> None:
    """Strangers may send to that topic as well."""
    while True:
        message = subscription.receive(timeout=60)
        assert message is not None, "a message that was confirmed is lost"
        message.ack()
        if message.id == message_id:
            return
