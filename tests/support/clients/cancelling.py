"""Cancels an operation at each of its steps, one after the other, on trio and on asyncio.

A *step* is a turn of any task of the event loop (on asyncio: any callback), so that the cancellation also comes when a
request is written and not answered, when the answer has come and its waiter was not told yet, and so on.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

LIMIT = 400
"""More steps than any operation here has."""


class Canceller(Protocol):
    """Runs something, and cancels it before the ``n``-th step of its event loop."""

    async def attempt(self, work: Callable[[], Awaitable[object]], n: int) -> bool:
        """Whether it was cancelled; False: it ended before."""


class TrioCanceller(trio.abc.Instrument):
    """See Canceller."""

    def __init__(self) -> None:
        self._left = 0
        self._scope = trio.CancelScope()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """The turn of some task begins."""
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()

    async def attempt(self, work: Callable[[], Awaitable[object]], n: int) -> bool:
        """See Canceller."""
        with trio.CancelScope() as self._scope:
            self._left = n
            await work()
        was_cancelled, self._left = self._left <= 0, 0
        return was_cancelled


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.task: asyncio.Task[object] | None = None

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Counts when it is called."""

        def counted() -> None:
            self.left -= 1
            if self.left == 0 and self.task is not None:
                self.task.cancel()
            callback(*args)

        return super().call_soon(counted, context=context)


class AsyncioCanceller:
    """See Canceller. It cancels as asyncio's own programs do, with ``Task.cancel``: shields do not count."""

    async def attempt(self, work: Callable[[], Awaitable[object]], n: int) -> bool:
        """See Canceller."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)

        async def run() -> None:
            await work()

        task = loop.task = asyncio.create_task(run())
        loop.left = n
        try:
            await task
        except asyncio.CancelledError:
            return True
        finally:
            was_cancelled, loop.left, loop.task = loop.left <= 0, 0, None
        return was_cancelled


def run(backend: str, main: Callable[[Canceller], Awaitable[None]]) -> None:
    """Runs a test in an event loop whose steps are counted."""
    if backend == "trio":
        canceller = TrioCanceller()
        trio.run(main, canceller, instruments=[canceller])
        return

    async def started() -> None:
        await main(AsyncioCanceller())

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(started())


async def each_step(
    canceller: Canceller,
    work: Callable[[], Awaitable[object]],
    *,
    before: Callable[[], Awaitable[object]],
    after: Callable[[], Awaitable[object]],
) -> int:
    """Tries again and again, one step later each time, until ``work`` ends by itself. Returns how often it did not."""
    for n in range(1, LIMIT):
        await before()
        was_cancelled = await canceller.attempt(work, n)
        await after()
        if not was_cancelled:
            return n - 1
    raise AssertionError(f"it does not end within {LIMIT} steps")
