"""Last words: what is being said to the broker is said to its end, although the task that says it is cancelled."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel


class LastWords:
    """What tasks of a group say to the broker. A cancellation of the group interrupts it ``grace_s`` seconds later.
    Each run of the group has its own."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._until = math.inf
        self._scopes: dict[anyio.CancelScope, None] = {}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """A block around a group that is cancelled from outside."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.watch)
            yield
            group.cancel_scope.cancel()

    async def watch(self) -> None:
        """Notices the cancellation. To be run in the group, if the group ends by a cancellation of its own."""
        try:
            await anyio.sleep_forever()
        finally:
            self._until = anyio.current_time() + self._grace_s
            for scope in self._scopes:
                scope.deadline = self._until

    async def say(self, word: Callable[[], Awaitable[object]], cut: Callable[[], None]) -> None:
        """Awaits ``word()``, also in a task that is cancelled. Calls ``cut()`` if it was interrupted. Raises what
        ``word`` raises, and the cancellation in the end."""
        with anyio.CancelScope(deadline=self._until, shield=True) as scope:
            self._scopes[scope] = None
            try:
                await word()
            except BaseException as error:
                if scope.cancel_called or isinstance(error, anyio.get_cancelled_exc_class()):
                    cut()
                raise
            finally:
                del self._scopes[scope]
        await anyio.lowlevel.checkpoint_if_cancelled()
