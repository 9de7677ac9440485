"""Messages of gRPC in a stream of bytes, compressed or not; time-outs and texts."""

from __future__ import annotations

import contextlib
import gzip
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel_gateway.transport.framing import (
    Malformed,
    MessageReader,
    UnknownCompression,
    framed,
    inflate,
    percent_encoded,
    timeout_s,
)

MOST = 10_000


def squeezed(message: bytes) -> bytes:
    data = gzip.compress(message)
    return b"\1" + len(data).to_bytes(4, "big") + data


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=6), st.data())
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    stream = b"".join(squeezed(each) if small else framed(each) for each, small in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = MessageReader("gzip", MOST)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == [each for each, _ in messages]
    assert reader.partial_bytes == 0


def test_each_byte_alone() -> None:
    reader = MessageReader("identity", MOST)
    stream = framed(b"one") + framed(b"") + framed(b"three")
    assert [found for byte in stream for found in reader.feed(bytes([byte]))] == [b"one", b"", b"three"]


@given(st.binary(max_size=400))
def test_any_bytes_give_messages_or_are_malformed(data: bytes) -> None:
    reader = MessageReader("gzip", 64)
    with contextlib.suppress(Malformed):
        assert all(len(each) <= 64 for each in reader.feed(data))
    assert reader.partial_bytes <= len(data)


def test_a_long_message_is_refused_by_its_prefix() -> None:
    with pytest.raises(Malformed) as caught:
        MessageReader("identity", 10).feed(b"\0\0\0\0\x0b")
    assert caught.value.status == 8


@pytest.mark.parametrize("encoding", ["identity", "deflate", ""])
def test_a_flag_without_gzip(encoding: str) -> None:
    with pytest.raises(UnknownCompression) as caught:
        MessageReader(encoding, MOST).feed(squeezed(b"x"))
    assert caught.value.status == 12


def test_a_flag_that_is_none() -> None:
    with pytest.raises(Malformed) as caught:
        MessageReader("gzip", MOST).feed(b"\2\0\0\0\0")
    assert caught.value.status == 13


def test_a_bomb_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(1_000_000))
    assert len(bomb) < MOST
    with pytest.raises(Malformed) as caught:
        inflate(bomb, MOST)
    assert caught.value.status == 8
    assert inflate(gzip.compress(bytes(MOST)), MOST) == bytes(MOST)


# Without a time in it, so that all processes of a run have the same tests.
ZIPPED = gzip.compress(b"x", mtime=0)


@pytest.mark.parametrize("data", [b"", b"no gzip", ZIPPED[:-1], ZIPPED + b"y", ZIPPED * 2])
def test_what_is_not_one_piece_of_gzip(data: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        inflate(data, MOST)
    assert caught.value.status == 13


@table(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("99999999S", 99_999_999), ("250m", 0.25), ("5u", 5e-6), ("0n", 0)],
)
def test_timeouts(text: str, seconds: float) -> None:
    assert timeout_s(text) == pytest.approx(seconds)


@table("text", ["", "1", "S", "123456789S", "-1S", "1.5S", "1s", "1S ", "١S", "1S\n"])
def test_timeouts_that_are_none(text: str) -> None:
    with pytest.raises(Malformed):
        timeout_s(text)


@given(st.text())
def test_texts_are_printable_and_come_back(text: str) -> None:
    encoded = percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode()) == text.encode("utf-8", "replace").decode()


def test_a_text_is_readable() -> None:
    assert percent_encoded("50 % of ä\n") == b"50 %25 of %C3%A4%0A"
