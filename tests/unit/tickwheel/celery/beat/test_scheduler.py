"""Beat writes its entries into a broker's schedules, and the broker sends the tasks: by a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, solar

from tests.support.frameworks.celery_apps import app_of, arrivals
from tests.support.processes.cli_harness import Shell
from tickwheel import embedded, sync
from tickwheel.celery.beat import scheduler as module
from tickwheel.celery.beat.scheduler import TickwheelScheduler
from tickwheel.celery.names import schedule_name
from tickwheel.celery.slots import Slot
from tickwheel.errors import ConfigError, UnknownSchedule
from tickwheel.testing import TestBroker, broker

START = datetime(2026, 3, 28, 11, 58, tzinfo=UTC)
HOURLY = {"task": "count", "schedule": crontab(minute="0")}
LOGGER = "tickwheel.celery.beat.scheduler"


@contextmanager
def beat_of(app: Celery) -> Iterator[TickwheelScheduler]:
    """A beat that has begun."""
    beat = TickwheelScheduler(app)
    try:
        beat.tick()
        yield beat
    finally:
        beat.close()


def names(client: sync.Client, app: str) -> set[str]:
    """The schedules with the mark of an app."""
    found = client.schedules(count=0)
    return {one.name for one in found if one.headers.get("tickwheel-beat", {}).get("app") == app}


def own_entry(**more: Any) -> dict[str, Any]:
    """One that restricts both kinds of days, to which today belongs, and that comes each minute."""
    today = datetime.now(UTC)
    days = set(range(1, 32)) - {(today + timedelta(days=9)).day}
    weekdays = set(range(7)) - {(today.isoweekday() + 3) % 7}
    return {"task": "count", "schedule": crontab(day_of_month=days, day_of_week=weekdays), **more}


def test_the_broker_sends_what_beat_wrote(shared: TestBroker, client: sync.Client) -> None:
    app = app_of("sends", shared.url, {"hourly": {**HOURLY, "args": (17,), "options": {"expires": 90}}})
    with beat_of(app):
        pass  # from here on there is none
    with arrivals(app) as wait:
        shared.clock.advance(timedelta(minutes=2))
        tasks = wait(1)
        shared.clock.advance(timedelta(hours=1))
        tasks += wait(1)
    slots = [Slot("celery.hourly", round(START.timestamp() * 1_000) + ms) for ms in (120_000, 3_720_000)]
    assert [task["id"] for task in tasks] == [slot.task_id for slot in slots]
    assert [task["root_id"] for task in tasks] == [slot.task_id for slot in slots]
    assert [task["expires"] for task in tasks] == [
        (slot.time + timedelta(seconds=90)).isoformat() for slot in slots
    ]
    assert {task["task"] for task in tasks} == {"count"}
    assert {task["argsrepr"] for task in tasks} == {"[17]"}
    for name in names(client, "sends"):
        client.delete_schedule(name)


def test_two_beats_at_once_make_one_schedule_and_one_task_a_slot(
    shared: TestBroker, client: sync.Client
) -> None:
    entries = {
        "often": {"task": "count", "schedule": timedelta(seconds=20)},
        **{f"hourly {number}": HOURLY for number in range(20)},
    }
    apps = [app_of("twice", shared.url, entries, enable_utc=True) for _ in range(2)]
    beats = [TickwheelScheduler(app) for app in apps]
    barrier = Barrier(2)

    def begin(beat: TickwheelScheduler) -> None:
        barrier.wait()
        beat.tick()

    threads = [Thread(target=begin, args=(beat,)) for beat in beats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(client, "twice") == {schedule_name(entry) for entry in ("twice.backend_cleanup", *entries)}
    for name in names(client, "twice") - {"celery.often"}:
        client.delete_schedule(name)
    with arrivals(apps[0]) as wait:
        ids = []
        for _ in range(3):
            shared.clock.advance(timedelta(seconds=20))
            for beat in beats:
                beat.tick()
            ids += [task["id"] for task in wait(1)]
    start_ms = client.schedule("celery.often").start_ms
    slots = [Slot("celery.often", start_ms + number * 20_000) for number in (1, 2, 3)]
    assert ids == [slot.task_id for slot in slots]
    assert client.schedule("celery.often").sent == len(client.browse("twice"))
    for beat in beats:
        beat.close()
    client.delete_schedule("celery.often")


def test_a_restart_changes_and_deletes_what_the_configuration_says(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"task": "count", "schedule": timedelta(hours=1)}
    before = {"changed": HOURLY, "kept": kept, "gone": HOURLY}
    with beat_of(app_of("again", shared.url, before)):
        pass
    started_ms = client.schedule("celery.kept").start_ms
    client.set_schedule("celery.kept", overlap="skip")  # what an operator says stays
    client.pause_schedule("celery.kept")
    client.create_schedule("celery.mine", "others", every=timedelta(days=1))
    client.create_schedule("others", "others", every=timedelta(days=1))
    shared.clock.advance(timedelta(minutes=7))
    after = {"changed": {"task": "other", "schedule": crontab(minute="30")}, "kept": kept, "new": HOURLY}
    with caplog.at_level(logging.INFO, LOGGER), beat_of(app_of("again", shared.url, after)):
        pass
    assert "the broker keeps 4 schedules: 1 new, 1 changed, 1 deleted" in caplog.text
    changed, untouched = client.schedule("celery.changed"), client.schedule("celery.kept")
    assert (changed.cron, changed.headers["celery-task"]) == ("30 * * * *", "other")
    assert (untouched.start_ms, untouched.overlap, untouched.paused) == (started_ms, "skip", True)
    with pytest.raises(UnknownSchedule):
        client.schedule("celery.gone")
    assert {"celery.mine", "others"} <= {one.name for one in client.schedules(count=0)}
    for name in (*names(client, "again"), "celery.mine", "others"):
        client.delete_schedule(name)


def test_schedules_of_others_stay_as_they_are(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"report": HOURLY}
    with beat_of(app_of("north", shared.url, entries)):
        pass
    client.create_schedule("celery.by-hand", "others", every=timedelta(days=1))
    with beat_of(app_of("south", shared.url, {"report": HOURLY, "by-hand": HOURLY, "own": HOURLY})):
        pass
    assert names(client, "south") == {"celery.own", "celery.south.backend_cleanup"}
    assert names(client, "north") == {"celery.report", "celery.north.backend_cleanup"}
    assert client.schedule("celery.report").topic == "north"
    assert client.schedule("celery.by-hand").topic == "others"
    assert caplog.text.count("is not one of the app 'south', so it stays as it is") == 2
    for name in (*names(client, "north"), *names(client, "south"), "celery.by-hand"):
        client.delete_schedule(name)


def test_a_change_while_it_runs(shared: TestBroker, client: sync.Client) -> None:
    app = app_of("changing", shared.url, {"first": HOURLY})
    with beat_of(app) as beat:
        app.conf.beat_schedule = {"second": HOURLY}
        beat.tick()
        assert names(client, "changing") == {"celery.second", "celery.changing.backend_cleanup"}
        app.conf.beat_schedule = {}
        beat.tick()
        assert names(client, "changing") == {"celery.changing.backend_cleanup"}
    client.delete_schedule("celery.changing.backend_cleanup")


def test_otherwise_it_only_watches(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.0)
    with beat_of(app_of("watching", shared.url, {"kept": HOURLY, "lost": HOURLY})) as beat:
        beat.tick()
        assert "not those of this beat" not in caplog.text
        client.delete_schedule("celery.lost")
        beat.tick()
        beat.tick()
        assert caplog.text.count("not those of this beat any more (missing: celery.lost; changed: none;") == 1
        assert names(client, "watching") == {"celery.kept", "celery.watching.backend_cleanup"}
    for name in names(client, "watching"):
        client.delete_schedule(name)


def test_when_clocks_change() -> None:
    """On 29 March 2026 there is no 02:30 in Paris, on 25 October there are two of them."""
    entries = {
        "time of day": {"task": "count", "schedule": crontab("30", "2")},
        "elapsed": {"task": "count", "schedule": crontab("*/30", "2")},
    }
    with broker(start=START) as own, own.sync_client() as client:
        app = app_of("clocks", own.url, entries, timezone="Europe/Paris")
        with beat_of(app):
            pass
        slots: dict[str, list[datetime]] = {}
        for entry in entries:
            name = schedule_name(entry)
            assert client.schedule(name).tz == "Europe/Paris"
            spring = client.schedule(name, count=1, after=START).next
            autumn = client.schedule(name, count=4, after=datetime(2026, 10, 24, 12, tzinfo=UTC)).next
            slots[entry] = [*spring, *autumn]
        assert slots["time of day"][:2] == [
            datetime(2026, 3, 29, 1, tzinfo=UTC),  # 03:00, right after the gap
            datetime(2026, 10, 25, 0, 30, tzinfo=UTC),  # once
        ]
        assert slots["time of day"][2] == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
        assert slots["elapsed"] == [
            datetime(2026, 3, 30, 0, tzinfo=UTC),
            *(datetime(2026, 10, 25, hour, minute, tzinfo=UTC) for hour in (0, 1) for minute in (0, 30)),
        ]
        with arrivals(app) as wait:
            own.clock.set(datetime(2026, 3, 29, 1, 0, 1, tzinfo=UTC))
            (task,) = wait(1)
        assert (
            task["id"]
            == Slot(schedule_name("time of day"), round(slots["time of day"][0].timestamp() * 1_000)).task_id
        )


@pytest.mark.parametrize("beats", [1, 2])
def test_what_stays_with_beat_is_sent_once_a_slot(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture, beats: int
) -> None:
    app_name = f"own-{beats}"
    apps = [app_of(app_name, shared.url, {"ours": own_entry(options={"expires": 30})}) for _ in range(beats)]
    last = datetime.now(UTC).replace(second=30, microsecond=0) - timedelta(minutes=3)
    with ExitStack() as stack:
        for app in apps:
            beat = stack.enter_context(beat_of(app))
            assert "beat itself keeps the entry 'ours', because it restricts both" in caplog.text
            beat.schedule["ours"].last_run_at = last
            beat.populate_heap()
            beat.tick()
            beat.tick()
        with arrivals(apps[0]) as wait:
            (task,) = wait(1)
    slot = Slot("celery.ours", round((last + timedelta(seconds=30)).timestamp() * 1_000))
    assert (task["id"], task["task"]) == (slot.task_id, "count")
    assert task["expires"] == (slot.time + timedelta(seconds=30)).isoformat()
    assert len(client.browse(app_name)) == 1
    for name in names(client, app_name):
        client.delete_schedule(name)


def test_the_sun_is_beats_own(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of("sun", shared.url, {"set": {"task": "count", "schedule": solar("sunset", 48.85, 2.35)}})
    with beat_of(app) as beat:
        assert "the broker knows crontab and intervals, and no 'solar'" in caplog.text
        beat.schedule["set"].last_run_at = datetime.now(UTC) - timedelta(days=1)
        beat.populate_heap()
        beat.tick()
        with arrivals(app) as wait:
            (task,) = wait(1)
    assert task["task"] == "count"
    for name in names(client, "sun"):
        client.delete_schedule(name)


def test_one_bad_entry_does_not_stop_the_others(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    entries: Mapping[str, Any] = {"bad": {**HOURLY, "args": (object(),)}, "good": HOURLY}
    with beat_of(app_of("mixed", shared.url, entries)):
        pass
    assert "beat itself keeps the entry 'bad', because its message cannot be made" in caplog.text
    assert "celery.good" in names(client, "mixed")
    for name in names(client, "mixed"):
        client.delete_schedule(name)


def test_what_the_broker_refuses_stays_with_beat(
    shared: TestBroker, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with beat_of(app_of("refused", shared.url, {"large": HOURLY})):
        assert "celery.large" in names(client, "refused")
    entries: Mapping[str, Any] = {"large": {**HOURLY, "args": ("x" * 5_000_000,)}, "good": HOURLY}
    with beat_of(app_of("refused", shared.url, entries)) as beat:
        assert "beat itself keeps the entry 'large', because the broker says" in caplog.text
        assert [event.entry.name for event in beat._heap] == ["large"]
    # As it was it would run beside that of the beat.
    assert names(client, "refused") == {"celery.good", "celery.refused.backend_cleanup"}
    for name in names(client, "refused"):
        client.delete_schedule(name)


def test_a_broker_that_is_not_there_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    app = app_of("alone", "tickwheel://127.0.0.1:1", {"hourly": HOURLY}, broker_connection_timeout=0.05)
    with beat_of(app) as beat:
        assert beat.tick() == 5.0
    assert caplog.text.count("There is no connection") == 1


def test_it_needs_to_publish_to_its_queues_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shell = Shell(tmp_path)
    for name, topic in (("beat", "rights"), ("stranger", "elsewhere")):
        grant, out = f"publish:{topic}", f"{name}.token"
        shell.run("tokens", "create", name, "--grant", grant, "--out", out, "--data", "data")
    with (
        embedded(tmp_path / "data", listen_tcp=True, listen_port=0) as strict,
        strict.sync_client() as client,
    ):
        (url,) = [url for url in strict._runs().urls if url.startswith("tickwheel://")]
        for name, said in (
            ("stranger", "beat itself keeps the entry 'often', because the broker says: Token 'stranger'"),
            ("beat", "the broker keeps 3 schedules: 3 new"),
        ):
            options = {"token_file": str(tmp_path / f"{name}.token")}
            often = {"task": "count", "schedule": 3600}
            app = app_of("rights", url, {"hourly": HOURLY, "often": often}, broker_transport_options=options)
            with caplog.at_level(logging.INFO, LOGGER), beat_of(app):
                assert said in caplog.text
        assert names(client, "rights") == {"celery.hourly", "celery.often", "celery.rights.backend_cleanup"}


def test_another_broker_is_none_for_it() -> None:
    beat = TickwheelScheduler(app_of("elsewhere", "memory://", {"hourly": HOURLY}))
    with pytest.raises(ConfigError, match="which is not Tickwheel"):
        beat.tick()


def test_the_banner_names_the_broker() -> None:
    app = app_of("banner", "tickwheel://127.0.0.1:7411")
    assert TickwheelScheduler(app, lazy=True).info == "    . schedules -> tickwheel://127.0.0.1:7411"
