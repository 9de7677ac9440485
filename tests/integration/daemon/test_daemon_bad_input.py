"""Everything a client can do wrong, byte by byte, against the real daemon: each answered as docs/protocol.md says."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes.daemon_harness import Daemon, RawConnection
from tickwheel.errors import TickwheelError
from tickwheel.protocol.bodies.requests import (
    Cancel,
    Hello,
    OpenTopic,
    Subscribe,
    Unsubscribe,
    decode_error,
    encode_body,
    encode_map,
    hello,
)
from tickwheel.protocol.frames import Frame, FrameType, encode_frame

MAX_FRAME_BYTES = 1 << 20
LIMITS = {
    "max_body_bytes": "64KiB",
    "max_frame_bytes": MAX_FRAME_BYTES,
    "max_connections": 8,
    "max_topics": 6,
    "max_groups": 3,
    "max_subscriptions": 4,
    "handshake_timeout": "500ms",
    "idle_timeout": "1s",
    "send_timeout": "1s",
    "write_high_water_bytes": "64KiB",
}


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """What a test can reach."""
    return LIMITS


@pytest.fixture(scope="module")
def daemon(daemon: Daemon) -> Iterator[Daemon]:
    """Nothing that a client does is an error of the broker."""
    yield daemon
    assert not [event for event in daemon.events() if event["level"] == "error"]


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[RawConnection]:
    with RawConnection(daemon.url) as connection:
        yield connection


def send_payload(topic_id: int, bodies: list[bytes], *, columns: int = 0, due: int = 0) -> bytes:
    head = struct.pack("<IIIIq", topic_id, len(bodies), columns, 50, due)
    return head + struct.pack(f"<{len(bodies)}I", *map(len, bodies)) + b"".join(bodies)


def error_of(frame: Frame) -> TickwheelError:
    assert frame.type == FrameType.ERROR, f"expected an ERROR, got type {frame.type}"
    error = decode_error(frame.payload)
    assert error.message
    assert error.advice
    return error


def code_of(frame: Frame) -> str:
    return error_of(frame).code


def works(raw: RawConnection) -> bool:
    return raw.ask(FrameType.PING).type == FrameType.PONG


# -- the connection is closed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bad_handshake"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client hello", "bad_handshake"),
        (encode_frame(FrameType.PING, 1), "bad_handshake"),
        (encode_frame(FrameType.SEND, 1, send_payload(1, [b"x"])), "bad_handshake"),
        (encode_frame(FrameType.HELLO, 1, b"\xc1 not msgpack"), "bad_handshake"),
        (encode_frame(FrameType.HELLO, 1, encode_map({"protocol": 1, "client": 3})), "bad_handshake"),
        (encode_frame(FrameType.HELLO, 1, encode_body(Hello(2, "new"))), "unsupported_protocol"),
        (encode_frame(FrameType.HELLO, 1, bytes(100_000)), "frame_too_large"),
        (encode_frame(FrameType.HELLO, 1, encode_body(hello("x")))[:-1] + b"\xff", "bad_crc"),
        (bytes(64), "bad_handshake"),
    ],
)
def test_a_stranger_is_told_and_closed(raw: RawConnection, data: bytes, code: str) -> None:
    raw.send(data)
    assert code_of(raw.receive()) == code
    assert raw.is_closed()


def test_a_flipped_bit_closes_the_connection_after_the_answers_before_it(raw: RawConnection) -> None:
    raw.greet()
    topic_id = raw.open_topic()
    good = encode_frame(FrameType.SEND, 71, send_payload(topic_id, [b"good"]))
    bad = bytearray(encode_frame(FrameType.SEND, 72, send_payload(topic_id, [b"bad"])))
    bad[-1] ^= 1
    raw.send(good + bytes(bad) + good)
    answer = raw.receive()
    assert (answer.type, answer.correlation) == (FrameType.SEND_OK, 71)
    assert code_of(raw.receive()) == "bad_crc"
    assert raw.is_closed()


def test_a_frame_beyond_the_limit_is_refused_by_its_header(raw: RawConnection) -> None:
    raw.greet()
    raw.send(struct.pack("<IIBBHI", MAX_FRAME_BYTES + 1, 0, FrameType.SEND, 0, 0, 9))
    frame = raw.receive()
    assert code_of(frame) == "frame_too_large"
    assert raw.is_closed()


def test_too_many_connections(daemon: Daemon) -> None:
    opened = [RawConnection(daemon.url).greet() for _ in range(LIMITS["max_connections"])]
    with RawConnection(daemon.url) as one_more:
        error = error_of(one_more.receive())
        assert (error.code, error.retryable) == ("too_many_connections", True)
        assert one_more.is_closed()
    for connection in opened:
        assert works(connection)
        connection.socket.close()
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline:
        with RawConnection(daemon.url) as again:
            again.send(encode_frame(FrameType.HELLO, 1, encode_body(hello("again"))))
            if again.receive().type == FrameType.HELLO_OK:
                return
    pytest.fail("the places of closed connections were not given to others")


# -- deadlines ---------------------------------------------------------------------------------------------------


def test_no_hello_in_time(raw: RawConnection) -> None:
    raw.send(encode_frame(FrameType.HELLO, 1, encode_body(hello("slow")))[:10])
    assert code_of(raw.receive()) == "handshake_timeout"
    assert raw.is_closed()


def test_a_silent_connection_is_closed(raw: RawConnection) -> None:
    raw.greet()
    began_s = time.monotonic()
    assert code_of(raw.receive()) == "idle_timeout"
    assert raw.is_closed()
    assert time.monotonic() - began_s > 0.9


def test_half_a_frame_and_then_silence(raw: RawConnection) -> None:
    raw.greet()
    raw.send(encode_frame(FrameType.SEND, 1, bytes(1_000))[:500])
    assert code_of(raw.receive()) == "idle_timeout"
    assert raw.is_closed()


def test_pings_keep_a_connection(raw: RawConnection) -> None:
    raw.greet()
    for _ in range(6):
        time.sleep(0.3)
        assert works(raw)


def test_half_open_gets_its_answers(raw: RawConnection) -> None:
    raw.greet()
    topic_id = raw.open_topic()
    raw.send(encode_frame(FrameType.SEND, 5, send_payload(topic_id, [b"last words"])))
    raw.socket.shutdown(socket.SHUT_WR)
    assert raw.receive().type == FrameType.SEND_OK
    assert raw.is_closed()


def test_a_client_that_never_reads_is_closed_and_harms_nobody(daemon: Daemon, raw: RawConnection) -> None:
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    raw.greet()
    stats = b"".join(encode_frame(FrameType.STATS, n, b"") for n in range(1, 20_000))
    raw.socket.settimeout(0.5)
    with pytest.raises((TimeoutError, ConnectionError)):
        send_for_ever(raw, stats)
    with RawConnection(daemon.url) as other:
        assert works(other.greet())
    assert wait_for_code(daemon, "send_timeout")


def send_for_ever(raw: RawConnection, data: bytes) -> None:
    while True:
        raw.send(data)


def wait_for_code(daemon: Daemon, code: str) -> list[dict[str, str]]:
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline:
        found = [event for event in daemon.events() if event.get("code") == code]
        if found:
            return found
        time.sleep(0.05)
    return []


# -- the connection survives -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_type", [0, 2, 9, 13, 22, 48, 255])
def test_unknown_frames(raw: RawConnection, frame_type: int) -> None:
    raw.greet()
    assert code_of(raw.ask(frame_type, b"whatever")) == "unknown_frame"
    assert works(raw)


def malformed_sends() -> list[bytes]:
    good = send_payload(1, [b"abc", b"def"])
    return [
        b"",
        good[:20],
        good[:-1],
        good + b"x",
        send_payload(1, []),
        good[:4] + struct.pack("<I", 0xFFFF_FFFF) + good[8:],
        good[:8] + struct.pack("<I", 1 << 31) + good[12:],
        good[:12] + struct.pack("<I", 257) + good[16:],
        good[:24] + struct.pack("<II", 0xFFFF_FFFF, 7) + good[32:],
    ]


@pytest.mark.parametrize("payload", malformed_sends())
def test_malformed_sends_store_nothing(raw: RawConnection, payload: bytes) -> None:
    raw.greet()
    raw.open_topic()
    assert code_of(raw.ask(FrameType.SEND, payload)) in {"bad_frame", "unknown_topic"}
    assert works(raw)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(7),
        struct.pack("<II", 1, 0),
        struct.pack("<II", 1, 2) + bytes(12),
        struct.pack("<II", 1, 0xFFFF_FFFF),
    ],
)
def test_malformed_acks(raw: RawConnection, payload: bytes) -> None:
    raw.greet()
    assert code_of(raw.ask(FrameType.ACK, payload)) == "bad_frame"
    assert works(raw)


def test_acks_of_no_group(raw: RawConnection) -> None:
    raw.greet()
    assert code_of(raw.ask(FrameType.ACK, struct.pack("<II", 999, 1) + bytes(12))) == "unknown_group"
    assert works(raw)


@pytest.mark.parametrize(
    ("frame_type", "payload"),
    [
        (FrameType.PING, b"x"),
        (FrameType.STATS, b"x"),
        (FrameType.OPEN_TOPIC, b""),
        (FrameType.OPEN_TOPIC, encode_map({"topic": 7, "create": True})),
        (FrameType.OPEN_TOPIC, encode_map({"topic": "t"})),
        (FrameType.SUBSCRIBE, encode_map({"topic": "t", "group": "g", "credit": 0, "batch": 1})),
        (FrameType.SUBSCRIBE, encode_map({"topic": "t", "group": "g", "credit": -5, "batch": 1})),
        (FrameType.UNSUBSCRIBE, encode_body(Unsubscribe(77))),
        (FrameType.CANCEL, encode_map({})),
        (FrameType.CANCEL, encode_map({"ids": [-1]})),
        (FrameType.CANCEL, encode_map({"ids": [1], "topic": "t", "keys": ["k"]})),
        (FrameType.RESCHEDULE, encode_map({"ids": [1]})),
        (FrameType.RESCHEDULE, encode_map({"ids": [1], "delay_ms": -1})),
        (FrameType.RESCHEDULE, encode_map({"ids": [1], "deliver_at_ms": 253_402_300_800_000})),
        (FrameType.HELLO, encode_body(hello("twice"))),
    ],
)
def test_bad_requests(raw: RawConnection, frame_type: int, payload: bytes) -> None:
    raw.greet()
    assert code_of(raw.ask(frame_type, payload)) == "bad_request"
    assert works(raw)


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "a/b", "x" * 129, "ü", "a\n"])
def test_bad_names(raw: RawConnection, name: str) -> None:
    raw.greet()
    assert code_of(raw.request(FrameType.OPEN_TOPIC, OpenTopic(name, True))) == "bad_topic_name"
    assert code_of(raw.request(FrameType.SUBSCRIBE, Subscribe("t", name, 1, 1))) == "bad_topic_name"
    assert code_of(raw.request(FrameType.CANCEL, Cancel(topic=name, keys=["k"]))) == "bad_topic_name"
    assert works(raw)


@pytest.mark.promise("R31")
@pytest.mark.parametrize("due_ms", [-1, -(1 << 63), 253_402_300_800_000, (1 << 63) - 1])
@pytest.mark.parametrize("columns", [0, 16])
def test_absurd_times_are_refused_one_by_one(raw: RawConnection, due_ms: int, columns: int) -> None:
    raw.greet()
    payload = send_payload(raw.open_topic(), [b"x"], columns=columns, due=due_ms)
    answer = raw.ask(FrameType.SEND, payload)
    assert answer.type == FrameType.SEND_OK
    _, stored, exceptions, index, code, _ = struct.unpack("<QIIIIQ", answer.payload)
    assert (stored, exceptions, index, code) == (0, 1, 0, 3)


def test_one_body_too_large_does_not_touch_the_others(raw: RawConnection) -> None:
    raw.greet()
    payload = send_payload(raw.open_topic(), [b"good", bytes(65_537), b"good"])
    answer = raw.ask(FrameType.SEND, payload)
    _, stored, exceptions, index, code, _ = struct.unpack("<QIIIIQ", answer.payload)
    assert (stored, exceptions, index, code) == (2, 1, 1, 2)


def test_unknown_topics(raw: RawConnection) -> None:
    raw.greet()
    assert code_of(raw.ask(FrameType.SEND, send_payload(4_000_000, [b"x"]))) == "unknown_topic"
    assert code_of(raw.request(FrameType.OPEN_TOPIC, OpenTopic("nowhere", False))) == "unknown_topic"
    assert works(raw)


def test_limits_of_topics_groups_and_subscriptions(raw: RawConnection) -> None:
    raw.greet()
    groups = [raw.request(FrameType.SUBSCRIBE, Subscribe("empty", f"g{n}", 1, 1)) for n in range(4)]
    assert [frame.type for frame in groups[:3]] == [FrameType.SUBSCRIBE_OK] * 3
    assert code_of(groups[3]) == "too_many_groups"
    again = [raw.request(FrameType.SUBSCRIBE, Subscribe("empty", "g0", 1, 1)) for _ in range(2)]
    assert again[0].type == FrameType.SUBSCRIBE_OK
    assert code_of(again[1]) == "too_many_subscriptions"
    topics = [raw.request(FrameType.OPEN_TOPIC, OpenTopic(f"limit-{n}", True)) for n in range(7)]
    assert code_of(topics[-1]) == "too_many_topics"
    assert works(raw)


def test_many_frames_cut_anywhere(raw: RawConnection) -> None:
    """The same requests, whole and in every possible two pieces, get the same answers."""
    raw.greet()
    topic_id = raw.open_topic()
    stream = encode_frame(FrameType.PING, 1) + encode_frame(FrameType.SEND, 2, send_payload(topic_id, [b"a"]))
    stream += encode_frame(99, 3) + encode_frame(FrameType.SEND, 4, send_payload(topic_id, [b"b"] * 3))
    for cut in range(len(stream)):
        raw.send(stream[:cut])
        if cut % 8 == 0:
            time.sleep(0.001)
        raw.send(stream[cut:])
        answers = sorted((raw.receive() for _ in range(4)), key=lambda frame: frame.correlation)
        assert [frame.type for frame in answers] == [
            FrameType.PONG,
            FrameType.SEND_OK,
            FrameType.ERROR,
            FrameType.SEND_OK,
        ]
