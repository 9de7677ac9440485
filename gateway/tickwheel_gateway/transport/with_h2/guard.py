"""Counts what no client does that means well."""

from __future__ import annotations

from tickwheel_gateway.transport.abuse import MOST_PARTS, SETTINGS_WEIGHT, Abuse
from tickwheel_gateway.transport.limits import Limits


class Guard:
    """Counts for one connection. Every method raises Abuse when it is too much."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._second = float("-inf")
        self._resets = 0
        self._answers = 0
        self._is_written = False
        self._empty = 0
        self._block_bytes = 0
        self._parts = 0

    def block_began(self, size_bytes: int) -> None:
        """A header block whose frame does not end it."""
        self._block_bytes, self._parts = 0, 0
        self.block_goes_on(size_bytes)

    def block_goes_on(self, size_bytes: int) -> None:
        """One more frame of it."""
        self._block_bytes += size_bytes
        self._parts += 1
        if self._block_bytes > self._limits.header_block_bytes or self._parts > MOST_PARTS:
            raise Abuse("header_block")

    def reset(self, now: float) -> None:
        """The client has reset a stream that was not answered, or has broken its rules so that the library did."""
        if now - self._second >= 1.0:
            self._second, self._resets = now, 0
        self._resets += 1
        if self._resets > self._limits.resets_a_second:
            raise Abuse("resets")

    def settings(self) -> None:
        """SETTINGS arrive."""
        self.answers(SETTINGS_WEIGHT)

    def answers(self, count: int) -> None:
        """So many more control frames wait to be written."""
        self._answers += count
        if self._answers > self._limits.control_answers:
            raise Abuse("control_frames")

    def written(self) -> None:
        """Everything that waited is on its way. It counts until the next read: one read with too many is too much."""
        self._is_written = True

    def reading(self) -> None:
        """Something new is read."""
        if self._is_written:
            self._answers, self._is_written = 0, False

    def empty_data(self) -> None:
        """A DATA frame that says nothing."""
        self._empty += 1
        if self._empty > self._limits.empty_frames:
            raise Abuse("empty_frames")
