"""Work beside the event loop: a thread for what takes more than a few milliseconds, while others are served.

The thread has the interpreter in turns with the loop, so there is no more than one of it: each more would make the loop
wait one turn longer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

TURN_S: Final = 0.0005
"""So long the thread may have the interpreter when the loop wants it, unless a single call takes longer."""

P = ParamSpec("P")
T = TypeVar("T")

_limiter: RunVar[CapacityLimiter] = RunVar("aside")


def take_short_turns() -> None:
    """For a process whose loop is to go on at once. By default a thread has ten times as much."""
    sys.setswitchinterval(TURN_S)


async def aside(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """The work is done in the thread, after what others have given it. It always comes to its end."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(1)
        _limiter.set(limiter)
    return await run_sync(partial(work, *arguments, **options), limiter=limiter)
