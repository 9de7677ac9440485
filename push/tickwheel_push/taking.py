"""Takes messages that are due out of a group, as many as may be carried now, and no sooner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import anyio

from tickwheel import TickwheelError
from tickwheel_push.clocks import Clocks
from tickwheel_push.gate import Room
from tickwheel_push.http.request import Due
from tickwheel_push.intake import Queue

WAIT_S: Final = 60.0
"""So long a fetch waits for messages before it is asked for anew."""
FIRST_RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 5.0

_log = logging.getLogger("tickwheel.push")


class Taking:
    """The loop of one group."""

    def __init__(
        self,
        *,
        queue: Queue,
        room: Callable[[float], Room],
        lease_s: Callable[[], float],
        carry: Callable[[Sequence[Due]], None],
        clocks: Clocks,
    ) -> None:
        """``carry``: begins with messages, and does not wait."""
        self._queue = queue
        self._room = room
        self._lease_s = lease_s
        self._carry = carry
        self._clocks = clocks
        self._stopped = False
        self._changed = anyio.Event()
        self._fetching: anyio.CancelScope | None = None
        self._retry_s = FIRST_RETRY_S
        self._told = ""

    def stop(self) -> None:
        """Nothing more is taken. What is on its way from the broker goes back."""
        self._stopped = True
        self.look(anew=True)

    def look(self, *, anew: bool = False) -> None:
        """There may be another room now. ``anew``: what is asked for now is to be asked for again; otherwise only if
        there is no room for it any more."""
        self._changed.set()
        if self._fetching is not None and (anew or not self._room(self._clocks.now_s()).count):
            self._fetching.cancel()

    async def run(self) -> None:
        """Until it is stopped."""
        while not self._stopped:
            self._changed = anyio.Event()
            room = self._room(self._clocks.now_s())
            if not room.count:
                await self._wait(room.again_at)
                continue
            with anyio.CancelScope() as self._fetching:
                await self._take(room.count)
            self._fetching = None

    async def _wait(self, until: float) -> None:
        with self._clocks.until(until):
            await self._changed.wait()

    async def _take(self, count: int) -> None:
        try:
            dues = await self._queue.take(count, WAIT_S, self._lease_s())
        except TickwheelError as error:
            if self._retry_s > FIRST_RETRY_S and error.code != self._told:  # one that is over at once is none
                _log.warning("no messages can be taken now: %s", error)
                self._told = error.code
            await anyio.sleep(self._retry_s)
            self._retry_s = min(LONGEST_RETRY_S, 2 * self._retry_s)
            return
        self._retry_s, self._told = FIRST_RETRY_S, ""
        if dues:
            self._carry(dues)
