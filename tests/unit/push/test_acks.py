"""Acks of an endpoint's messages: gathered, each with its own result, and none lost with who carried it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tickwheel import NotConnected, ReceiptResult
from tickwheel_push.acks import APART_S, Acks

GROUP = 7


class Broker:
    """Takes a second for each frame, unless it fails. Odd epochs are stale."""

    def __init__(self) -> None:
        self.frames: list[tuple[float, int, list[int]]] = []
        self.error: NotConnected | None = None

    async def ack(self, group_id: int, receipts: Sequence[tuple[int, int]]) -> list[ReceiptResult]:
        self.frames.append(
            (round(trio.current_time() - self.began, 6), group_id, [one for one, _ in receipts])
        )
        await trio.sleep(1)
        if self.error is not None:
            raise self.error.copy()
        return [ReceiptResult.STALE_RECEIPT if epoch % 2 else ReceiptResult.ACKED for _, epoch in receipts]

    began = 0.0


@pytest.fixture
def broker() -> Broker:
    return Broker()


async def test_one_goes_at_once(broker: Broker, autojump_clock: MockClock) -> None:
    broker.began = trio.current_time()
    assert await Acks(broker.ack).ack(GROUP, (1, 2)) is ReceiptResult.ACKED
    assert broker.frames == [(0, GROUP, [1])]


async def test_those_that_follow_go_together_each_with_its_result(
    broker: Broker, autojump_clock: MockClock
) -> None:
    acks, results = Acks(broker.ack), {}
    broker.began = trio.current_time()

    async def ack(message_id: int, epoch: int) -> None:
        results[message_id] = await acks.ack(GROUP, (message_id, epoch))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ack, 1, 2)
        await wait_all_tasks_blocked()
        for message_id, epoch in ((2, 2), (3, 1), (4, 4)):
            nursery.start_soon(ack, message_id, epoch)
            await trio.sleep(APART_S / 10)
    assert [(at_s, sorted(ids)) for at_s, _, ids in broker.frames] == [(0, [1]), (APART_S, [2, 3, 4])]
    assert results == {
        1: ReceiptResult.ACKED,
        2: ReceiptResult.ACKED,
        3: ReceiptResult.STALE_RECEIPT,
        4: ReceiptResult.ACKED,
    }


async def test_each_group_has_frames_of_its_own(broker: Broker, autojump_clock: MockClock) -> None:
    acks = Acks(broker.ack)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acks.ack, GROUP, (1, 2))
        nursery.start_soon(acks.ack, GROUP + 1, (1, 2))
    assert sorted((group_id, ids) for _, group_id, ids in broker.frames) == [(GROUP, [1]), (GROUP + 1, [1])]


async def test_all_of_a_frame_hear_that_it_failed(broker: Broker, autojump_clock: MockClock) -> None:
    acks, failed = Acks(broker.ack), []
    broker.error = NotConnected("The connection broke.")

    async def ack(message_id: int) -> None:
        with pytest.raises(NotConnected):
            await acks.ack(GROUP, (message_id, 2))
        failed.append(message_id)

    async with trio.open_nursery() as nursery:
        for message_id in (1, 2):
            nursery.start_soon(ack, message_id)
    assert sorted(failed) == [1, 2]
    assert len(broker.frames) == 1


@pytest.mark.parametrize("after_s", [0.0, 0.5], ids=["before it goes", "on its way"])
async def test_when_who_carries_a_frame_is_cancelled_another_one_does(
    broker: Broker, autojump_clock: MockClock, after_s: float
) -> None:
    acks, results = Acks(broker.ack), []
    scopes: list[trio.CancelScope] = []
    await acks.ack(GROUP, (1, 2))
    broker.frames.clear()

    async def carry() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await acks.ack(GROUP, (2, 2))

    async def join() -> None:
        results.append(await acks.ack(GROUP, (3, 2)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry)
        while not scopes:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(join)
        if after_s:
            await trio.sleep(after_s)
        scopes[0].cancel()
    assert results == [ReceiptResult.ACKED]
    assert broker.frames[-1][2] == [3]
