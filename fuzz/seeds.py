"""Writes inputs for the fuzz targets to start from: frames that clients send, and logs that brokers have written.

Run: python -m fuzz.seeds DIRECTORY (it gets a folder for each target)
"""

from __future__ import annotations

import random
import struct
import sys
import tempfile
from pathlib import Path

import msgspec
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.native.native_frames import Item, SendFrame
from tests.twins.ingest import frame
from tests.unit.tickwheel.server_frames import DeliverItem, encode_deliver
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.messages import Limits, Sender, sent
from timerlog.store import Store

HOW_MENDED, HOW_BUILT = 1, 2
OPERATIONS = 12


def streams() -> list[bytes]:
    """What comes over one connection."""
    items = [
        Item(b"body", key=b"a", headers=b"\x80", time=NOW_MS + 5, priority=3, order=b"o"),
        Item(b"x" * 30, key=b"b", order=b"o"),
        Item(b""),
    ]
    sends = [SendFrame(1, items, columns, 256).encode() for columns in (0, 1, 2, 4, 8, 16, 32, 63)]
    ack = frame(23, 9, ack_payload(1, [1, 2], [1, 1]))
    ping = frame(3, 4, b"")
    strange = [SendFrame(3, items).encode(), SendFrame(1, items * 40, 63).encode()[:-1]]
    return [*sends, b"".join(sends) + ack + ping, ack, ping + strange[0] + sends[7], strange[1]]


def logs() -> list[bytes]:
    """The begin of the log of a broker that did a little of everything."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store.open(Path(directory) / "data", SMALL, NOW_MS)
        topic_id = store.topics.open("t", NOW_MS, create=True)
        group_id = store.groups.open(topic_id, "g", NOW_MS)
        keys = [b"k%d" % number for number in range(6)]
        store.produce.ingest(send(topic_id, [b"body"] * 6, keys=keys, times_ms=[NOW_MS] * 6), NOW_MS)
        store.produce.ingest(send(topic_id, [b"later"] * 3, times_ms=[NOW_MS + 9_000] * 3), NOW_MS)
        pump(store, NOW_MS)
        got = store.deliver.fetch(group_id, store.holders.acquire(group_id), 1, 6, 1 << 16, NOW_MS)
        assert got
        ids, epochs = delivered(got)
        store.deliver.ack(ack_payload(group_id, ids[:3], epochs[:3]), 1, NOW_MS)
        store.settle.nack(group_id, ids[3:5], epochs[3:5], 5, "no", NOW_MS)
        store.change.cancel([7], NOW_MS)
        store.change.reschedule([8], NOW_MS + 20_000, NOW_MS)
        store.sync()
        end = store.log.durable_position
        store.close(clean=False)
        segment = next(
            path for path in (Path(directory) / "data").rglob("*") if path.stat().st_size > 1 << 20
        )
        return [segment.read_bytes()[start:end] for start in (0, 64)]


def wire() -> list[bytes]:
    """Requests of RocketMQ's clients, and deliveries to them, as `target_wire.c` reads them."""
    made = schema.Message(body=b"body", user_properties={"a": "b", "c": "d"})
    made.topic.name = "orders"
    system = made.system_properties
    system.message_id, system.tag, system.message_group, system.trace_context = "01AB", "t", "g", "00-ab"
    system.keys.extend(["k", "l"])
    system.body_encoding, system.message_type, system.born_host, system.priority = 2, 3, "h", 7
    system.born_timestamp.seconds, system.born_timestamp.nanos = 1_700_000, 5_000_000
    system.delivery_timestamp.seconds = NOW_MS // 2_000
    system.body_digest.type, system.body_digest.checksum = 2, "AB"
    ack = schema.AckMessageRequest()
    ack.topic.name, ack.group.name = "t", "g"
    ack.entries.add(message_id="01AB", receipt_handle="tw1.7.1042.1.0.55")
    stored = sent(made, Sender("c", "h"), Limits(), NOW_MS)
    headers = msgspec.msgpack.encode(stored.headers)
    item = DeliverItem(
        id=7,
        deliver_at_ms=NOW_MS,
        created_ms=NOW_MS - 1,
        epoch=1,
        priority=50,
        key=b"key",
        headers=headers,
        body=b"body",
        order_key=b"g",
    )
    send = schema.SendMessageRequest(messages=[made]).SerializeToString()
    kinds = [
        (0, 1, send),
        (0, 2, send * 2),
        (1, 1, ack.SerializeToString()),
        (1, 4, ack.SerializeToString() * 4),
    ]
    kinds += [(2, 1, encode_deliver(9, [item] * count)) for count in (1, 3)]
    return [
        bytes([kind, count - 1, *room, 0, 0, 0]) + data
        for kind, count, data in kinds
        for room in (b"\0\x07\0", b"\xff\x07\xfe", b"\x40\0\x41")
    ]


def choices(length: int, seed: int) -> bytes:
    """For targets whose input is a list of choices: any."""
    return random.Random(seed).randbytes(length)


def connections() -> list[bytes]:
    """What clients of gRPC send after the preface."""
    encoder = Encoder()
    usual = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), ("te", "trailers")]

    def block(path: str, *more: tuple[str, str]) -> bytes:
        return bytes(encoder.encode([*usual, (":path", path), ("content-type", "application/grpc"), *more]))

    both = ["END_HEADERS", "END_STREAM"]
    one, two = b"\0\0\0\0\1a", b"\0\0\0\0\2bc"
    asked = [HeadersFrame(1, block("/t/Echo", ("x-mq-client-id", "me")), flags=["END_HEADERS"])]
    asked += [DataFrame(1, one, flags=["END_STREAM"])]
    chat: list[Frame] = [HeadersFrame(3, block("/t/Chat", ("grpc-timeout", "10S")), flags=["END_HEADERS"])]
    chat += [
        DataFrame(3, one + two[:4]),
        DataFrame(3, two[4:] + one),
        DataFrame(3, b"", flags=["END_STREAM"]),
    ]
    strange: list[Frame] = [HeadersFrame(5, block("/t/None"), flags=both), DataFrame(5, two)]
    strange += [
        HeadersFrame(7, block("/t/Echo", ("grpc-encoding", "zip"))),
        ContinuationFrame(7, b"", flags=both[:1]),
    ]
    strange += [DataFrame(7, b"\1\0\0\0\1x"), RstStreamFrame(7, 8), WindowUpdateFrame(0, 100)]
    strange += [HeadersFrame(9, block("/t/Echo", ("a", "b" * 2_000)), flags=both), PriorityFrame(11)]
    settings: list[Frame] = [SettingsFrame(0, {4: 20, 1: 0}), SettingsFrame(0, flags=["ACK"])]
    settings += [PingFrame(0, b"12345678"), GoAwayFrame(0, 0)]
    every = [
        settings[:1],
        asked,
        chat,
        strange,
        settings,
        asked + chat,
        settings[:1] + asked + chat + strange,
    ]
    return [b"".join(frame.serialize() for frame in frames) for frames in every]


def inputs() -> dict[str, list[bytes]]:
    """By target."""
    messages = [log for log in logs() if log]
    records = [
        log[at:]
        for log in messages
        for at in range(0, min(len(log), 1_200), 8)
        if log[at + 8 : at + 9] == b"\1"
    ]
    return {
        "ingest": [
            bytes([how, cut]) + stream for how in (0, 1, 3) for cut in (0, 6, 255) for stream in streams()
        ],
        "engine": [choices(length, length) for length in (40, 200, 900, 2_000)],
        "log": [bytes([how, 200]) + log[:8_000] for how in (0, 1) for log in (*messages, *records[:6])],
        "bulk": [bytes([how]) + record[:2_000] for how in (0, 1, 17) for record in records[:6]]
        + [bytes([HOW_BUILT]) + struct.pack("<H", 4_000) + choices(300, seed) for seed in range(8)],
        "http2": [
            bytes([how, cut, 8]) + choices(8, how) + stream
            for how in (0, 2, 8)
            for cut in (0, 7, 30)
            for stream in connections()
        ],
        "keys": [choices(length, length) for length in (60, 400, 1_500)],
        "wire": wire(),
        "wheel": [bytes([how]) + choices(length, length) for how in (0, 1) for length in (60, 400, 1_500)],
    }


def main(directory: Path) -> None:
    """Writes all of them."""
    for target, found in inputs().items():
        folder = directory / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(found):
            (folder / f"seed-{number:03d}").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
