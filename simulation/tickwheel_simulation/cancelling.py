"""Cancels what clients do at any step of the event loop."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

_STEPS = (1, 3, 10, 40, 150)


class Cancels(trio.abc.Instrument):
    """Counts the steps of all tasks, and cancels a call when its number has come."""

    def __init__(self) -> None:
        self._left: dict[trio.CancelScope, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """The turn of some task begins."""
        for scope in list(self._left):
            self._left[scope] -= 1
            if self._left[scope] <= 0:
                del self._left[scope]
                scope.cancel()

    async def run(self, rng: random.Random, work: Callable[[], Awaitable[object]]) -> bool:
        """Does something, and cancels it soon; whether it came to that."""
        with trio.CancelScope() as scope:
            self._left[scope] = rng.randint(1, rng.choice(_STEPS))
            try:
                await work()
            finally:
                self._left.pop(scope, None)
        return scope.cancelled_caught
