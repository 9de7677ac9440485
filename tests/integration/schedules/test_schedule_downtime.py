"""Schedules whose broker was down, or whose clock was set: a real broker on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel import Client, Schedule
from tickwheel._embedded import EmbeddedBroker
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_broker.documents.schedule_slots import Schedule as Kept
from tickwheel_broker.documents.schedule_slots import due_ms
from tickwheel_broker.documents.schedules import PREFIX
from timerlog.settings import StoreSettings
from timerlog.store import Store

HEADER = "tickwheel-schedule"
START = datetime(2026, 11, 21, 7, 59, 57, tzinfo=UTC)
NINE_IN_PARIS = datetime(2026, 11, 21, 8, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def broker_at(directory: Path, now: datetime) -> tuple[EmbeddedBroker, ManualClock]:
    """A broker that was started at this time."""
    clock = ManualClock(now)
    return EmbeddedBroker(str(directory), clock, {}), clock


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)


async def until(client: Client, name: str, is_so: Callable[[Schedule], bool]) -> Schedule:
    """The schedule as soon as it is so."""
    with trio.fail_after(PATIENCE_S):
        while not is_so(found := await client.schedule(name)):
            await trio.sleep(0.01)
    return found


async def slots_of(client: Client, topic: str) -> list[int]:
    found = await client.browse(topic, limit=10_000)
    return [message.headers[HEADER]["slot_ms"] for message in found]


async def daily(client: Client, **fields: Any) -> Schedule:
    return await client.create_schedule("wages", "wages", cron="0 9 * * *", tz="Europe/Paris", **fields)


NINE_MS = ms(NINE_IN_PARIS)


@pytest.mark.parametrize(
    ("policy", "sent", "missed"),
    [
        # The message of the first day was sent ahead before the downtime: it was on its way.
        ("last", [NINE_MS, NINE_MS + 30 * DAY_MS], 29),
        ("all", [NINE_MS + day * DAY_MS for day in range(31)], 0),
        # What is not to be caught up is not even delivered late.
        ("none", [], 31),
    ],
)
async def test_a_month_of_downtime(tmp_path: Path, policy: str, sent: list[int], missed: int) -> None:
    broker, _ = broker_at(tmp_path, START)
    async with broker, broker.client() as client:
        await daily(client, catch_up=policy)
        if policy == "none":
            assert await slots_of(client, "wages") == []
        else:
            await until(client, "wages", lambda one: one.sent == 1)
    broker, _ = broker_at(tmp_path, NINE_IN_PARIS + 30 * DAY + timedelta(hours=1))
    async with broker, broker.client() as client:
        found = await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS + 30 * DAY_MS)
        assert (found.sent, found.missed) == (len(sent), missed)
        assert await slots_of(client, "wages") == sent
        assert found.next_ms[0] == NINE_MS + 31 * DAY_MS


async def test_years_of_seconds_do_not_keep_the_broker_from_others(tmp_path: Path) -> None:
    broker, _ = broker_at(tmp_path, START)
    async with broker, broker.client() as client:
        await client.create_schedule("seconds", "seconds", cron="* * * * * *", catch_up="last")
        await daily(client)
    down = 365 * DAY
    broker, _ = broker_at(tmp_path, START + down)
    async with broker, broker.client() as client:
        assert (await client.schedule("seconds")).cron == "* * * * * *", "it answers at once"
        await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS + 365 * DAY_MS)
        found = await until(client, "seconds", lambda one: one.last_slot_ms > ms(START + down))
        assert found.missed > 0
        assert found.trouble == ""


async def test_a_schedule_that_is_deleted_while_it_catches_up_stays_deleted(tmp_path: Path) -> None:
    broker, _ = broker_at(tmp_path, START)
    async with broker, broker.client() as client:
        for number in range(5):
            await client.create_schedule(f"s{number}", "t", cron="* * * * * *", catch_up="all")
    broker, _ = broker_at(tmp_path, START + DAY)
    async with broker, broker.client() as client:
        for number in range(5):
            await client.delete_schedule(f"s{number}")
        await client.create_schedule("sentinel", "t", every=timedelta(seconds=1))
        await until(client, "sentinel", lambda one: one.sent > 0)
        assert [one.name for one in await client.schedules()] == ["sentinel"]
    broker, _ = broker_at(tmp_path, START + DAY)
    async with broker, broker.client() as client:
        assert [one.name for one in await client.schedules()] == ["sentinel"]


@pytest.mark.parametrize("policy", ["none", "last", "all"])
async def test_a_message_whose_place_in_the_window_has_not_come_is_not_late(
    tmp_path: Path, policy: str
) -> None:
    broker, _ = broker_at(tmp_path, NINE_IN_PARIS - timedelta(minutes=10))
    async with broker, broker.client() as client:
        await daily(client, window=timedelta(hours=12), catch_up=policy)
    kept = Kept(name="wages", topic="wages", window_ms=12 * HOUR_MS, catch_up=policy)  # type: ignore[arg-type]
    place_ms = due_ms(kept, NINE_MS)
    broker, clock = broker_at(tmp_path, START + timedelta(milliseconds=place_ms - NINE_MS))
    async with broker, broker.client() as client, client.subscribe("wages") as subscription:
        clock.advance(timedelta(seconds=3))
        message = await subscription.receive(PATIENCE_S)
        assert message is not None
        assert (message.deliver_at_ms, message.headers[HEADER]["slot_ms"]) == (place_ms, NINE_MS)
        found = await until(client, "wages", lambda one: one.sent == 1)
        assert found.missed == 0


@pytest.mark.promise("when-the-clock-jumps")
async def test_a_clock_that_is_set_back_an_hour_repeats_nothing(tmp_path: Path) -> None:
    broker, clock = broker_at(tmp_path, NINE_IN_PARIS - timedelta(minutes=30))
    async with broker, broker.client() as client:
        await daily(client)
        clock.set(NINE_IN_PARIS)
        await until(client, "wages", lambda one: one.sent == 1)
        clock.set(NINE_IN_PARIS - timedelta(hours=1))
        clock.set(NINE_IN_PARIS)
        await client.create_schedule("sentinel", "other", every=timedelta(hours=1), start=NINE_MS)
        await until(client, "sentinel", lambda one: one.next_ms[0] > NINE_MS)
        clock.set(NINE_IN_PARIS + DAY)
        found = await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS + DAY_MS)
        assert (found.sent, found.missed) == (2, 0)
        assert await slots_of(client, "wages") == [NINE_MS, NINE_MS + DAY_MS]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_was_a_year_ahead_does_not_silence_a_schedule(
    tmp_path: Path, *, restarts: bool
) -> None:
    broker, clock = broker_at(tmp_path, START - DAY)
    async with broker, broker.client() as client:
        await daily(client)
        clock.set(START + 365 * DAY)
        await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS + 365 * DAY_MS)
        if not restarts:
            clock.set(START)
            await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS)
            assert NINE_MS in await slots_of(client, "wages")
    if restarts:
        broker, clock = broker_at(tmp_path, START)
        async with broker, broker.client() as client:
            await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS)
            assert NINE_MS in await slots_of(client, "wages")


async def test_the_repeated_hour_through_a_restart_in_it(tmp_path: Path) -> None:
    """02:45 comes once, at 02:45+02:00; a broker that starts at the second 02:30 does not send it again."""
    first = datetime.fromisoformat("2026-10-25T02:44:00+02:00")
    broker, clock = broker_at(tmp_path, first)
    async with broker, broker.client() as client:
        await client.create_schedule("nightly", "nights", cron="45 2 * * *", tz="Europe/Paris")
        clock.advance(timedelta(minutes=1))
        await until(client, "nightly", lambda one: one.sent == 1)
    broker, clock = broker_at(tmp_path, datetime.fromisoformat("2026-10-25T02:30:00+01:00"))
    async with broker, broker.client() as client:
        assert (await client.schedule("nightly")).next_ms[0] == ms(
            datetime.fromisoformat("2026-10-26T02:45:00+01:00")
        )
        clock.set(datetime.fromisoformat("2026-10-26T02:45:00+01:00"))
        found = await until(client, "nightly", lambda one: one.sent == 2)
        assert found.missed == 0
        assert await slots_of(client, "nights") == [
            ms(first + timedelta(minutes=1)),
            ms(datetime.fromisoformat("2026-10-26T02:45:00+01:00")),
        ]


async def test_a_time_zone_that_is_gone_makes_one_schedule_wait_and_no_other(tmp_path: Path) -> None:
    """As when the machine's time zone data is another one after an upgrade."""
    broker, _ = broker_at(tmp_path, START)
    async with broker, broker.client() as client:
        await daily(client)
        await client.create_schedule("other", "others", cron="0 9 * * *", tz="Europe/Paris")
    _rename_zone(tmp_path, "wages", "Europe/Lutetia")
    broker, _ = broker_at(tmp_path, START)
    async with broker, broker.client() as client:
        found = {one.name: one for one in await client.schedules()}
        assert "Europe/Lutetia" in found["wages"].trouble
        assert (found["wages"].next_ms, found["other"].trouble) == ([], "")
        assert (await client.set_schedule("wages", tz="Europe/Paris")).trouble == ""
        await until(client, "wages", lambda one: one.last_slot_ms == NINE_MS)


def _rename_zone(directory: Path, name: str, zone: str) -> None:
    store = Store.open(directory, StoreSettings(), ms(START))
    kept = msgspec.msgpack.decode(store.tables.documents[PREFIX + name], type=Kept)
    moved = msgspec.structs.replace(kept, tz=zone)
    store.change.put_document(PREFIX + name, msgspec.msgpack.encode(moved), ms(START))
    store.close()
