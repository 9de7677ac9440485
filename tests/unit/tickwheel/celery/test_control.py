"""What becomes of tasks that are cancelled, revoked or rescheduled: the broker's answer is true."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord
from celery.result import ResultSet
from celery.schedules import crontab
from kombu import Exchange, Queue

import tickwheel.celery
from tests.support.frameworks.celery_apps import app_of, arrivals, holding
from tests.support.processes.cli_harness import Shell
from tickwheel import embedded, sync
from tickwheel.celery import Outcome
from tickwheel.celery.beat.scheduler import TickwheelScheduler
from tickwheel.errors import ConfigError, Forbidden, NaiveDatetime, NotConnected
from tickwheel.sharing.copy_keys import COPY_KEYS
from tickwheel.testing import TestBroker

START = datetime(2026, 11, 21, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
numbers = count()


@pytest.fixture
def app(shared: TestBroker, request: pytest.FixtureRequest) -> Celery:
    """One with a queue of its own, and an in-memory result backend."""
    return app_of(
        request.node.name.replace("[", "-").replace("]", ""), shared.url, result_backend="cache+memory://"
    )


def send(app: Celery, *args: Any, **options: Any) -> str:
    return str(app.send_task("count", args, **options).id)


def test_a_task_that_waits_is_cancelled_and_its_result_says_so(app: Celery) -> None:
    task_id = send(app, eta=START + HOUR)
    assert app.control.revoke(task_id) == {task_id: Outcome.CANCELLED}
    assert app.AsyncResult(task_id).state == "REVOKED"
    assert tickwheel.celery.scheduled(app) == []


def test_results_that_are_ignored_are_not_stored(app: Celery) -> None:
    task_id = send(app, eta=START + HOUR, ignore_result=True)
    assert app.control.revoke(task_id) == {task_id: Outcome.CANCELLED}
    assert app.AsyncResult(task_id).state == "PENDING"


def test_a_task_that_a_worker_has_was_delivered(app: Celery) -> None:
    task_id = send(app)
    with holding(app, 1):
        assert app.control.revoke(task_id) == {task_id: Outcome.ALREADY_DELIVERED}
    assert app.AsyncResult(task_id).state == "PENDING"


def test_what_was_revoked_is_not_delivered_again(app: Celery, client: sync.Client) -> None:
    task_id = send(app)
    with holding(app, 1):  # and is not acked
        tickwheel.celery.cancel(app, task_id)
    (group,) = client.groups(app.conf.task_default_queue)
    assert group.backlog == 0


def test_a_task_that_has_run_was_delivered(app: Celery) -> None:
    task_id = send(app)
    with arrivals(app) as wait:
        wait(1)
    assert tickwheel.celery.cancel(app, task_id) == {task_id: Outcome.ALREADY_DELIVERED}


def test_a_task_that_waits_for_a_worker_is_cancelled(app: Celery) -> None:
    task_id = send(app)
    assert tickwheel.celery.cancel(app, task_id) == {task_id: Outcome.CANCELLED}


def test_what_there_never_was_is_unknown(app: Celery) -> None:
    assert app.control.revoke("no such task") == {"no such task": Outcome.UNKNOWN}


def test_each_of_many_has_its_own_answer(app: Celery) -> None:
    running = send(app)
    with holding(app, 1):
        waiting = [send(app, eta=START + HOUR) for _ in range(3)]
        outcomes = app.control.revoke([*waiting, running, "none"])
    assert outcomes == {
        **dict.fromkeys(waiting, Outcome.CANCELLED),
        running: Outcome.ALREADY_DELIVERED,
        "none": Outcome.UNKNOWN,
    }


@pytest.mark.parametrize("retries", [1, 3, 40])
def test_the_retry_of_a_task_is_found(app: Celery, retries: int) -> None:
    """It has the id of the task, of which the first try was delivered."""
    task_id = send(app)
    with arrivals(app) as wait:
        wait(1)
    send(app, task_id=task_id, retries=retries, eta=START + HOUR)
    assert tickwheel.celery.cancel(app, task_id) == {task_id: Outcome.CANCELLED}


def not_done(client: sync.Client, app: Celery) -> list[str]:
    """The keys of all messages that may be delivered."""
    states = ["scheduled", "ready", "leased", "waiting"]
    return [one.key for one in client.browse(app.conf.task_default_queue, states=states, limit=1_000)]


@pytest.mark.parametrize("sends", [2, 3, COPY_KEYS + 10])
def test_all_tasks_of_an_id_are_cancelled(app: Celery, client: sync.Client, sends: int) -> None:
    """It was sent again by a program that did not hear the confirmation, or on purpose."""
    task_id = send(app, eta=START + HOUR)
    for number in range(1, sends):
        send(app, task_id=task_id, eta=START + (number + 1) * HOUR)
    assert len(not_done(client, app)) == sends
    assert app.control.revoke(task_id) == {task_id: Outcome.CANCELLED}
    assert not_done(client, app) == []
    assert tickwheel.celery.cancel(app, task_id)[task_id] is not Outcome.CANCELLED


@pytest.mark.parametrize("publish", ["confirmed", "pipelined"])
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"eta": START + 2 * HOUR},
        {"retries": 1, "eta": START + 2 * HOUR},
        {"retries": 40, "eta": START + 2 * HOUR},
        {"replaced_task_nesting": 1},
    ],
    ids=["for now", "again", "retry", "late retry", "replacement"],
)
def test_after_cancelled_nothing_of_the_id_is_delivered(
    shared: TestBroker, client: sync.Client, publish: str, other: dict[str, Any]
) -> None:
    app = app_of(f"{publish}-{next(numbers)}", shared.url, broker_transport_options={"publish": publish})
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        task_id = send(app, eta=START + HOUR, producer=producer)
        send(app, task_id=task_id, producer=producer, **other)
    assert len(not_done(client, app)) == 2
    assert tickwheel.celery.cancel(app, task_id) == {task_id: Outcome.CANCELLED}
    assert not_done(client, app) == []


def test_all_tasks_of_an_id_have_another_time(app: Celery) -> None:
    task_id = send(app, eta=START + HOUR)
    for _ in range(3):
        send(app, task_id=task_id, eta=START + 2 * HOUR)
    assert tickwheel.celery.reschedule(app, task_id, START + 5 * HOUR) is Outcome.RESCHEDULED
    assert [task.eta for task in tickwheel.celery.scheduled(app)] == [START + 5 * HOUR] * 4


def test_a_task_of_a_schedule_is_found_by_the_id_of_its_slot(
    app: Celery, shared: TestBroker, client: sync.Client
) -> None:
    app.conf.beat_schedule = {"hourly": {"task": "count", "schedule": crontab(minute="0")}}
    beat = TickwheelScheduler(app)
    beat.tick()
    beat.close()
    name = app.conf.task_default_queue
    shared.clock.set(START + timedelta(minutes=59, seconds=57))  # it is sent five seconds ahead
    while not (tasks := tickwheel.celery.scheduled(app)):
        assert client.schedule("celery.hourly").trouble == ""
    (task,) = tasks
    assert (task.entry, task.queue, task.eta) == ("hourly", name, START + HOUR)
    assert tickwheel.celery.cancel(app, task.id) == {task.id: Outcome.CANCELLED}
    shared.clock.set(START)


def test_other_queues_are_named(app: Celery, shared: TestBroker) -> None:
    # Who has sent to a queue knows it.
    task_id = send(app_of("sender", shared.url), eta=START + HOUR, queue=f"{app.main}-elsewhere")
    assert tickwheel.celery.cancel(app, task_id) == {task_id: Outcome.UNKNOWN}
    queues = [f"{app.main}-elsewhere"]
    assert [task.id for task in tickwheel.celery.scheduled(app, queues=queues)] == [task_id]
    assert app.control.revoke(task_id, queues=queues) == {task_id: Outcome.CANCELLED}


def test_queues_of_topic_exchanges_are_looked_through(app: Celery) -> None:
    exchange = Exchange("heat", type="topic")
    app.conf.task_queues = [Queue("hot", exchange, routing_key="hot.#")]
    app.conf.task_default_queue = "hot"
    task_id = send(app, eta=START + HOUR, queue="hot", routing_key="hot.now")
    assert tickwheel.celery.cancel(app, task_id) == {task_id: Outcome.CANCELLED}


def test_a_chord_whose_part_is_revoked_ends(app: Celery, shared: TestBroker) -> None:
    """As when a worker discards it: the chord's result says so, instead of never coming."""

    @app.task(name="part", shared=False)
    def part() -> None: ...

    result = chord([part.s().set(eta=START + HOUR), part.s().set(eta=START + HOUR)])(part.si())
    first, second = result.parent.children
    tickwheel.celery.cancel(app, [first.id, second.id])
    assert {first.state, second.state} == {"REVOKED"}


def test_replies_are_those_of_celery_and_one_of_the_broker(app: Celery) -> None:
    task_id = send(app, eta=START + HOUR)
    assert app.control.revoke(task_id, reply=True, timeout=0.1) == [
        {"tickwheel": {"ok": {task_id: "cancelled"}}}
    ]


def test_a_revoke_that_is_broadcast_cancels_too(app: Celery) -> None:
    """As the program `celery control revoke` does."""
    ids = [send(app, eta=START + HOUR) for _ in range(2)]
    seen: list[Any] = []
    replies = app.control.broadcast(
        "revoke", arguments={"task_id": ids}, reply=True, timeout=0.1, callback=seen.append, destination=None
    )
    assert replies == seen == [{"tickwheel": {"ok": dict.fromkeys(ids, "cancelled")}}]
    assert app.control.broadcast("shutdown", reply=True, timeout=0.1) == []


def test_the_ways_of_results_lead_here(app: Celery) -> None:
    first, second = (app.send_task("count", eta=START + HOUR) for _ in range(2))
    first.revoke()
    ResultSet([second], app=app).revoke()
    assert {first.state, second.state} == {"REVOKED"}


def test_another_time(app: Celery, shared: TestBroker) -> None:
    task_id = send(app, eta=START + HOUR)
    assert tickwheel.celery.reschedule(app, task_id, START + 3 * HOUR) is Outcome.RESCHEDULED
    assert [task.eta for task in tickwheel.celery.scheduled(app)] == [START + 3 * HOUR]
    assert tickwheel.celery.reschedule(app, task_id, timedelta(0)) is Outcome.RESCHEDULED
    shared.clock.advance(timedelta(milliseconds=1))
    with arrivals(app) as wait:
        assert [task["id"] for task in wait(1)] == [task_id]
    assert tickwheel.celery.reschedule(app, task_id, HOUR) is Outcome.ALREADY_DELIVERED
    assert tickwheel.celery.reschedule(app, "none", HOUR) is Outcome.UNKNOWN
    with pytest.raises(NaiveDatetime):
        tickwheel.celery.reschedule(app, task_id, datetime(2031, 1, 1))


def test_the_list_is_in_order_of_time(app: Celery) -> None:
    ids = [send(app, number, eta=START + number * HOUR) for number in (3, 1, 2)]
    tasks = tickwheel.celery.scheduled(app)
    assert [task.id for task in tasks] == [ids[1], ids[2], ids[0]]
    assert [task.args for task in tasks] == ["(1,)", "(2,)", "(3,)"]
    assert [(task.name, task.queue, task.retries) for task in tasks] == [("count", app.main, 0)] * 3
    assert [task.id for task in tickwheel.celery.scheduled(app, limit=1)] == [ids[1]]


def test_what_is_too_large_to_look_into_is_listed_nevertheless(app: Celery) -> None:
    task_id = send(app, "x" * 200_000, eta=START + HOUR)
    (task,) = tickwheel.celery.scheduled(app)
    assert (task.id, task.name, task.args) == (task_id, "count", "")


def test_inspect_is_answered_by_the_broker(app: Celery, shared: TestBroker) -> None:
    task_id = send(app, 17, eta=START + HOUR)
    seen: list[Any] = []
    replies = app.control.inspect(timeout=0.1, callback=seen.append).scheduled()
    ((node, (task,)),) = replies.items()
    assert node.startswith("tickwheel@")
    assert (task["eta"], task["request"]["id"]) == ((START + HOUR).isoformat(), task_id)
    assert (task["request"]["name"], task["request"]["args"]) == ("count", "(17,)")
    assert seen == [replies]
    json.dumps(replies)
    assert app.control.inspect(timeout=0.1, destination=["celery@other"]).scheduled() is None
    assert app.control.inspect(timeout=0.1).active() is None


def test_a_task_that_may_only_be_looked_at_is_not_unknown(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for name, grants in (("looks", ["query:*"]), ("changes", ["query:*", "publish:rights"])):
        granted = [word for grant in grants for word in ("--grant", grant)]
        shell.run("tokens", "create", name, *granted, "--out", f"{name}.token", "--data", "data")
    with embedded(tmp_path / "data", listen_tcp=True, listen_port=0) as strict:
        (url,) = [url for url in strict._runs().urls if url.startswith("tickwheel://")]
        task_id = send(app_of("rights", strict.url), countdown=3600)
        looks, changes = (
            app_of("rights", url, broker_transport_options={"token_file": str(tmp_path / f"{name}.token")})
            for name in ("looks", "changes")
        )
        assert [task.id for task in tickwheel.celery.scheduled(looks)] == [task_id]
        with pytest.raises(Forbidden, match="needs the right publish:rights"):
            tickwheel.celery.cancel(looks, task_id)
        with pytest.raises(Forbidden):
            tickwheel.celery.reschedule(looks, task_id, HOUR)
        assert tickwheel.celery.cancel(changes, task_id) == {task_id: Outcome.CANCELLED}


def test_another_broker_has_celerys_control() -> None:
    app = app_of("elsewhere", "memory://")
    assert app.control.revoke("1") is None
    assert app.control.inspect(timeout=0.1).scheduled() is None
    with pytest.raises(ConfigError, match="which is not Tickwheel"):
        tickwheel.celery.scheduled(app)


def test_without_a_broker_no_worker_is_told() -> None:
    app = app_of("nowhere", "tickwheel://127.0.0.1:1", broker_connection_timeout=0.05)
    with pytest.raises(NotConnected):
        app.control.revoke("1")
