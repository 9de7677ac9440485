"""What is remembered of calls that may be made again."""

from __future__ import annotations

from itertools import pairwise

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


async def test_the_same_attempt_ends_the_one_that_waits() -> None:
    attempts = Attempts()
    with (
        attempts.waiting(C, "1") as first,
        attempts.waiting(C, "2") as other,
        attempts.waiting(D, "1") as of_d,
    ):
        with attempts.waiting(C, "1") as second:
            assert first.cancel_called
            with attempts.waiting(C, "1"):
                assert second.cancel_called
        assert not other.cancel_called
        assert not of_d.cancel_called
        with attempts.waiting(C, "") as nameless, attempts.waiting(C, ""):
            assert not nameless.cancel_called


async def test_memory_has_an_end(autojump_clock: MockClock) -> None:
    attempts = Attempts(most=3)
    for number in range(5):
        attempts.remember(C, f"{number}", 7, [(number, 1)], 10_000)
    assert len(attempts) == 3
    assert attempts.handed(C, "1") == {}
    assert attempts.handed(C, "2") == {7: [(2, 1)]}
    attempts.remember(C, "9", 7, [(9, 1), (10, 1), (11, 1)], 10_000)
    assert len(attempts) == 1
    attempts.forget(C, "9")
    attempts.remember(C, "9", 7, [(9, 1)], 10_000)
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
    await trio.sleep(KEPT_MS / 1_000 - 1)
    assert attempts.handed(C, "1") == {7: [(1, 1)]}
    await trio.sleep(1)
    assert attempts.handed(C, "1") == {}


async def test_those_that_are_over_are_forgotten_a_few_at_a_time(autojump_clock: MockClock) -> None:
    """All at once were 30 ms, in which the first call after a pause waited."""
    attempts = Attempts()
    for number in range(1_000):
        attempts.remember(C, f"{number}", 7, [(number, 1)], 10_000)
    attempts.remember(C, "long", 7, [(7, 2)], 60_000)
    kept: list[int] = []

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            kept.append(len(attempts))

    trio.lowlevel.add_instrument(Steps())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempts.run)
        await trio.sleep(9.5)
        assert len(attempts) == 1_001
        await trio.sleep(1)
        assert len(attempts) == 1, "all but one are over"
        assert 0 < max(before - after for before, after in pairwise(kept)) <= 256
        attempts.remember(C, "new", 7, [(8, 1)], 10_000)
        await trio.sleep(60)
        assert len(attempts) == 0
        nursery.cancel_scope.cancel()


async def test_clients_of_other_tokens_are_others() -> None:
    attempts = Attempts()
    attempts.remember(C, "1", 7, [(1, 1)], 10_000)
    assert attempts.handed(Caller("c", token="other"), "1") == {}
