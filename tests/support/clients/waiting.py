"""Waiting for what is about to be so, in an event loop. Without one: ``tickwheel_bench.processes.wait_until``."""

from __future__ import annotations

from collections.abc import Callable

import anyio

PATIENCE_S = 600.0
"""Of the test's clock, which may be a simulated one."""


async def until(is_so: Callable[[], object]) -> None:
    """Asks again until it is so."""
    with anyio.fail_after(PATIENCE_S):
        while not is_so():
            await anyio.sleep(0.02)
