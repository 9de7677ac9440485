"""What is remembered of calls that may be made again."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tickwheel_gateway.delivery.attempts import Attempts


async def test_what_was_handed_out_is_remembered_for_its_lease(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    attempts.remember("c", "1", 7, [(1, 1), (2, 1)], 10_000)
    attempts.remember("c", "1", 8, [(3, 1)], 5_000)
    attempts.remember("d", "1", 7, [(4, 1)], 10_000)
    await trio.sleep(9)
    assert attempts.handed("c", "1") == {7: [(1, 1), (2, 1)], 8: [(3, 1)]}
    assert attempts.handed("d", "1") == {7: [(4, 1)]}
    assert attempts.handed("c", "2") == {}
    await trio.sleep(1)
    assert attempts.handed("c", "1") == {}


async def test_what_was_given_back_is_forgotten(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    attempts.remember("c", "1", 7, [(1, 1)], 10_000)
    attempts.forget("c", "1")
    attempts.forget("c", "1")
    assert attempts.handed("c", "1") == {}
    assert len(attempts) == 0


async def test_memory_has_an_end(autojump_clock: MockClock) -> None:
    attempts = Attempts(most=3)
    for number in range(5):
        attempts.remember("c", f"{number}", 7, [(number, 1)], 10_000)
    assert len(attempts) == 3
    assert attempts.handed("c", "1") == {}
    assert attempts.handed("c", "2") == {7: [(2, 1)]}
    await trio.sleep(10)
    attempts.remember("c", "9", 7, [(9, 1)], 10_000)
    assert len(attempts) == 1
    attempts.remember("c", "9", 7, [], 0)
    assert attempts.handed("c", "9") == {7: [(9, 1)]}
