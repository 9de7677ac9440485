"""Waiting for what is about to be so."""

from __future__ import annotations

from collections.abc import Callable

import trio

PATIENCE_S = 600.0
"""Of the test's clock, which may be a simulated one."""


async def until(is_so: Callable[[], object]) -> None:
    """Asks again until it is so."""
    with trio.fail_after(PATIENCE_S):
        while not is_so():
            await trio.sleep(0.05)
