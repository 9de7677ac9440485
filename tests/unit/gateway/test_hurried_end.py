"""A process that is told twice to end: what it could not say to the broker is in its log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from tickwheel_gateway.server import Gateway


@pytest.mark.parametrize("is_hurried", [False, True])
async def test_leases_that_were_not_renewed_are_told(is_hurried: bool, autojump_clock: Any) -> None:
    told: list[str] = []

    async def serve(*_: Any) -> None:
        async with trio.open_nursery() as nursery:  # as the real server, which so ends with a group of errors
            nursery.start_soon(trio.sleep, 1)
            await trio.sleep(1)

    async def leave() -> None:
        told.append("left")

    renewing = SimpleNamespace(leave=leave, warn_of_rest=lambda: told.append("warned"))
    gateway = cast("Gateway", SimpleNamespace(_server=SimpleNamespace(serve=serve), _renewing=renewing))
    with trio.move_on_after(0.5 if is_hurried else 5):
        await Gateway._accept(gateway, [], trio.CancelScope())
    assert told == (["warned"] if is_hurried else ["left"])
