"""A send of the blocking client in C, against a socket pair: one end is good, all others say how far it came."""

from __future__ import annotations

import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.messages import (
    TOPIC_PRIORITY,
    SendColumns,
    encode_send,
    pack_column,
    single_send_columns,
)
from tickwheel_native import call as _call
from tickwheel_native import ffi, lib

CORRELATION = 7
FOREVER_MS = 10_000


class Pair:
    """Both ends of a connection, and a bell."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.bell, self.ear = socket.socketpair()
        for one in (self.near, self.far, self.ear):
            one.setblocking(False)
        self.call = _call.new()

    def send(self, columns: bytes = b"c" * 30, key: bytes = b"key", body: bytes = b"body") -> bool:
        return _call.send(self.call, self.near.fileno(), CORRELATION, columns, key, body)

    def wait(self, timeout_ms: int = FOREVER_MS) -> bool:
        return _call.wait(self.near.fileno(), self.ear.fileno(), timeout_ms)

    def answer(self, correlation: int = CORRELATION) -> bool:
        return _call.answer(self.call, self.near.fileno(), correlation)

    def received(self) -> bytes:
        found = bytearray()
        try:
            while data := self.far.recv(1 << 20):
                found += data
        except BlockingIOError:
            pass
        return bytes(found)

    def close(self) -> None:
        for one in (self.near, self.far, self.bell, self.ear):
            one.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def send_ok(
    first_id: int = 41, stored: int = 1, exceptions: int = 0, correlation: int = CORRELATION, flags: int = 0
) -> bytes:
    payload = struct.pack("<QII", first_id, stored, exceptions)
    return encode_frame(FrameType.SEND_OK, correlation, payload, flags)


# -- writing --


@given(
    key=st.one_of(st.just(b""), st.binary(min_size=1, max_size=255)),
    body=st.binary(max_size=300),
    time_ms=st.sampled_from([0, 1, 253_402_300_799_999]),
    relative=st.booleans(),
    tell_differences=st.booleans(),
)
def test_the_frame_is_the_one_of_the_usual_way(
    key: bytes, body: bytes, time_ms: int, relative: bool, tell_differences: bool
) -> None:
    columns = single_send_columns(
        3,
        body_bytes=len(body),
        key_bytes=len(key),
        time_ms=time_ms,
        relative=relative,
        tell_differences=tell_differences,
    )
    pair = Pair()
    assert pair.send(columns, key, body)
    usual = SendColumns(
        bodies=[body],
        deliver_at_ms=pack_column("q", [time_ms]) if time_ms else 0,
        relative=relative,
        priority=TOPIC_PRIORITY,
        keys=[key] if key else None,
    )
    payload = encode_send(3, usual, tell_differences=tell_differences)
    assert pair.received() == encode_frame(FrameType.SEND, CORRELATION, payload)
    assert pair.call.written_bytes == pair.call.frame_bytes
    pair.close()


def test_a_large_body(pair: Pair) -> None:
    body = bytes(range(256)) * 4_000
    pair.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    got = bytearray()
    reading = threading.Thread(target=lambda: read_all(pair, got))
    reading.start()
    is_whole = pair.send(b"c" * lib.TW_CALL_COLUMNS_BYTES, b"", body)
    written = pair.call.written_bytes
    pair.near.shutdown(socket.SHUT_WR)
    reading.join()
    frame = encode_frame(FrameType.SEND, CORRELATION, b"c" * lib.TW_CALL_COLUMNS_BYTES + body)
    assert is_whole == (written == len(frame))
    assert bytes(got) == frame[:written]


def read_all(pair: Pair, into: bytearray) -> None:
    pair.far.setblocking(True)
    while data := pair.far.recv(1 << 20):
        into += data


def test_a_socket_that_takes_a_part(pair: Pair) -> None:
    body = bytes(range(256)) * 40_000
    assert not pair.send(body=body)
    frame = encode_frame(FrameType.SEND, CORRELATION, b"c" * 30 + b"key" + body)
    assert 0 < pair.call.written_bytes < pair.call.frame_bytes == len(frame)
    assert pair.received() == frame[: pair.call.written_bytes]


def test_a_socket_that_takes_nothing(pair: Pair) -> None:
    assert not pair.send(body=b"x" * 10_000_000)
    while pair.call.written_bytes:
        assert not pair.send(body=b"x" * 10_000_000)
    assert pair.call.frame_bytes > 10_000_000


def test_a_peer_that_is_gone(pair: Pair) -> None:
    pair.far.close()
    assert not pair.send()
    assert pair.call.written_bytes == 0


def test_what_is_beyond_its_bounds_is_not_written(pair: Pair) -> None:
    assert not pair.send(columns=b"c" * (lib.TW_CALL_COLUMNS_BYTES + 1))
    assert not pair.send(key=b"k" * 256)
    huge, one = 1 << 31, ffi.from_buffer("uint8_t[]", b"x")
    assert not lib.tw_call_send(pair.call, pair.near.fileno(), 1, one, 1, one, 1, one, huge)
    assert (pair.call.frame_bytes, pair.call.written_bytes) == (0, 0)
    assert pair.received() == b""


# -- waiting --


def test_something_to_read(pair: Pair) -> None:
    pair.far.send(b"x")
    assert pair.wait()


def test_nothing_within_the_time(pair: Pair) -> None:
    began = time.monotonic()
    assert not pair.wait(20)
    assert time.monotonic() - began >= 0.019


def test_the_bell(pair: Pair) -> None:
    pair.bell.send(b"\0")
    assert not pair.wait()
    pair.far.send(b"x")
    assert not pair.wait(), "others want something, too"


def test_the_bell_while_it_waits(pair: Pair) -> None:
    ringing = threading.Timer(0.05, pair.bell.send, (b"\0",))
    ringing.start()
    assert not pair.wait()
    ringing.join()


def test_an_end(pair: Pair) -> None:
    pair.far.close()
    assert not pair.wait()


@pytest.mark.parametrize("closed", ["near", "ear"])
def test_a_descriptor_that_is_closed(pair: Pair, closed: str) -> None:
    getattr(pair, closed).close()
    assert not pair.wait()


def test_a_signal(pair: Pair) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert not pair.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [signal.SIGALRM]


# -- reading --


def test_the_answer(pair: Pair) -> None:
    assert pair.send()
    pair.far.send(send_ok(first_id=(1 << 40) - 1))
    assert pair.wait()
    assert pair.answer()
    assert pair.call.first_id == (1 << 40) - 1
    assert pair.call.is_answered
    assert _call.taken(pair.call) == b""


def broken(at: int) -> bytes:
    frame = bytearray(send_ok())
    frame[at] ^= 1
    return bytes(frame)


OTHERS = {
    "other correlation": send_ok(correlation=CORRELATION + 1),
    "unasked": send_ok(correlation=0),
    "exception": encode_frame(FrameType.SEND_OK, CORRELATION, struct.pack("<QIIIIQ", 41, 0, 1, 0, 1, 40)),
    "counts an exception that is not there": send_ok(exceptions=1),
    "none stored": send_ok(stored=0),
    "two stored": send_ok(stored=2),
    "flags": send_ok(flags=1),
    "another type": encode_frame(FrameType.ERROR, CORRELATION, bytes(16)),
    "another frame": encode_frame(FrameType.PONG, CORRELATION),
    "another frame first": encode_frame(FrameType.PROBE, 0) + send_ok(),
    "another frame behind it": send_ok() + encode_frame(FrameType.PROBE, 0),
    "twice": send_ok() * 2,
    "more than there is room for": send_ok() * 1_000,
    **{f"first {count} bytes": send_ok()[:count] for count in (1, 15, 16, 31)},
    **{f"byte {at} is wrong": broken(at) for at in range(32)},
}


@pytest.mark.parametrize("bytes_", OTHERS.values(), ids=OTHERS)
def test_something_else(pair: Pair, bytes_: bytes) -> None:
    """It is given over as it came, once."""
    assert pair.send()
    pair.far.send(bytes_)
    assert pair.wait()
    assert not pair.answer()
    assert not pair.call.is_answered
    came = bytes_[: lib.TW_CALL_ROOM_BYTES]
    assert _call.taken(pair.call) == came
    assert _call.taken(pair.call) == b""


def test_nothing_to_read(pair: Pair) -> None:
    assert pair.send()
    assert not pair.answer()
    pair.far.close()
    assert not pair.answer()
    assert (pair.call.is_answered, _call.taken(pair.call)) == (0, b"")


def test_each_send_begins_anew(pair: Pair) -> None:
    assert pair.send()
    pair.far.send(send_ok())
    assert pair.answer()
    _call.begin(pair.call)
    assert (pair.call.is_answered, pair.call.written_bytes, pair.call.frame_bytes) == (0, 0, 0)
    pair.far.send(send_ok()[:5])
    assert not pair.answer()
    assert pair.send()
    assert (pair.call.is_answered, pair.call.came_bytes) == (0, 0)
