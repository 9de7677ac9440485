"""Turns: who has much to do lets others go on, and many together hold the loop no longer than one."""

from __future__ import annotations

import pytest
import trio

from tickwheel_broker.net.turns import SHORTEST_NS, TURN_NS, Turn, Turns, counted_ns

PIECE_NS = TURN_NS // 10


class Work:
    """A clock that moves only while somebody works, so that a test says how long each piece takes."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.turns = Turns(lambda: self.now_ns)
        self.order: list[str] = []

    async def do(self, name: str, pieces: int) -> None:
        turn = Turn(self.turns)
        for _ in range(pieces):
            self.order.append(name)
            self.now_ns += PIECE_NS
            if turn.is_over:
                await turn.yield_()


async def test_one_who_has_much_to_do_yields_after_its_turn() -> None:
    work, others = Work(), 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await work.do("a", 100)
        nursery.cancel_scope.cancel()
    assert others >= 100 * PIECE_NS // TURN_NS - 1


async def test_many_share_the_time_of_one() -> None:
    work, count, passes = Work(), 5, []

    async def watch() -> None:
        before_ns = work.now_ns
        while len(work.order) < 50 * count:
            await trio.lowlevel.checkpoint()
            passes.append(work.now_ns - before_ns)
            before_ns = work.now_ns

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for number in range(count):
            nursery.start_soon(work.do, str(number), 50)
    # In the first pass none knows of the others; then each has its part, and ends with the piece that it is at.
    settled = passes[2:-1]
    assert settled
    assert max(settled) <= 2 * (TURN_NS + count * PIECE_NS), "the watch may see two passes as one"
    halfway = work.order[: len(work.order) // 2]
    shares = [halfway.count(str(number)) for number in range(count)]
    assert max(shares) - min(shares) <= 12, "nobody is left behind"


@pytest.mark.parametrize(("waiting", "turn_ns"), [(0, TURN_NS), (1, TURN_NS // 2), (10_000, SHORTEST_NS)])
async def test_a_turn_is_shorter_the_more_wait(waiting: int, turn_ns: int) -> None:
    turns = Turns(lambda: 7)
    turns.waiting = waiting
    assert turns.end_ns() == 7 + turn_ns


async def test_who_is_cancelled_waits_no_more() -> None:
    turns = Turns()
    with trio.CancelScope() as scope:
        scope.cancel()
        await Turn(turns).yield_()
    assert scope.cancelled_caught
    assert turns.waiting == 0


def test_a_counted_clock_says_the_same_in_each_run() -> None:
    one, other = counted_ns(), counted_ns()
    assert [one() for _ in range(5)] == [other() for _ in range(5)]
