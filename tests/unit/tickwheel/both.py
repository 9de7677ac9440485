"""Runs an asynchronous test on trio and on asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

DEADLINE_S = 30


def on_both(test: Callable[[], Awaitable[None]]) -> Callable[[str], None]:
    """Decorates ``async def test_…()``; what it waits for in vain fails it after DEADLINE_S."""

    async def main() -> None:
        with anyio.fail_after(DEADLINE_S):
            await test()

    @pytest.mark.parametrize("backend", ["trio", "asyncio"])
    def run(backend: str) -> None:
        anyio.run(main, backend=backend)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run
