"""How the client waits, and what time it is: in an event loop, or in threads that block.

Everything above says ``await`` in the same words. The blocking client runs the same coroutines: what they wait for
blocks the thread, so that they are never suspended.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import anyio
from anyio.lowlevel import checkpoint


class Event(Protocol):
    """Set once."""

    def set(self) -> object:
        """Wakes all that wait."""

    def is_set(self) -> bool:
        """Whether it was set."""

    async def wait(self) -> object:
        """Until it is set."""


class Scope(Protocol):
    """What may be ended from outside, or by the clock."""

    deadline: float

    @property
    def cancelled_caught(self) -> bool:
        """Whether it was ended before it was over."""

    def cancel(self) -> object:
        """Ends it."""


class Waits(Protocol):
    """A way to wait."""

    def now(self) -> float:
        """Seconds, of a clock that is never set."""

    def event(self) -> Event:
        """A new one."""

    async def turn(self) -> None:
        """Lets others have their turn."""

    def within(self, timeout_s: float | None) -> AbstractContextManager[Scope]:
        """A block whose waits end after so long, and the block with them; None: without a limit."""


class LoopWaits:
    """Tasks of an event loop: trio's or asyncio's."""

    now = staticmethod(anyio.current_time)
    event = staticmethod(anyio.Event)
    turn = staticmethod(checkpoint)
    within = staticmethod(anyio.move_on_after)
