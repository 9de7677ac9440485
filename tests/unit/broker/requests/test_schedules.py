"""Requests about schedules that take long: everything else goes on meanwhile, and nothing is looked for in vain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from tests.support.native.driver import NOW_MS, SMALL
from tickwheel.protocol.bodies.schedules import GetSchedules
from tickwheel.protocol.errors import BadSchedule
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.documents import schedule_slots
from tickwheel_broker.documents.schedule_slots import Schedule, merged
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.requests.operations import Clients
from tickwheel_broker.security.grants import OWNER
from tickwheel_broker.wiring import requests_of
from timerlog.store import Store

Show = Callable[[GetSchedules], Awaitable[dict[str, Any]]]
RARE = "0 0 29 2 */7"


class Asked:
    """By somebody who may do everything."""

    caller = SimpleNamespace(identity=OWNER)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    async with trio.open_nursery() as nursery:
        yield Broker(
            settings=Settings(data_dir=str(tmp_path)),
            store=store,
            clock=TrioClock(NOW_MS),
            runner=InPlace(),
            nursery=nursery,
        )
        nursery.cancel_scope.cancel()
    store.close()


@pytest.fixture
def show(broker: Broker) -> Show:
    handler = requests_of(broker, Clients()).table[GetSchedules].handle

    async def ask(request: GetSchedules) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.msgpack.decode(await handler(request, Asked)())
        return found

    return ask


def create(broker: Broker, name: str, **fields: Any) -> None:
    broker.store.topics.open("t", NOW_MS)
    base = {"name": name, "topic": "t", "start_ms": NOW_MS, "last_slot_ms": NOW_MS}
    broker.schedules.create(merged(base, fields))


class Turns:
    """How often others had their turn while something was done."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("rhythm", [{"cron": RARE}, {"cron": RARE, "tz": "Europe/Paris"}])
async def test_others_are_served_while_rare_slots_are_looked_for(
    broker: Broker, show: Show, rhythm: dict[str, str]
) -> None:
    create(broker, "rare", **rhythm)
    for request in (
        GetSchedules(fields=rhythm, count=30),
        GetSchedules("rare", count=30),
        GetSchedules(count=30),
    ):
        turns = Turns()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            found = await show(request)
            nursery.cancel_scope.cancel()
        slots = found["times"] if request.fields else found["schedules"][0]["next_ms"]
        assert len(slots) == 30
        assert turns.count >= 20


async def test_of_previews_one_at_a_time_is_worked_at(broker: Broker, show: Show) -> None:
    """Else many of them would take all the turns together that one leaves to others."""
    ended: list[int] = []

    async def preview(number: int) -> None:
        await show(GetSchedules(fields={"cron": RARE}, count=20))
        ended.append(number)

    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        async with trio.open_nursery() as previews:
            for number in range(5):
                previews.start_soon(preview, number)
        nursery.cancel_scope.cancel()
    assert len(ended) == 5
    assert turns.count >= 5 * 15


async def test_slots_are_looked_for_of_those_that_are_listed_alone(
    broker: Broker, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number:03}" for number in range(130)]
    for name in names:
        create(broker, name, cron="0 9 * * *")
    looked: list[str] = []
    real = schedule_slots.upcoming_in_steps

    def noted(schedule: Schedule, now_ms: int, count: int) -> Any:
        looked.append(schedule.name)
        return real(schedule, now_ms, count)

    monkeypatch.setattr(schedule_slots, "upcoming_in_steps", noted)
    for request, wanted, more in (
        (GetSchedules(limit=3), names[:3], True),
        (GetSchedules(after="s004", limit=2), names[5:7], True),
        (GetSchedules(after="s127", limit=2), names[128:], False),
        (GetSchedules(after="s126"), names[127:], False),
        (GetSchedules(limit=5_000), names[:100], True),
        (GetSchedules("s007"), ["s007"], False),
    ):
        looked.clear()
        found = await show(request)
        assert ([one["name"] for one in found["schedules"]], found["more"]) == (wanted, more)
        assert looked == wanted


async def test_a_schedule_that_is_deleted_while_others_are_listed(broker: Broker, show: Show) -> None:
    for name in ("a", "b", "c"):
        create(broker, name, cron=RARE)
    broker.schedules.create(merged({"name": "paused", "topic": "t", "paused": True}, {"every_ms": 5}))
    found: dict[str, Any] = {}

    async def listed() -> None:
        found.update(await show(GetSchedules(count=20)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listed)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        broker.schedules.remove("b")
    assert [one["name"] for one in found["schedules"]] == ["a", "c", "paused"]
    assert [len(one["next_ms"]) for one in found["schedules"]] == [20, 20, 0]


async def test_a_preview_that_is_wrong_is_refused(show: Show) -> None:
    with pytest.raises(BadSchedule, match="cannot be read"):
        await show(GetSchedules(fields={"cron": "99 * * * *"}))
    with pytest.raises(BadSchedule, match="no time zone"):
        await show(GetSchedules(fields={"every_ms": 5, "tz": "Nowhere"}))
