"""What is remembered of calls that may be made again."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.delivery.attempts import KEPT_MS, Attempts

C, D = Caller("c"), Caller("d")


async def test_what_was_handed_out_is_remembered_for_its_lease(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    attempts.remember(C, "1", 7, [(1, 1), (2, 1)], 10_000)
    attempts.remember(C, "1", 8, [(3, 1)], 5_000)
    attempts.remember(D, "1", 7, [(4, 1)], 10_000)
    await trio.sleep(9)
    assert attempts.handed(C, "1") == {7: [(1, 1), (2, 1)], 8: [(3, 1)]}
    assert attempts.handed(D, "1") == {7: [(4, 1)]}
    assert attempts.handed(C, "2") == {}
    await trio.sleep(1)
    assert attempts.handed(C, "1") == {}


async def test_what_was_given_back_is_forgotten(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    attempts.remember(C, "1", 7, [(1, 1)], 10_000)
    attempts.forget(C, "1")
    attempts.forget(C, "1")
    assert attempts.handed(C, "1") == {}
    assert len(attempts) == 0


async def test_memory_has_an_end(autojump_clock: MockClock) -> None:
    attempts = Attempts(most=3)
    for number in range(5):
        attempts.remember(C, f"{number}", 7, [(number, 1)], 10_000)
    assert len(attempts) == 3
    assert attempts.handed(C, "1") == {}
    assert attempts.handed(C, "2") == {7: [(2, 1)]}
    await trio.sleep(10)
    attempts.remember(C, "9", 7, [(9, 1)], 10_000)
    assert len(attempts) == 1
    attempts.remember(C, "9", 7, [], 0)
    assert attempts.handed(C, "9") == {7: [(9, 1)]}


async def test_what_counts_are_receipts(autojump_clock: MockClock) -> None:
    attempts = Attempts(most=64)
    for number in range(100):
        attempts.remember(C, f"{number}", 7, [(number, epoch) for epoch in range(20)], 10_000)
        if number % 2:
            attempts.forget(C, f"{number}")
    assert len(attempts) == 2
    attempts.remember(C, "98", 8, [(98, epoch) for epoch in range(24)], 10_000)
    assert len(attempts) == 2
    attempts.remember(C, "98", 8, [(99, 1)], 10_000)
    assert len(attempts) == 1
    attempts.remember(C, "long" * 100_000, 8, [(1, 1)], 10_000)
    assert attempts.handed(C, "long" * 100_000) == {8: [(1, 1)]}


async def test_a_long_lease_is_no_reason_to_remember_for_hours(autojump_clock: MockClock) -> None:
    attempts = Attempts()
    attempts.remember(C, "1", 7, [(1, 1)], 12 * 3_600_000)
    await trio.sleep(KEPT_MS / 1_000)
    attempts.remember(C, "2", 7, [(2, 1)], 12 * 3_600_000)
    assert len(attempts) == 1


async def test_clients_of_other_tokens_are_others() -> None:
    attempts = Attempts()
    attempts.remember(C, "1", 7, [(1, 1)], 10_000)
    assert attempts.handed(Caller("c", token="other"), "1") == {}
