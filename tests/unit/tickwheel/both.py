"""Runs an asynchronous test on trio and on asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import anyio
import pytest

DEADLINE_S = 30


def on_both(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Decorates ``async def test_…()``, whose arguments are fixtures; what it waits for in vain fails it after
    DEADLINE_S."""

    async def main(fixtures: dict[str, object]) -> None:
        with anyio.fail_after(DEADLINE_S):
            await test(**fixtures)

    def run(backend: str, **fixtures: object) -> None:
        anyio.run(main, fixtures, backend=backend)

    backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY)
    signature = inspect.signature(test)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), backend]
    )
    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return pytest.mark.parametrize("backend", ["trio", "asyncio"])(run)
