"""What the doctor finds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.schedules import crontab

from tests.support.frameworks.celery_apps import app_of, holding
from tickwheel import sync
from tickwheel.celery.beat.scheduler import TickwheelScheduler
from tickwheel.celery.doctor import Finding, examine
from tickwheel.testing import TestBroker, broker

HOURLY = {"task": "count", "schedule": crontab(minute="0")}


def found(app: Celery) -> dict[str, Finding]:
    return {one.subject: one for one in examine(app)}


def begin(app: Celery) -> None:
    beat = TickwheelScheduler(app)
    beat.tick()
    beat.close()


def test_an_app_that_is_well(shared: TestBroker) -> None:
    app = app_of("well", shared.url, {"hourly": HOURLY}, result_backend="cache+memory://")
    begin(app)
    with holding(app, 0):
        seen = found(app)
    assert {one.level for one in seen.values()} <= {"ok", "note"}
    assert seen["queue well"].text == "0 scheduled, 0 due, 1 consumer"
    assert seen["beat"] == Finding("ok", "beat", "the broker keeps 1 of 1 entries")


def test_settings_that_give_something_away(shared: TestBroker) -> None:
    app = Celery("settings", broker=shared.url, set_as_current=False)
    app.conf.update(
        broker_transport_options={"eta": "worker"}, task_default_queue="settings", task_protocol=1
    )
    seen = found(app)
    assert seen["eta"].level == seen["revoke"].level == seen["results"].level == "note"
    assert "control=" in seen["revoke"].advice
    assert seen["task_protocol"].level == "problem"
    assert seen["queue settings"].text.startswith("nothing was ever sent to it")


def test_queues_that_need_attention(shared: TestBroker, client: sync.Client) -> None:
    app = app_of("attention", shared.url)
    app.send_task("count")
    client.pause_topic("attention")
    problems = [one for one in examine(app) if one.level == "problem"]
    assert [one.subject for one in problems] == ["queue attention"] * 2
    assert problems[0].advice == "Start a worker: celery -A … worker -Q attention"
    assert problems[1].text == "it is paused"


def test_schedules_that_are_not_as_configured(shared: TestBroker, client: sync.Client) -> None:
    entries: dict[str, Any] = dict.fromkeys(("a-same", "b-changed", "c-gone", "d-lost", "e-paused"), HOURLY)
    app = app_of("drifting", shared.url, entries)
    begin(app)
    client.delete_schedule("celery.d-lost")
    client.pause_schedule("celery.e-paused")
    client.create_schedule("celery.f-foreign", "others", cron="0 0 1 1 *")
    app.conf.beat_schedule = {
        "a-same": HOURLY,
        "b-changed": {"task": "other", "schedule": crontab(minute="0")},
        "d-lost": HOURLY,
        "e-paused": HOURLY,
        "f-foreign": HOURLY,
        "g-own": {"task": "count", "schedule": crontab(0, 9, day_of_month="1-7", day_of_week="mon")},
    }
    seen = {one.subject: (one.level, one.text) for one in examine(app)}
    assert seen["schedule celery.b-changed"] == ("problem", "is another one at the broker")
    assert seen["schedule celery.c-gone"] == ("problem", "it is not in beat_schedule any more")
    assert seen["schedule celery.d-lost"] == ("problem", "is missing at the broker")
    assert seen["schedule celery.e-paused"] == ("note", "it is paused")
    assert seen["schedule celery.f-foreign"] == ("problem", "it belongs to another app, or to none")
    assert seen["entry g-own"][0] == "note"
    assert not {"beat", "schedule celery.a-same"} & seen.keys()


def test_a_beat_of_another_kind(shared: TestBroker) -> None:
    seen = found(app_of("persistent", shared.url, {"hourly": HOURLY}))
    assert seen["beat"] == Finding(
        "note",
        "beat",
        "the broker keeps no entry of beat_schedule",
        "Start celery -A … beat -S tickwheel. It may be stopped once it has written.",
    )


def test_a_clock_that_is_wrong() -> None:
    with broker(start=datetime(2031, 1, 1, tzinfo=UTC)) as ahead:
        assert "apart" in found(app_of("clocks", ahead.url))["clocks"].text


def test_a_broker_that_is_not_there() -> None:
    app = app_of("nowhere", "tickwheel://127.0.0.1:1", broker_connection_timeout=0.05)
    assert found(app)["broker"].level == "problem"
