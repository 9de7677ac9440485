"""The receive buffer: frames cut anywhere come out whole, and big ones do not cost quadratic time."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.protocol.errors import FrameTooLarge
from tickwheel.protocol.frames import HEADER_BYTES, encode_frame
from tickwheel_broker.net.inbox import PIECE_BYTES, Inbox

MAX_FRAME_BYTES = 1 << 24


def receive(inbox: Inbox, data: bytes | memoryview) -> int:
    """Receive as much of `data` as there is room for; how many bytes."""
    into = inbox.free()
    count = min(len(into), len(data))
    assert count, "there must always be room to receive"
    into[:count] = data[:count]
    inbox.received(count)
    return count


def feed(inbox: Inbox, data: bytes, piece_bytes: int) -> list[bytes]:
    """Receive `data` in pieces; the frames that came out."""
    frames = []
    position = 0
    while position < len(data):
        position += receive(inbox, data[position : position + piece_bytes])
        while inbox.has_frame():
            frames.append(bytes(inbox.first_frame()))
            inbox.consume(len(frames[-1]))
    return frames


@given(
    sizes=st.lists(st.integers(0, 3_000) | st.sampled_from([16_368, 65_536, 600_000]), max_size=12),
    piece_bytes=st.integers(1, 70_000),
)
def test_frames_come_out_as_they_went_in(sizes: list[int], piece_bytes: int) -> None:
    frames = [encode_frame(12, number + 1, bytes([number % 251]) * size) for number, size in enumerate(sizes)]
    data = b"".join(frames)
    inbox = Inbox(MAX_FRAME_BYTES)
    assert feed(inbox, data, max(piece_bytes, len(data) // 2_000 + 1)) == frames
    assert len(inbox) == 0


def test_a_big_frame_in_small_pieces_is_moved_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    real_move = Inbox._make_room

    def counted(self: Inbox, capacity_bytes: int) -> None:
        moved.append(len(self))
        real_move(self, capacity_bytes)

    monkeypatch.setattr(Inbox, "_make_room", counted)
    frame = encode_frame(12, 1, bytes(8 << 20))
    inbox = Inbox(MAX_FRAME_BYTES)
    assert feed(inbox, frame, 4_096) == [frame]
    assert sum(moved) < 64 << 10


def test_the_buffer_shrinks_after_a_big_frame() -> None:
    inbox = Inbox(MAX_FRAME_BYTES)
    feed(inbox, encode_frame(12, 1, bytes(8 << 20)), 1 << 20)
    assert len(inbox.free()) <= 512 << 10


def test_a_length_beyond_the_limit_is_refused_by_the_header_alone() -> None:
    inbox = Inbox(1_000)
    header = struct.pack("<IIBBHI", 1_000 - HEADER_BYTES + 1, 0, 12, 0, 0, 77)
    inbox.free()[:HEADER_BYTES] = header
    inbox.received(HEADER_BYTES)
    with pytest.raises(FrameTooLarge, match="1,001 bytes"):
        inbox.has_frame()
    assert inbox.correlation() == 77


def test_what_is_handled_at_once_is_bounded_but_for_one_large_frame() -> None:
    inbox = Inbox(MAX_FRAME_BYTES)
    small = encode_frame(12, 1, bytes(1_000))
    data = memoryview(small * (4 * PIECE_BYTES // len(small)))
    while data:
        data = data[receive(inbox, data) :]
        while inbox.has_frame():
            piece = inbox.next_piece()
            assert len(small) <= len(piece) <= PIECE_BYTES
            inbox.consume(len(piece) // len(small) * len(small))
    assert len(inbox) == 0
    large = encode_frame(12, 2, bytes(3 * PIECE_BYTES))
    rest = memoryview(large + small)
    while rest:
        rest = rest[receive(inbox, rest) :]
    assert inbox.next_piece() == large
