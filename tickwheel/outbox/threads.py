"""Blocking work in worker threads that a cancellation waits for, also asyncio's own."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")
_POLL_S: Final = 0.005


class _TooLate(Exception):
    """Told to a caller that does not listen any more."""


async def finish_in_thread(
    work: Callable[..., T],
    *arguments: Any,
    limiter: anyio.CapacityLimiter | None = None,
    keep: Callable[[T], object] | None = None,
) -> T:
    """``work(*arguments)`` in a worker thread. A cancellation waits for its end, or keeps it from beginning: nothing
    is half done, and nothing goes on behind the caller's back.

    ``keep`` gets the result when the caller was cancelled meanwhile, and so cannot get it."""
    lock = threading.Lock()
    is_cancelled = False
    at_work: list[bool] = []
    results: list[T] = []

    def run() -> T:
        with lock:
            if is_cancelled:
                raise _TooLate
            at_work.append(True)
        try:
            results.append(work(*arguments))
            return results[0]
        finally:
            at_work.clear()

    try:
        return await anyio.to_thread.run_sync(run, limiter=limiter)
    except anyio.get_cancelled_exc_class():
        # asyncio's own Task.cancel does not know that a thread is at work.
        with lock:
            is_cancelled = True
        while at_work:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(_POLL_S)
            except anyio.get_cancelled_exc_class():
                pass  # asyncio's, once more: it is told below
        if results and keep is not None:
            keep(results[0])
        raise


async def clean_up(
    run: Callable[..., Awaitable[object]], work: Callable[..., object], *arguments: Any
) -> None:
    """``await run(work, *arguments)``, which also begins when the caller is cancelled before; the caller is told then.

    A shield alone does not keep asyncio's own cancel away."""
    has_begun: list[bool] = []
    cancelled: BaseException | None = None

    def once(*given: Any) -> None:
        has_begun.append(True)
        work(*given)

    while not has_begun:
        try:
            with anyio.CancelScope(shield=True):
                await run(once, *arguments)
        except anyio.get_cancelled_exc_class() as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
