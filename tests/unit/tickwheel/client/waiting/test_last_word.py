"""What is said to its end although its task is cancelled."""

from __future__ import annotations

import math

import anyio
import pytest

from tests.unit.tickwheel.both import on_both
from tickwheel.client.waiting.last_word import last_word


class Saying:
    """Takes ``takes_s`` seconds."""

    def __init__(self, takes_s: float, error: Exception | None = None) -> None:
        self._takes_s = takes_s
        self._error = error
        self.said: list[str] = []

    async def say(self) -> None:
        self.said.append("begun")
        await anyio.sleep(self._takes_s)
        if self._error is not None:
            raise self._error
        self.said.append("ended")

    def cut(self) -> None:
        self.said.append("cut")


async def cancelled(saying: Saying, grace_s: float) -> bool:
    """Whether the cancellation, which comes in the middle of the word, came out in the end."""
    with anyio.move_on_after(0.01) as scope:
        await last_word(saying.say, grace_s, saying.cut)
    return scope.cancelled_caught


@on_both
async def test_without_a_cancellation_it_is_as_if_it_were_called() -> None:
    saying = Saying(0)
    await last_word(saying.say, math.inf, saying.cut)
    assert saying.said == ["begun", "ended"]
    with pytest.raises(ZeroDivisionError):
        await last_word(Saying(0, ZeroDivisionError()).say, math.inf, saying.cut)


@on_both
async def test_a_cancellation_waits_for_the_end() -> None:
    saying = Saying(0.05)
    assert await cancelled(saying, grace_s=30)
    assert saying.said == ["begun", "ended"]


@on_both
async def test_who_is_cancelled_already_has_the_same_time() -> None:
    saying = Saying(0.05)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await last_word(saying.say, 30, saying.cut)
    assert scope.cancelled_caught
    assert saying.said == ["begun", "ended"]


@on_both
async def test_what_takes_too_long_is_cut_and_told() -> None:
    saying = Saying(30)
    assert await cancelled(saying, grace_s=0.02)
    assert saying.said == ["begun", "cut"]
