"""Turns: how long one connection may hold the event loop before all others go on.

All connections share `TURN_NS`: the more of them have work left, the shorter is the turn of each. So the work of many
costs a timer, or the request of somebody else, about as much as the work of one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final

import trio

TURN_NS: Final = 500_000
"""A message passes the loop some five times on its way, and waits for a turn each time."""
SHORTEST_NS: Final = 100_000
"""A turn that is shorter would mostly be the change to the next one."""

_PIECE_NS: Final = 20_000


def counted_ns() -> Callable[[], int]:
    """A clock that each piece of work moves by the same time, however long it took."""
    return itertools.count(0, _PIECE_NS).__next__


class Turns:
    """What is shared by all who take turns."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """`now_ns`: for a run that can be repeated exactly, `counted_ns`."""
        self.now_ns = now_ns
        self.waiting = 0
        """How many have work left, and wait for their next turn."""

    def end_ns(self) -> int:
        """When a turn that begins now is over."""
        return self.now_ns() + max(SHORTEST_NS, TURN_NS // (1 + self.waiting))


class Turn:
    """The turn of one task. Ask `is_over` between two pieces of work, and `yield_` then."""

    __slots__ = ("_end_ns", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._end_ns = turns.end_ns()

    def begin(self) -> None:
        """Others have just had their turn."""
        self._end_ns = self._turns.end_ns()

    @property
    def is_over(self) -> bool:
        """Whether it is time for others."""
        return self._turns.now_ns() >= self._end_ns

    async def yield_(self) -> None:
        """Let all others go on, then begin the next turn."""
        turns = self._turns
        turns.waiting += 1
        try:
            await trio.lowlevel.checkpoint()
        finally:
            turns.waiting -= 1
        self.begin()
