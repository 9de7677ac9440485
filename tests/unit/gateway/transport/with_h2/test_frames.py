"""Bytes are cut between frames, and what must be counted before it is worked off is counted."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from tickwheel_gateway.transport.abuse import Abuse
from tickwheel_gateway.transport.engine import Broken, ErrorCode
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.with_h2.frames import PORTION_FRAMES, PREFACE, Cutter
from tickwheel_gateway.transport.with_h2.guard import Guard


def cutter() -> Cutter:
    return Cutter(Guard(Limits()))


def cut(one: Cutter, data: bytes) -> bytes:
    return b"".join(one.cut(data))


def frames(*more: Frame) -> bytes:
    return PREFACE + b"".join(frame.serialize() for frame in (SettingsFrame(0), *more))


SOME = (
    HeadersFrame(1, b"abc", flags=["END_HEADERS"]),
    DataFrame(1, b"x" * 300),
    PingFrame(0, b"12345678"),
    DataFrame(1, b"", flags=["END_STREAM"]),
)


@given(st.lists(st.integers(0, 400), max_size=10))
def test_nothing_is_lost_and_frames_stay_whole(cuts: list[int]) -> None:
    stream = frames(*SOME)
    ends = {len(PREFACE)}
    for frame in (SettingsFrame(0), *SOME):
        ends.add(max(ends) + len(frame.serialize()))
    one, at, given_on = cutter(), 0, 0
    for end in [*sorted(min(end, len(stream)) for end in cuts), len(stream)]:
        given_on += len(cut(one, stream[at:end]))
        at = end
        assert given_on in ends or given_on == 0
    assert given_on == len(stream)


def test_each_byte_alone() -> None:
    stream, one = frames(*SOME), cutter()
    assert b"".join(cut(one, bytes([byte])) for byte in stream) == stream


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_goaway_is_left_out_and_known(size: int) -> None:
    one = cutter()
    stream = frames(SOME[0], GoAwayFrame(0, 5), SOME[1])
    found = b"".join(cut(one, stream[at : at + size]) for at in range(0, len(stream), size))
    assert found == frames(SOME[0], SOME[1])
    assert one.is_peer_leaving


def test_many_frames_come_in_portions() -> None:
    portions = list(cutter().cut(frames(*[SOME[2]] * 900)))
    assert len(portions) == 1 + 900 // PORTION_FRAMES
    assert b"".join(portions) == frames(*[SOME[2]] * 900)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"P\0", PREFACE[:-1] + b"x", b"\x16\x03"])
def test_what_is_no_http2(data: bytes) -> None:
    with pytest.raises(Broken) as found:
        cut(cutter(), data)
    assert found.value.code == ErrorCode.PROTOCOL_ERROR


def test_a_large_frame_is_refused_by_its_head() -> None:
    with pytest.raises(Broken) as found:
        cut(cutter(), frames() + (16_385).to_bytes(3, "big") + b"\0\0\0\0\0\1")
    assert found.value.code == ErrorCode.FRAME_SIZE_ERROR


def test_a_header_block_without_end() -> None:
    part = ContinuationFrame(1, b"x" * 16_000)
    one = cutter()
    cut(one, frames(HeadersFrame(1, b"x" * 16_000), part, part, part))
    with pytest.raises(Abuse, match="header_block"):
        cut(one, part.serialize())


def test_a_header_block_of_nothing() -> None:
    one = cutter()
    cut(one, frames(HeadersFrame(1, b"")))
    with pytest.raises(Abuse, match="header_block"):
        cut(one, ContinuationFrame(1, b"").serialize() * 100)


def test_resets_are_counted_by_the_second() -> None:
    guard = Guard(Limits(resets_a_second=3))
    for now in (1.0, 1.1, 1.2, 2.0, 2.1, 2.2):
        guard.reset(now)
    with pytest.raises(Abuse, match="resets"):
        guard.reset(2.9)


def test_control_answers_count_until_they_are_written() -> None:
    guard = Guard(Limits(control_answers=10))
    for _ in range(3):
        guard.answers(10)
        guard.written()
        guard.reading()
    guard.answers(10)
    guard.reading()
    with pytest.raises(Abuse, match="control_frames"):
        guard.answers(1)
