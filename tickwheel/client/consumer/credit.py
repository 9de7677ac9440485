"""How many messages a subscription asks for that hands them out one by one.

What waits here is kept from other subscribers, so it should be as little as keeps the handler busy: what it does in a
second, or in a part of a lease: two or three messages that take half a second each, or a thousand that take a
millisecond.
"""

from __future__ import annotations

from typing import Final

FIRST_CREDIT: Final = 16
MOST_CREDIT: Final = 1000
"""Also that of who takes whole batches."""
_LEAST: Final = 2
_WORK_S: Final = 1.0
_PART_OF_LEASE: Final = 0.25


class Pace:
    """Follows how long messages are handled."""

    def __init__(self) -> None:
        self._room = FIRST_CREDIT
        self._each_s: float | None = None

    def handled(self, count: int, took_s: float, lease_s: float, in_hand: int) -> int:
        """So many messages were handed out within this time, and so many are being handled or were not acked: the
        credit from now on.

        >>> pace = Pace()
        >>> pace.handled(16, 8.0, 30.0, 1)
        3
        >>> [pace.handled(10, 0.0001, 30.0, 0) for _ in range(3)]
        [4, 8, 16]
        >>> Pace().handled(16, 0.0001, 30.0, 16)
        48
        """
        each_s = took_s / count
        # A handler that became slow counts at once, one that became fast little by little.
        if self._each_s is not None and each_s < self._each_s:
            each_s = (self._each_s + each_s) / 2 if each_s > self._each_s / 4 else each_s
        self._each_s = each_s
        work_s = min(_WORK_S, lease_s * _PART_OF_LEASE) if lease_s else _WORK_S
        room = min(MOST_CREDIT, 2 * self._room)
        if room * each_s > work_s:
            room = int(work_s / each_s)
        self._room = max(_LEAST, room)
        return min(MOST_CREDIT, self._room + in_hand)
