"""The receive buffer of one connection: bytes come in at the end, whole frames are taken from the front.

A partial frame is moved to the front at most once, and the buffer grows in one step to what a frame's
header announces (within the limit). So a 16 MiB body that arrives in a thousand pieces is copied once, not
a thousand times.
"""

from __future__ import annotations

import struct

from tickwheel.protocol.errors import FrameTooLarge
from tickwheel.protocol.frames import HEADER_BYTES

_FIRST_BYTES = 16 << 10
STEADY_BYTES = 512 << 10
"""What a connection's traffic alone makes its buffer grow to; only a larger frame needs more."""
PIECE_BYTES = 64 << 10
"""So much is handled before somebody else may have a turn."""
_GROWTH = 4
_QUIET_RECEIVES = 8
"""After so many small receives one after the other the buffer shrinks again."""
_LENGTH = struct.Struct("<I")


class Inbox:
    """Starts small (an idle connection costs 16 KiB) and grows with the traffic."""

    def __init__(self, max_frame_bytes: int) -> None:
        """`max_frame_bytes` counts the header too; it may be changed later."""
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray(_FIRST_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._wanted_bytes = _FIRST_BYTES
        self._quiet_receives = 0

    def __len__(self) -> int:
        """Bytes received and not yet consumed."""
        return self._end - self._start

    @property
    def large_bytes(self) -> int:
        """What the buffer takes beyond its ordinary size, because of a large frame."""
        return max(0, len(self._buffer) - STEADY_BYTES)

    def wanted_large_bytes(self) -> int:
        """What `large_bytes` will be after `free`. Raises FrameTooLarge."""
        if self._start == self._end:
            return 0
        frame_bytes = self._frame_bytes()
        fits = len(self._buffer) - self._start >= frame_bytes
        return self.large_bytes if fits else max(0, frame_bytes - STEADY_BYTES)

    def free(self) -> memoryview:
        """Where to receive next; never empty. Valid until the next call."""
        if self._start == self._end:
            self._start = self._end = 0
            self._resize(self._wanted_bytes)
        elif len(self._buffer) - self._start < self._frame_bytes():
            self._make_room(self._frame_bytes())
        elif self._is_cheap_to_move():
            self._make_room(self._wanted_bytes)
        return self._view[self._end :]

    def received(self, count_bytes: int) -> None:
        """`count_bytes` were written into the start of `free()`."""
        self._end += count_bytes
        if self._end == len(self._buffer) and self._wanted_bytes < STEADY_BYTES:
            self._wanted_bytes = min(self._wanted_bytes * _GROWTH, STEADY_BYTES)
        self._quiet_receives = self._quiet_receives + 1 if count_bytes * _GROWTH < _FIRST_BYTES else 0
        if self._quiet_receives >= _QUIET_RECEIVES:
            self._wanted_bytes = max(_FIRST_BYTES, self._wanted_bytes // _GROWTH)
            self._quiet_receives = 0

    def pending(self) -> memoryview:
        """All bytes not yet consumed. Valid until the next `free()`."""
        return self._view[self._start : self._end]

    def next_piece(self) -> memoryview:
        """The next bytes to handle, a bounded number of them, or one large frame; only after `has_frame()`. The frame
        at the end may be cut."""
        end = self._start + max(PIECE_BYTES, self._frame_bytes())
        return self._view[self._start : min(end, self._end)]

    def consume(self, count_bytes: int) -> None:
        """The first `count_bytes` of `pending()` were handled."""
        self._start += count_bytes

    def has_frame(self) -> bool:
        """Whether a whole frame is there. Raises FrameTooLarge as soon as a header announces too much."""
        available = self._end - self._start
        return available >= HEADER_BYTES and available >= self._frame_bytes()

    def first_frame(self) -> memoryview:
        """The bytes of the first frame alone; only after `has_frame()`."""
        return self._view[self._start : self._start + self._frame_bytes()]

    def correlation(self) -> int:
        """What the first header gives as its correlation, unchecked; 0 if there is no whole header."""
        return int(_LENGTH.unpack_from(self._buffer, self._start + 12)[0]) if len(self) >= HEADER_BYTES else 0

    def _frame_bytes(self) -> int:
        if self._end - self._start < HEADER_BYTES:
            return HEADER_BYTES
        frame_bytes: int = _LENGTH.unpack_from(self._buffer, self._start)[0] + HEADER_BYTES
        if frame_bytes > self.max_frame_bytes:
            raise FrameTooLarge(
                f"A frame of {frame_bytes:,} bytes arrived; at most {self.max_frame_bytes:,} are allowed."
            )
        return frame_bytes

    def _make_room(self, capacity_bytes: int) -> None:
        """Move the partial frame to the front of a buffer of at least `capacity_bytes`."""
        pending_bytes = len(self)
        old = self._view[self._start : self._end]
        self._resize(max(capacity_bytes, self._wanted_bytes))
        self._view[:pending_bytes] = old
        self._start, self._end = 0, pending_bytes

    def _is_cheap_to_move(self) -> bool:
        """Little to move and little room behind it: then one move buys a large receive."""
        capacity_bytes = len(self._buffer)
        return len(self) <= capacity_bytes // 4 and capacity_bytes - self._end < capacity_bytes // 2

    def _resize(self, capacity_bytes: int) -> None:
        if len(self._buffer) != capacity_bytes:
            self._buffer = bytearray(capacity_bytes)
            self._view = memoryview(self._buffer)
