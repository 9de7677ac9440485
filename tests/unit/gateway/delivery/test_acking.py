"""Acks of many callers in few requests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.clients.in_time import broker_in_time
from tickwheel import Client, ReceiptResult, TickwheelError
from tickwheel.errors import ClientClosed
from tickwheel_gateway.delivery.acking import Acking, Delivered

COUNT = 12
_LONG = timedelta(seconds=5)


class Gate:
    """A client's acks, one request at a time, when they are let through."""

    def __init__(self, client: Any) -> None:
        self._ack = client.ack
        self.asked: list[list[Delivered]] = []
        self.error: TickwheelError | None = None
        self.open = trio.Event()
        client.ack = self.ack

    async def ack(self, group_id: int, receipts: list[Delivered]) -> list[ReceiptResult]:
        self.asked.append(receipts)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        results: list[ReceiptResult] = await self._ack(group_id, receipts)
        return results


class Caller:
    """One that acks."""

    def __init__(self, receipts: list[Delivered]) -> None:
        self.receipts = receipts
        self.scope = trio.CancelScope()
        self.results: Any = None

    async def ack(self, acking: Acking, client: Any, group_id: int) -> None:
        with self.scope:
            try:
                self.results = await acking.ack(client, group_id, self.receipts)
            except TickwheelError as error:
                self.results = error.code


async def fetched(client: Client) -> tuple[int, list[Delivered]]:
    """The number of a group, and what it was given."""
    await client.send_many("t", [b"%d" % number for number in range(COUNT)])
    batch = await client.fetch("t", count=COUNT, wait=_LONG)
    assert len(batch) == COUNT
    return batch.group_id, list(zip(batch.ids, batch.epochs, strict=True))


async def test_callers_share_requests_and_have_their_own_results(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client, trio.open_nursery() as nursery:
        group_id, receipts = await fetched(client)
        gate, acking = Gate(client), Acking()
        callers = [Caller([receipt]) for receipt in receipts[:-2]]
        callers.append(Caller([*receipts[-2:], (10**9, 1), receipts[0]]))
        for caller in callers[:3]:
            nursery.start_soon(caller.ack, acking, client, group_id)
        await wait_all_tasks_blocked()
        for caller in callers[3:]:
            nursery.start_soon(caller.ack, acking, client, group_id)
        await wait_all_tasks_blocked()
        assert [len(asked) for asked in gate.asked] == [3]
        gate.open.set()
        while any(caller.results is None for caller in callers):
            await trio.sleep(0.01)
        assert [len(asked) for asked in gate.asked] == [3, COUNT - 3 + 2]
        assert [caller.results for caller in callers[:-1]] == [["acked"]] * (COUNT - 2)
        assert callers[-1].results == ["acked", "acked", "not_found", "already_acked"]
        assert len(acking) == 0


@pytest.mark.parametrize("cancelled", [[0], [1], [3], [0, 1, 2], [0, 3], [0, 1, 2, 3, 4, 5]])
async def test_one_that_is_cancelled_does_not_cancel_the_others(
    autojump_clock: MockClock, cancelled: list[int]
) -> None:
    client = _Broker()
    gate, acking = Gate(client), Acking()
    callers = [Caller([(number, 1)]) for number in range(6)]
    async with trio.open_nursery() as nursery:
        for together in (callers[:3], callers[3:]):
            for caller in together:
                nursery.start_soon(caller.ack, acking, client, 7)
            await wait_all_tasks_blocked()
        assert [len(asked) for asked in gate.asked] == [3]
        for number in cancelled:
            callers[number].scope.cancel()
        await wait_all_tasks_blocked()
        gate.open.set()
    for number, caller in enumerate(callers):
        assert caller.results == (None if number in cancelled else [f"acked {number}"])
    assert len(acking) == 0


async def test_an_error_is_for_those_who_asked_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    client = _Broker()
    gate, acking = Gate(client), Acking()
    gate.error = ClientClosed()
    callers = [Caller([(number, 1)]) for number in range(4)]
    async with trio.open_nursery() as nursery:
        for caller in callers[:3]:
            nursery.start_soon(caller.ack, acking, client, 7)
        await wait_all_tasks_blocked()
        nursery.start_soon(callers[3].ack, acking, client, 8)
        await wait_all_tasks_blocked()
        assert len(gate.asked) == 2, "another group does not wait"
        gate.open.set()
        await wait_all_tasks_blocked()
        gate.error = None
        again = Caller([(5, 1)])
        await again.ack(acking, client, 7)
    assert [caller.results for caller in callers] == ["client_closed"] * 4
    assert again.results == ["acked 5"]


class _Broker:
    """Says of each receipt which one it was."""

    async def ack(self, group_id: int, receipts: list[Delivered]) -> list[str]:
        await trio.sleep(0.001)
        return [f"acked {message_id}" for message_id, _ in receipts]
