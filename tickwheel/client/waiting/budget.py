"""A bounded amount that tasks share, first come, first served: the client's back-pressure."""

from __future__ import annotations

from collections import deque

from tickwheel.client.waiting.waits import Event, Waits
from tickwheel.protocol.errors import RequestTimeout


class Budget:
    """``limit`` units.

    ``take`` waits until they fit; one demand above the limit is let in when nothing is taken.
    """

    def __init__(self, limit: int, waits: Waits) -> None:
        self._waits = waits
        self.limit = limit
        self.taken = 0
        self._waiting: deque[tuple[int, Event]] = deque()

    def try_take(self, amount: int) -> bool:
        """Takes without waiting, if it fits and no other task waits."""
        if self._waiting or not self._fits(amount):
            return False
        self.taken += amount
        return True

    async def take(self, amount: int) -> None:
        """Takes, waiting for its turn."""
        if self.try_take(amount):
            return
        ticket = (amount, self._waits.event())
        self._waiting.append(ticket)
        try:
            await ticket[1].wait()
        except BaseException:
            if ticket[1].is_set():
                self.give(amount)
            else:
                self._waiting.remove(ticket)
                self._admit()
            raise

    async def take_within(self, timeout_s: float, amount: int) -> None:
        """Takes, waiting for its turn. Raises RequestTimeout when it does not come in time."""
        with self._waits.within(timeout_s):
            await self.take(amount)
            return
        raise RequestTimeout(
            "The client had no room for another request in time.",
            advice="The broker is slower than this producer: send less at once, or raise max_pending_bytes.",
        )

    def give(self, amount: int) -> None:
        """Gives back what was taken."""
        self.taken -= amount
        self._admit()

    def _fits(self, amount: int) -> bool:
        return self.taken + amount <= self.limit or self.taken == 0

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            amount, admitted = self._waiting.popleft()
            self.taken += amount
            admitted.set()
