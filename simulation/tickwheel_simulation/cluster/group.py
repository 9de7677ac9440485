"""Kafka's consumer group, as nodes see it: it gives the log to one of its members, until that one leaves or was not
heard for a session. Who has it keeps it, whoever joins."""

from __future__ import annotations

from collections.abc import Callable

import trio

SESSION_S = 6.0
STEP_S = 0.1


class Seat:
    """What one node asks of the group; see `tickwheel_broker.sharedlog.node.Membership`."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.has_joined = self.has_left = False
        """The latter: since the group has heard it."""
        self.is_heard: Callable[[], bool] = lambda: True
        """Whether what the node says comes to the group."""
        self.hears: Callable[[], bool] = lambda: True
        """Whether what the group says comes to the node."""
        self._is_chosen = False
        self._changed = trio.Event()

    def joined(self) -> None:
        """See `Membership`."""
        self.has_joined = True

    def left(self) -> None:
        """See `Membership`."""
        self.has_joined, self.has_left = False, True
        self.choose(False)

    def choose(self, is_chosen: bool) -> None:
        """The group has said so, and the node has heard it."""
        if is_chosen != self._is_chosen:
            self._is_chosen = is_chosen
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def wait_chosen(self) -> None:
        """See `Membership`."""
        while not self._is_chosen:
            await self._changed.wait()

    async def wait_not_chosen(self) -> None:
        """See `Membership`."""
        while self._is_chosen:
            await self._changed.wait()

    async def has_others(self) -> bool:
        """See `Membership`."""
        await trio.sleep(STEP_S)
        return self.is_heard() and self.hears() and self._group.members > 1


class Group:
    """`run` works until cancelled."""

    def __init__(self, session_s: float = SESSION_S) -> None:
        self._session_s = session_s
        self._seats: list[Seat] = []
        self._heard_s: dict[Seat, float] = {}
        """When each member was heard, in the order in which they joined."""
        self._chosen: Seat | None = None

    def seat(self) -> Seat:
        """One more."""
        self._seats.append(Seat(self))
        return self._seats[-1]

    @property
    def members(self) -> int:
        """How many there are."""
        return len(self._heard_s)

    async def run(self) -> None:
        """Hear and tell."""
        while True:
            self._step(trio.current_time())
            await trio.sleep(STEP_S)

    def _step(self, now_s: float) -> None:
        for seat in self._seats:
            was_heard_s = self._heard_s.get(seat, now_s)
            if (seat.is_heard() and seat.has_left) or now_s - was_heard_s > self._session_s:
                self._heard_s.pop(seat, None)
                if self._chosen is seat:
                    self._chosen = None
            if seat.is_heard():
                seat.has_left = False
                if seat.has_joined and seat.hears():  # who is not answered does not get to say it again
                    self._heard_s[seat] = now_s
        if self._chosen is None:
            self._chosen = next(iter(self._heard_s), None)
        for seat in self._seats:
            if seat.has_joined and seat.is_heard() and seat.hears():
                seat.choose(seat is self._chosen)
