"""How a node finds out that its clock differs from the owner's, and what follows from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from tickwheel_broker.node.candidacy import Candidacy, Reason
from tickwheel_broker.sharedlog.clock_skew import ClockSkew
from tickwheel_broker.sharedlog.node import Role
from tickwheel_broker.sharedlog.standing import Standing
from timerlog.replication.record import Head, Kind

NOW_MS = 1_700_000_000_000


def beat(node: int, clock_ms: int) -> Head:
    return Head(kind=Kind.BEAT, flags=0, term=1, node=node, seq=0, position=0, chain=0, clock_ms=clock_ms)


def simulated(scenario: Callable[[], Awaitable[None]]) -> None:
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


async def hear(skew: ClockSkew, ahead_ms: int, delays_ms: list[int], node: int = 1) -> None:
    """One record a second, each a while on its way."""
    for delay_ms in delays_ms:
        now_ms = NOW_MS + int(trio.current_time() * 1_000)
        skew.hear(beat(node, now_ms - ahead_ms - delay_ms), now_ms)
        await trio.sleep(1)


def test_the_least_delayed_record_tells() -> None:
    async def scenario() -> None:
        skew = ClockSkew(6)
        await hear(skew, 100, [900, 3])
        assert skew.ms is None, "two are too few"
        await hear(skew, 100, [700])
        assert skew.ms == 103
        await hear(skew, -400, [20, 5, 600])
        assert skew.ms == -395

    simulated(scenario)


def test_a_clock_that_was_put_right_is_right_soon() -> None:
    async def scenario() -> None:
        skew = ClockSkew(6)
        await hear(skew, -2_000, [1] * 5)
        assert skew.ms == -1_999
        await hear(skew, 0, [1] * 6)
        assert skew.ms == 1

    simulated(scenario)


def test_nothing_holds_of_an_owner_that_is_gone() -> None:
    async def scenario() -> None:
        skew = ClockSkew(6)
        await hear(skew, 500, [1] * 5)
        await trio.sleep(4)
        assert skew.ms == 501
        await trio.sleep(2)
        assert skew.ms is None
        await hear(skew, 500, [1] * 5)
        await hear(skew, 0, [1], node=2)
        assert skew.ms == 501, "the next owner may be the one that is wrong, or not: that is known soon"
        await hear(skew, 0, [1, 1], node=2)
        assert skew.ms == 1
        skew.reset()
        assert skew.ms is None

    simulated(scenario)


class Group:
    """A membership that notes what it is told."""

    def __init__(self) -> None:
        self.is_member = False
        self.others: Callable[[], bool] = lambda: False

    async def has_others(self) -> bool:
        return self.others()

    def joined(self) -> None:
        self.is_member = True

    def left(self) -> None:
        self.is_member = False

    async def wait_chosen(self) -> None:
        if not self.is_member:
            await trio.sleep_forever()

    async def wait_not_chosen(self) -> None:
        await trio.sleep_forever()


def test_each_reason_must_go_before_a_node_stands_again() -> None:
    async def scenario() -> None:
        group, standing = Group(), Standing("c", 1)
        candidacy = Candidacy(group, standing)
        candidacy.joined()
        candidacy.withdraw(Reason.CLOCK)
        assert (group.is_member, standing.has_joined, standing.is_drained) == (False, False, False)
        assert standing.role is Role.FOLLOWER
        candidacy.withdraw(Reason.DRAINED)
        candidacy.stand_again(Reason.CLOCK)
        assert (group.is_member, standing.is_drained) == (False, True)
        with trio.move_on_after(10) as waiting:
            await candidacy.wait_chosen()
        assert waiting.cancelled_caught
        candidacy.stand_again(Reason.DRAINED)
        assert (group.is_member, standing.has_joined, standing.is_drained) == (True, True, False)
        await candidacy.wait_chosen()

    simulated(scenario)
