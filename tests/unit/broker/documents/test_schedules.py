"""Schedules on a real store, with a clock and steps that the test moves: changes, refusals, and full disks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tickwheel.protocol.errors import BadSchedule
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.documents.schedule_slots import STEP, Schedule, key_of, merged
from tickwheel_broker.documents.schedules import PREFIX
from tickwheel_broker.group_commit import SyncThread
from timerlog.commitlog.log import CommitLog
from timerlog.engine.change import CANCELLED, SCHEDULED
from timerlog.errors import DiskFull
from timerlog.settings import StoreSettings
from timerlog.store import Store

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
SECOND_MS, HOUR_MS = 1_000, 3_600_000


class Kept:
    """A broker whose tasks do not run: the test carries out what they would."""

    def __init__(self, directory: Path, nursery: trio.Nursery, runner: SyncThread) -> None:
        self.clock = ManualClock(START)
        self.store = Store.open(directory, StoreSettings(), self.clock.now_ms())
        settings = from_arguments(data_dir=str(directory))
        self.broker = Broker(
            settings=settings, store=self.store, clock=self.clock, runner=runner, nursery=nursery
        )
        self.schedules = self.broker.schedules

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def create(self, **fields: Any) -> Schedule:
        base = {"name": "s", "topic": "t", "start_ms": self.now_ms, "last_slot_ms": self.now_ms}
        self.store.topics.open("t", self.now_ms)
        self.schedules.create(merged(base, fields))
        return self.schedules.get("s")

    def keep(self) -> Schedule:
        """What the task does when it wakes up; the schedule as it is then."""
        for _ in self.schedules._steps(self.schedules.get("s"), self.now_ms):
            pass
        return self.schedules.get("s")

    def states(self, topic: str = "t") -> dict[int, int]:
        """How the messages stand that have the keys of slots of the next minute, in steps of a second."""
        slots = range(self.now_ms, self.now_ms + 60_000, SECOND_MS)
        ids = self.store.select.find(topic, [f"~schedule/s/{slot_ms}" for slot_ms in slots])
        found = {slot_ms: number for slot_ms, number in zip(slots, ids, strict=True) if number}
        return dict(zip(found, self.store.change.verdicts(list(found.values())), strict=True))


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    async with trio.open_nursery() as nursery:
        bench = Kept(tmp_path, nursery, SyncThread())
        yield bench
        bench.store.close(clean=False)
        nursery.cancel_scope.cancel()


async def test_a_refused_change_changes_nothing(kept: Kept) -> None:
    kept.create(every_ms=4 * SECOND_MS)
    before = kept.keep()
    assert list(kept.states().values()) == [SCHEDULED]
    with pytest.raises(BadSchedule):
        kept.schedules.change({"overlap": "sometimes"}, before)
    assert kept.schedules.get("s") is before
    assert list(kept.states().values()) == [SCHEDULED], "the message that was sent ahead still waits"


async def test_a_change_on_a_full_disk_changes_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.create(every_ms=4 * SECOND_MS)
    before = kept.keep()

    def full(_log: CommitLog, _bytes_needed: int) -> None:
        raise DiskFull

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "ensure_room", full)
        for change in (
            lambda: kept.schedules.change({"body": b"b"}, before),
            lambda: kept.schedules.remove("s"),
        ):
            with pytest.raises(DiskFull):
                change()
            assert kept.schedules.get("s") is before
            assert list(kept.states().values()) == [SCHEDULED]
    kept.schedules.change({"body": b"b"}, before)
    assert kept.schedules.get("s").body == b"b"


async def test_what_was_called_back_is_sent_again(kept: Kept) -> None:
    kept.create(every_ms=4 * SECOND_MS)
    before = kept.keep()
    slot_ms = before.last_slot_ms
    kept.schedules.change({"body": b"new"}, before)
    assert kept.store.change.verdicts([before.last_id]) == [CANCELLED]
    after = kept.keep()
    assert (after.last_slot_ms, after.sent) == (slot_ms, 2)
    assert after.last_id > before.last_id, "the cancelled message has freed its key"
    assert kept.store.change.verdicts([before.last_id, after.last_id]) == [CANCELLED, SCHEDULED]


@pytest.mark.parametrize("how", ["pause", "topic", "delete"])
async def test_all_that_was_sent_ahead_is_called_back(kept: Kept, how: str) -> None:
    """At an interval below the lead there are several."""
    kept.create(every_ms=SECOND_MS)
    schedule = kept.keep()
    assert schedule.sent == 5
    assert list(kept.states().values()) == [SCHEDULED] * 5
    if how == "pause":
        kept.schedules.change({"paused": True}, schedule)
    elif how == "delete":
        kept.schedules.remove("s")
    else:
        kept.schedules.change({"topic": "other"}, schedule)
        kept.keep()
        assert list(kept.states("other").values()) == [SCHEDULED] * 5
    assert kept.states() == {}, "cancelled messages have no keys any more"


async def test_a_shard_gives_back_what_was_sent_ahead_too(kept: Kept) -> None:
    kept.store.topics.create("t", {}, 4, kept.now_ms)
    kept.create(every_ms=SECOND_MS)
    schedule = kept.keep()
    assert list(kept.states().values()) == [SCHEDULED] * 5
    kept.schedules.change({"paused": True}, schedule)
    assert kept.states() == {}


async def test_pausing_calls_back_what_waits_in_its_window(kept: Kept) -> None:
    schedule = kept.create(every_ms=HOUR_MS, window_ms=HOUR_MS // 2)
    kept.clock.advance(timedelta(milliseconds=HOUR_MS))
    schedule = kept.keep()
    kept.clock.advance(timedelta(milliseconds=1))
    assert kept.store.change.verdicts([schedule.last_id]) == [SCHEDULED]
    kept.schedules.change({"body": b"for the next"}, schedule)
    assert kept.store.change.verdicts([schedule.last_id]) == [SCHEDULED], "its slot has come: it is as it was"
    kept.schedules.change({"paused": True}, kept.schedules.get("s"))
    assert kept.store.change.verdicts([schedule.last_id]) == [CANCELLED]
    assert kept.schedules.get("s").skipped == 1


async def test_another_rhythm_has_no_past(kept: Kept) -> None:
    """A schedule that was yearly and is now hourly did not miss the hours of this year."""
    kept.create(cron="0 0 1 1 *", catch_up="all")
    kept.clock.advance(timedelta(days=20))
    kept.schedules.change({"cron": "0 * * * *"}, kept.schedules.get("s"))
    after = kept.keep()
    assert (after.sent, after.missed) == (0, 0)


async def test_an_ended_schedule_can_be_paused_and_prolonged(kept: Kept) -> None:
    end_ms = kept.now_ms + 90 * 60_000
    kept.create(cron="0 * * * *", until_ms=end_ms, catch_up="all")
    kept.clock.advance(timedelta(hours=1))
    assert kept.keep().sent == 1
    kept.clock.advance(timedelta(days=10))
    kept.schedules.change({"paused": True}, kept.schedules.get("s"))
    kept.schedules.change({"paused": False, "until_ms": end_ms * 2}, kept.schedules.get("s"))
    assert kept.keep().missed == 0


async def test_what_has_come_is_sent_before_a_change_counts(kept: Kept) -> None:
    kept.create(every_ms=HOUR_MS, overlap="skip", body=b"old")
    kept.clock.advance(timedelta(milliseconds=HOUR_MS))
    kept.schedules.change({"topic": "other", "every_ms": 2 * HOUR_MS}, kept.schedules.get("s"))
    assert kept.schedules.get("s").sent == 1
    assert len(kept.states("t")) == 1


CHANGES: dict[str, Callable[[Kept], None]] = {
    "change": lambda kept: kept.schedules.change({"body": b"new"}, kept.schedules.get("s")),
    "pause": lambda kept: kept.schedules.change({"paused": True}, kept.schedules.get("s")),
    "delete": lambda kept: kept.schedules.remove("s"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps", [1, 3])
async def test_a_change_between_two_steps_of_a_long_catching_up_counts(
    kept: Kept, change: str, steps: int
) -> None:
    schedule = kept.create(cron="* * * * * *", catch_up="all")
    kept.clock.advance(timedelta(seconds=2 * STEP + 100))
    catching_up = kept.schedules._steps(schedule, kept.now_ms)
    for _ in range(steps):
        next(catching_up)
    CHANGES[change](kept)
    after = kept.schedules.schedules.get("s")
    assert list(catching_up) == [], "the schedule that was being carried out is no more"
    assert kept.schedules.schedules.get("s") is after
    assert (PREFIX + "s" in kept.store.tables.documents) is (after is not None)
    if after is not None:
        assert after.sent + after.missed >= 2 * STEP, "before it changed, it sent what was due"


async def test_a_trigger_with_a_token_sends_once(kept: Kept) -> None:
    kept.create(every_ms=HOUR_MS)
    first = kept.schedules.trigger("s", "token")
    assert kept.schedules.trigger("s", "token") == first
    others = {kept.schedules.trigger("s", token) for token in ("another", "", "")}
    assert len({first, *others}) == 4


async def test_a_slot_that_was_sent_is_not_sent_when_it_comes_again(kept: Kept) -> None:
    kept.create(every_ms=4 * SECOND_MS)
    sent = kept.keep()
    kept.schedules.schedules["s"] = msgspec.structs.replace(sent, last_slot_ms=kept.now_ms)
    after = kept.keep()
    assert (after.last_slot_ms, after.last_id, after.sent) == (sent.last_slot_ms, sent.last_id, 1)
    assert kept.store.select.find("t", [key_of(after, after.last_slot_ms)]) == [sent.last_id]


async def test_many_schedules_are_planned_anew_in_steps_when_the_clock_is_set_back(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.create(every_ms=HOUR_MS)
    for number in range(100):
        kept.schedules.create(msgspec.structs.replace(kept.schedules.get("s"), name=f"s{number}"))
    kept.clock.set(START - timedelta(hours=3))
    planned: list[str] = []
    plan = kept.schedules._plan

    def count(schedule: Schedule, now_ms: int) -> None:
        planned.append(schedule.name)
        plan(schedule, now_ms)

    monkeypatch.setattr(kept.schedules, "_plan", count)
    most = 0
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.schedules.run)
            while len(planned) < 101:
                before = len(planned)
                await trio.lowlevel.checkpoint()
                most = max(most, len(planned) - before)
            nursery.cancel_scope.cancel()
    assert 0 < most <= 20, "ten at a time; two turns may follow each other"
    assert sorted(planned) == sorted(kept.schedules.schedules)
