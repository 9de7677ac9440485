"""Which of the messages that are due go first: pure, no SQL.

Lower priority numbers go first, and inside of a priority the longest waiting. So that a high number never starves, one
of ``RESERVED_SHARE`` deliveries goes to the longest waiting message of any priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

RESERVED_SHARE: Final = 8


class Candidate(NamedTuple):
    """A message that was due when the table was looked at."""

    id: Hashable
    priority: int
    time_next: int
    epoch: int


class Candidates:
    """Messages that are due, in the order in which they are to be delivered."""

    def __init__(self, turn: int = 0) -> None:
        """``turn``: how many were taken before; who takes only a few at a time begins anywhere."""
        self._lanes: dict[int, deque[Candidate]] = {}
        self._count = 0
        self._turn = turn

    def __len__(self) -> int:
        return self._count

    def replace(self, found: Iterable[Candidate]) -> None:
        """Forgets what was here: the table knows better. ``found``: each priority's ordered by time."""
        self._lanes, self._count = {}, 0
        for one in found:
            self._lanes.setdefault(one.priority, deque()).append(one)
            self._count += 1

    def take(self, limit: int) -> list[Candidate]:
        """Removes and returns the next ``limit``, or as many as there are."""
        return [self._next() for _ in range(min(limit, self._count))]

    def _next(self) -> Candidate:
        self._turn += 1
        if self._turn % RESERVED_SHARE == 0 and len(self._lanes) > 1:
            priority = min(self._lanes, key=lambda one: (self._lanes[one][0].time_next, one))
        else:
            priority = min(self._lanes)
        lane = self._lanes[priority]
        chosen = lane.popleft()
        if not lane:
            del self._lanes[priority]
        self._count -= 1
        return chosen
