"""The bytes of a connection, cut between frames.

`h2` buffers a frame before it looks at its length, and takes a GOAWAY of the peer for the end of everything; and what
is counted here must be known before it does the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tickwheel_gateway.transport.engine import Broken, ErrorCode
from tickwheel_gateway.transport.limits import FRAME_BYTES
from tickwheel_gateway.transport.with_h2.guard import Guard

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PORTION_FRAMES: Final = 256
"""So many are worked off before others have a turn."""

_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _SETTINGS, _GOAWAY, _CONTINUATION = 0, 1, 4, 7, 9
_ACK = 1
_END_HEADERS = 4


class Cutter:
    """Gives whole frames only. Raises Abuse and Broken as soon as it can be known."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._rest = bytearray()
        self._needed = len(PREFACE)
        self._has_begun = False
        self._is_in_block = False
        self.is_peer_leaving = False
        """It has sent GOAWAY: it opens no more streams, and waits for those that there are."""

    def cut(self, data: bytes) -> Iterator[bytes]:
        """What is whole now, in portions."""
        if self._rest or not self._has_begun:
            self._rest += data
            if not self._has_begun and not PREFACE.startswith(self._rest[: len(PREFACE)]):
                raise Broken(ErrorCode.PROTOCOL_ERROR)  # it does not begin as HTTP/2 does
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start = at = 0
        if not self._has_begun:
            self._has_begun, at = True, len(PREFACE)
        count, size = 0, len(data)
        while True:
            self._needed = _HEAD_BYTES
            if size - at < _HEAD_BYTES:
                break
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > FRAME_BYTES:
                raise Broken(ErrorCode.FRAME_SIZE_ERROR)  # longer than the peer was told
            self._needed = end = at + _HEAD_BYTES + length
            if end > size:
                self._needed -= at
                break
            if self._look(data[at + 3], data[at + 4], length):
                if at > start:
                    yield data[start:at]
                start = end
            at = end
            count += 1
            if count >= PORTION_FRAMES and at > start:
                yield data[start:at]
                start, count = at, 0
        if at > start:
            yield data if start == 0 and at == size else data[start:at]
        if at < size:
            self._rest += data[at:]

    def _look(self, kind: int, flags: int, length: int) -> bool:
        """Whether the frame is left out."""
        if kind == _DATA:
            return False
        if kind == _HEADERS:
            if not flags & _END_HEADERS:
                self._is_in_block = True
                self._guard.block_began(length)
        elif kind == _CONTINUATION:
            self._guard.block_goes_on(length)
            if flags & _END_HEADERS:
                self._is_in_block = False
        elif kind == _SETTINGS:
            if not flags & _ACK:
                self._guard.settings()
        elif kind == _GOAWAY and not self._is_in_block:
            self.is_peer_leaving = True
            return True
        return False
