"""What is said to its end although its task is cancelled."""

from __future__ import annotations

import math

import anyio
import pytest

from tests.unit.tickwheel.both import on_both
from tickwheel.client.waiting.last_words import LastWords


class Saying:
    """A word that takes ``takes_s`` seconds, said by a task that is cancelled after 10 ms."""

    def __init__(self, takes_s: float, error: Exception | None = None) -> None:
        self._takes_s = takes_s
        self._error = error
        self.said: list[str] = []

    async def word(self) -> None:
        self.said.append("begun")
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, self._takes_s)
            await anyio.sleep(self._takes_s)
        if self._error is not None:
            raise self._error
        self.said.append("ended")

    def cut(self) -> None:
        self.said.append("cut")

    async def cancelled(self, grace_s: float, *, is_early: bool = False) -> bool:
        """Whether the cancellation came out in the end. ``is_early``: it came before the word was begun."""
        words = LastWords(grace_s)
        with anyio.move_on_after(0.01) as scope:
            async with words.watched(), anyio.create_task_group() as group:
                group.start_soon(self._say, words, is_early)
        return scope.cancelled_caught

    async def _say(self, words: LastWords, is_early: bool) -> None:
        try:
            if is_early:
                await anyio.sleep_forever()
        finally:
            await words.say(self.word, self.cut)
            self.said.append("went on")


@on_both
async def test_without_a_cancellation_it_is_as_if_it_were_called() -> None:
    words, saying = LastWords(math.inf), Saying(0)
    async with words.watched():
        await words.say(saying.word, saying.cut)
        assert saying.said == ["begun", "ended"]
        failing = Saying(0, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await words.say(failing.word, failing.cut)
        assert failing.said == ["begun"]


@on_both
async def test_a_cancellation_waits_for_the_end() -> None:
    saying = Saying(0.05)
    assert await saying.cancelled(grace_s=30)
    assert saying.said == ["begun", "ended"]


@on_both
async def test_who_is_cancelled_already_has_the_same_time() -> None:
    saying = Saying(0.05)
    assert await saying.cancelled(grace_s=30, is_early=True)
    assert saying.said == ["begun", "ended"]


@pytest.mark.parametrize("is_early", [False, True])
@on_both
async def test_what_takes_too_long_is_cut_and_told(is_early: bool) -> None:
    saying = Saying(30)
    assert await saying.cancelled(grace_s=0.02, is_early=is_early)
    assert saying.said == ["begun", "cut"]
