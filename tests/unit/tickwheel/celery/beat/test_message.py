"""The task message of an entry is the one that Celery would send."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.signals import before_task_publish
from kombu import Exchange, Queue

from tests.support.frameworks.celery_apps import app_of
from tickwheel.celery.beat.errors import NotOnBroker
from tickwheel.celery.beat.message import TaskMessage, task_message
from tickwheel.celery.slots import BEAT_HEADER, Mark
from tickwheel.celery.transport.envelope import TASK_HEADER

NOWHERE = "tickwheel://127.0.0.1:1"
MARK = Mark("billing", "wages")


@pytest.fixture
def app() -> Celery:
    app = app_of("billing", NOWHERE, task_routes={"pay": {"priority": 7}})

    @app.task(name="pay", expires=30, shared=False)
    def pay(amount: int) -> None: ...

    return app


def message_of(app: Celery, task: str, **entry: Any) -> TaskMessage:
    return task_message(app, ScheduleEntry(name="wages", task=task, schedule=60, app=app, **entry), MARK)


def test_it_has_what_the_task_says(app: Celery) -> None:
    message = message_of(app, "pay", args=(17,))
    body = json.loads(message.body)
    assert (message.topic, message.priority) == ("billing", 15)
    assert message.headers == {
        TASK_HEADER: "pay",
        BEAT_HEADER: {"app": "billing", "entry": "wages", "expires_ms": 30_000},
    }
    assert json.loads(body["body"])[:2] == [[17], {}]
    assert body["headers"]["task"] == "pay"
    assert body["headers"]["celery_beat_task"] is True
    assert (body["headers"]["expires"], body["headers"]["eta"]) == (None, None)
    assert "expiration" not in body["properties"]


def test_the_entry_has_precedence(app: Celery) -> None:
    options = {
        "queue": "slow",
        "priority": 1,
        "expires": 3600.5,
        "ignore_result": True,
        "headers": {"who": "me"},
    }
    message = message_of(app, "pay", args=(17,), options=options)
    headers = json.loads(message.body)["headers"]
    assert (message.topic, message.priority) == ("slow", 45)
    assert message.headers[BEAT_HEADER]["expires_ms"] == 3_600_500
    assert (headers["ignore_result"], headers["who"]) == (True, "me")
    assert options["headers"] == {"who": "me"}  # it is the configuration's


def test_a_moment_stays_a_moment(app: Celery) -> None:
    message = message_of(app, "pay", args=(1,), options={"expires": datetime(2031, 1, 1, tzinfo=UTC)})
    assert json.loads(message.body)["headers"]["expires"] == "2031-01-01T00:00:00+00:00"
    assert "expires_ms" not in message.headers[BEAT_HEADER]


def test_each_beat_makes_the_same_bytes(app: Celery) -> None:
    assert message_of(app, "pay", args=(1,)) == message_of(app, "pay", args=(1,))


def test_a_task_that_is_known_by_name_only(app: Celery) -> None:
    message = message_of(app, "elsewhere.pay", kwargs={"amount": 3})
    assert message.headers[TASK_HEADER] == "elsewhere.pay"
    assert json.loads(json.loads(message.body)["body"])[1] == {"amount": 3}


def test_routes_and_exchanges_are_followed(app: Celery) -> None:
    app.conf.task_queues = [
        Queue("billing"),
        Queue("hot", Exchange("heat", type="topic"), routing_key="hot.#"),
        Queue("direct", Exchange("straight"), routing_key="ahead"),
    ]
    app.conf.task_routes = {
        "pay.hot": {"exchange": "heat", "exchange_type": "topic", "queue": "hot", "routing_key": "hot.pay"},
        "pay.direct": {"queue": "direct", "exchange": "straight", "routing_key": "ahead"},
    }
    assert message_of(app, "pay.hot").topic == "x.heat"
    assert message_of(app, "pay.direct").topic == "direct"


def test_signals_have_their_say(app: Celery) -> None:
    def add(headers: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = "north"

    before_task_publish.connect(add)
    try:
        assert json.loads(message_of(app, "pay", args=(1,)).body)["headers"]["tenant"] == "north"
    finally:
        before_task_publish.disconnect(add)


def test_no_reply_goes_to_the_process_that_made_the_schedule() -> None:
    app = app_of("replies", NOWHERE, result_backend="rpc://")
    assert json.loads(message_of(app, "pay").body)["headers"]["ignore_result"] is True


def eager(app: Celery) -> dict[str, Any]:
    app.conf.task_always_eager = True
    return {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda app: {"options": {"countdown": 5}}, "countdown is for one task"),
        (lambda app: {"options": {"task_id": "1"}}, "task_id is for one task"),
        (lambda app: {"kwargs": {"now": BeatLazyFunc(datetime.now)}}, "when it is sent"),
        (eager, "task_always_eager"),
    ],
    ids=["countdown", "task_id", "lazy", "eager"],
)
def test_what_is_made_when_it_is_sent(
    app: Celery, change: Callable[[Celery], dict[str, Any]], why: str
) -> None:
    with pytest.raises(NotOnBroker, match=why):
        message_of(app, "elsewhere.pay", **change(app))
