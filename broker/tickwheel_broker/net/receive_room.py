"""Memory for large frames while they arrive: one amount for all connections, handed out first come, first served.

Every connection has a small buffer of its own. Only what a frame needs beyond that is asked for here, so that strangers
who each begin a large frame cannot take more memory together than the broker allows. It is soon given back: a frame
has a deadline.
"""

from __future__ import annotations

from collections import deque

import trio


class ReceiveRoom:
    """So many bytes, for all connections together."""

    def __init__(self, capacity_bytes: int) -> None:
        self._free_bytes = capacity_bytes
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    @property
    def free_bytes(self) -> int:
        """What can be taken without waiting."""
        return self._free_bytes

    async def take(self, count_bytes: int) -> None:
        """Wait until there is room for `count_bytes`, which must not be more than there is in all, and take it."""
        if not self._waiting and count_bytes <= self._free_bytes:
            self._free_bytes -= count_bytes
            return
        turn = (count_bytes, trio.Event())
        self._waiting.append(turn)
        try:
            await turn[1].wait()
        except trio.Cancelled:
            if turn[1].is_set():
                self.give_back(count_bytes)
            else:
                self._waiting.remove(turn)
                self._serve()
            raise

    def give_back(self, count_bytes: int) -> None:
        """`count_bytes` that were taken are free again."""
        self._free_bytes += count_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free_bytes:
            count_bytes, turn = self._waiting.popleft()
            self._free_bytes -= count_bytes
            turn.set()
