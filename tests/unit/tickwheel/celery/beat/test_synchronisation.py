"""Planned schedules, and those of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tickwheel import Schedule, sync
from tickwheel.celery.beat.message import TaskMessage
from tickwheel.celery.beat.plan import PlannedSchedule
from tickwheel.celery.beat.rhythm import Rhythm
from tickwheel.celery.beat.synchronisation import Differences, Synchronisation, Written
from tickwheel.testing import TestBroker, broker

START = datetime(2026, 11, 21, 8, tzinfo=UTC)
START_MS = round(START.timestamp() * 1_000)
HOURLY = Rhythm(cron="0 * * * *", tz="Europe/Paris")
OFTEN = Rhythm(every_ms=90_000)


@pytest.fixture
def running() -> Iterator[TestBroker]:
    with broker(start=START) as running:
        yield running


@pytest.fixture
def client(running: TestBroker) -> Iterator[sync.Client]:
    with running.sync_client() as client:
        yield client


def planned(
    name: str, rhythm: Rhythm = HOURLY, *, mark: str = "shop", body: bytes = b"{}"
) -> PlannedSchedule:
    headers = {"celery-task": name, "tickwheel-beat": {"app": mark, "entry": name}}
    return PlannedSchedule(f"celery.{name}", name, rhythm, TaskMessage("queue", body, headers, 50))


def test_what_was_written_is_as_planned(client: sync.Client) -> None:
    synchronisation, wanted = Synchronisation(client, "shop"), [planned("a"), planned("b", OFTEN)]
    assert synchronisation.compare(wanted) == Differences(["celery.a", "celery.b"], [], [], [])
    assert synchronisation.write(wanted) == Written(["celery.a", "celery.b"], [], [], [], {})
    assert not synchronisation.compare(wanted)
    assert synchronisation.write(wanted) == Written([], [], [], [], {})
    assert synchronisation.compare([wanted[0]]) == Differences([], [], ["celery.b"], [])
    assert synchronisation.write([]) == Written([], [], ["celery.a", "celery.b"], [], {})
    assert client.schedules() == []


def test_another_mark_is_another_app(client: sync.Client) -> None:
    Synchronisation(client, "shop").write([planned("a")])
    other = Synchronisation(client, "mail")
    assert other.compare([planned("a", mark="mail")]) == Differences([], [], [], ["celery.a"])
    assert other.write([planned("a", mark="mail")]) == Written([], [], [], ["celery.a"], {})
    assert other.write([]) == Written([], [], [], [], {})
    assert not Synchronisation(client, "shop").compare([planned("a")])


def test_an_interval_begins_when_it_is_made_and_goes_on(running: TestBroker, client: sync.Client) -> None:
    synchronisation = Synchronisation(client, "shop")
    synchronisation.write([planned("a", OFTEN)])
    assert client.schedule("celery.a").next_ms[0] == START_MS + 90_000
    running.clock.advance(timedelta(seconds=50))
    synchronisation.write([planned("a", OFTEN, body=b"[]")])  # another message is no other rhythm
    assert (client.schedule("celery.a").body, client.schedule("celery.a").start_ms) == (b"[]", START_MS)
    synchronisation.write([planned("a", Rhythm(every_ms=60_000))])
    assert client.schedule("celery.a").next_ms[0] == START_MS + 110_000


def test_an_interval_by_the_clock(client: sync.Client) -> None:
    wanted = [planned("a", Rhythm(every_ms=3_600_000, offset_ms=1_800_000))]
    Synchronisation(client, "shop").write(wanted)
    assert client.schedule("celery.a").next[0] == START + timedelta(minutes=30)
    assert not Synchronisation(client, "shop").compare(wanted)


def test_from_one_rhythm_to_another(client: sync.Client) -> None:
    """A long interval has its beginning in the past of no cron expression, and the other way round."""
    synchronisation = Synchronisation(client, "shop")
    for rhythm, first in (
        (Rhythm(every_ms=86_400_000), START + timedelta(days=1)),
        (HOURLY, START + timedelta(hours=1)),
        (Rhythm(cron="30 8 * * *"), START + timedelta(minutes=30)),
        (OFTEN, START + timedelta(seconds=90)),
    ):
        done = synchronisation.write([planned("a", rhythm)])
        assert len(done.created + done.changed) == 1
        assert client.schedule("celery.a").next[0] == first
        assert not synchronisation.compare([planned("a", rhythm)])


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "other"},
        {"priority": 5},
        {"body": b"2"},
        {"headers": {"tickwheel-beat": {"app": "shop", "entry": "b"}}},
    ],
)
def test_each_part_of_the_message_counts(client: sync.Client, change: dict[str, object]) -> None:
    synchronisation, before = Synchronisation(client, "shop"), planned("a")
    synchronisation.write([before])
    after = msgspec.structs.replace(before, message=msgspec.structs.replace(before.message, **change))
    assert synchronisation.compare([after]) == Differences([], ["celery.a"], [], [])
    assert synchronisation.write([after]) == Written([], ["celery.a"], [], [], {})
    assert not synchronisation.compare([after])


def test_six_beats_at_once_write_what_one_does(running: TestBroker, client: sync.Client) -> None:
    wanted = [planned("a"), planned("b", OFTEN)]

    def write() -> Written:
        with running.sync_client() as one:
            return Synchronisation(one, "shop").write(wanted)

    with ThreadPoolExecutor(6) as pool:
        done = [one.result(60) for one in [pool.submit(write) for _ in range(6)]]
    assert not any(one.foreign or one.refused or one.deleted for one in done)
    assert [one.name for one in client.schedules()] == ["celery.a", "celery.b"]
    assert not Synchronisation(client, "shop").compare(wanted)


def test_what_somebody_has_paused_stays_paused(client: sync.Client) -> None:
    synchronisation = Synchronisation(client, "shop")
    synchronisation.write([planned("a")])
    client.pause_schedule("celery.a")
    assert synchronisation.write([planned("a")]) == Written([], [], [], [], {})
    assert synchronisation.write([planned("a", OFTEN)]).changed == ["celery.a"]
    assert client.schedule("celery.a").paused


@pytest.mark.parametrize("body", [b"{}", b"[]"], ids=["to be kept", "to be changed"])
def test_what_is_deleted_or_made_meanwhile_is_written_in_the_end(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Between the list and what follows from it, each time."""
    Synchronisation(client, "shop").write([planned("a")])
    listed, create, change = client.schedules, client.create_schedule, client.set_schedule
    other = planned("b", OFTEN)
    races = {"list": 1, "create": 2, "change": 1}

    def happens(what: str) -> bool:
        races[what] -= 1
        return races[what] >= 0

    def schedules(**options: Any) -> list[Schedule]:
        found = listed(**options)
        if happens("list") and body != b"{}":
            client.delete_schedule("celery.a")
        return found

    def create_schedule(name: str, topic: str, **fields: Any) -> Schedule:
        if happens("create"):
            create(name, topic, **{**fields, "body": b"of another beat"})
            try:
                return create(name, topic, **fields)
            finally:
                if races["create"] == 1:
                    client.delete_schedule(name)
        return create(name, topic, **fields)

    def set_schedule(name: str, **fields: Any) -> Schedule:
        if happens("change"):
            client.delete_schedule(name)
        return change(name, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(client, "schedules", schedules)
        patched.setattr(client, "create_schedule", create_schedule)
        patched.setattr(client, "set_schedule", set_schedule)
        done = Synchronisation(client, "shop").write([planned("a", body=body), other])
    assert (done.foreign, done.refused) == ([], {})
    assert not Synchronisation(client, "shop").compare([planned("a", body=body), other])
