"""A last word: what is being said to the broker is said to its end, although the task that says it is cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel


async def last_word(say: Callable[[], Awaitable[object]], grace_s: float, cut: Callable[[], None]) -> None:
    """Awaits ``say()``. A cancellation from outside does not interrupt it for ``grace_s`` seconds.

    Calls ``cut()`` if it was interrupted then. Raises the cancellation in the end, otherwise what ``say`` raises.
    """
    error: Exception | None = None

    async def bound(scope: anyio.CancelScope) -> None:
        try:
            await anyio.sleep_forever()
        finally:  # the cancellation
            scope.deadline = anyio.current_time() + grace_s

    async with anyio.create_task_group() as group:
        with anyio.CancelScope(shield=True) as scope:
            group.start_soon(bound, scope)
            try:
                await say()
            except anyio.get_cancelled_exc_class():
                cut()
                raise
            except Exception as raised:
                error = raised  # not out of the group, which would wrap it
        group.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint_if_cancelled()
    if error is not None:
        raise error
