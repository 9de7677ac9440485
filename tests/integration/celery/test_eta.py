"""Tasks that wait for their time do it at the broker, whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import kombu
import pytest
from celery import Celery

import tickwheel.celery
from tickwheel.celery.keys import task_key
from tickwheel.errors import BadArgument
from tickwheel.sharing.copy_keys import copy_keys
from tickwheel.testing import TestBroker, broker

assert tickwheel.celery.TRANSPORT
_numbers = count()


@pytest.fixture(scope="module")
def shared() -> Iterator[TestBroker]:
    with broker(start=datetime(2031, 5, 1, tzinfo=UTC), ack_wait="1h") as one:
        yield one


@pytest.fixture
def queue() -> str:
    return f"eta-{next(_numbers)}"


def app_of(shared: TestBroker, **options: Any) -> Celery:
    app = Celery("eta", broker=shared.url, set_as_current=False)
    app.conf.broker_transport_options = options
    app.conf.task_publish_retry = False
    return app


def send(app: Celery, queue: str, **options: Any) -> str:
    return str(app.send_task("report", queue=queue, **options).id)


def get(connection: kombu.Connection, queue: str) -> Any:
    return connection.default_channel.basic_get(queue, no_ack=True)


@pytest.mark.parametrize("distance", [timedelta(seconds=30), timedelta(days=730)])
def test_a_task_is_delivered_when_it_is_due_and_not_before(
    shared: TestBroker, queue: str, distance: timedelta
) -> None:
    app = app_of(shared)
    eta = shared.clock.now() + distance
    with app, app.connection_for_read() as connection:
        task_id = send(app, queue, eta=eta)
        assert get(connection, queue) is None
        shared.clock.advance(distance - timedelta(milliseconds=1))
        assert get(connection, queue) is None
        shared.clock.advance(timedelta(milliseconds=1))
        message = _next(connection, queue)
        assert message.headers["id"] == task_id
        assert message.headers["eta"] is None, "a worker would keep it in its memory"
        assert datetime.fromisoformat(message.headers["tickwheel_eta"]) == eta


def _next(connection: kombu.Connection, queue: str) -> Any:
    """The message that is due, waited for: another clock than the broker's says how long."""
    found: list[Any] = []
    with kombu.Consumer(
        connection, [kombu.Queue(queue)], on_message=found.append, no_ack=True, accept=["json"]
    ):
        while not found:
            connection.drain_events(timeout=30)
    return found[0]


def test_a_time_in_the_past_is_now(shared: TestBroker, queue: str) -> None:
    app = app_of(shared)
    with app, app.connection_for_read() as connection:
        send(app, queue, eta=shared.clock.now() - timedelta(days=400))
        assert _next(connection, queue).headers["eta"] is None


@pytest.mark.parametrize("publish", ["confirmed", "pipelined"])
def test_it_has_a_key_by_which_it_is_cancelled(shared: TestBroker, queue: str, publish: str) -> None:
    app = app_of(shared, publish=publish)
    eta = shared.clock.now() + timedelta(days=1)
    with app, shared.sync_client() as client:
        with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
            task_id = send(app, queue, eta=eta, producer=producer)
            for _ in range(2):  # under the same id again: it is another message
                send(app, queue, eta=eta, retries=1, task_id=task_id, producer=producer)
        found = client.message(queue, key=task_key(task_id))
        assert found is not None
        assert found.headers == {"celery-task": "report", "celery-id": task_id}
        messages = client.browse(queue)
        keys = [message.key for message in messages]
        assert keys[:2] == [task_key(task_id), task_key(task_id, 1)]
        assert keys[2] in copy_keys(task_id)


def test_a_time_without_a_zone_is_in_that_of_the_option(shared: TestBroker, queue: str) -> None:
    with (
        kombu.Connection(shared.url, transport_options={"timezone": "Asia/Tokyo"}) as connection,
        shared.sync_client() as client,
    ):
        headers = {"task": "report", "id": queue, "eta": "2031-09-01T09:00:00"}
        connection.Producer().publish([[], {}, {}], routing_key=queue, headers=headers)
        assert client.browse(queue)[0].deliver_at == datetime(2031, 9, 1, tzinfo=UTC)
        assert headers["eta"], "what belongs to the caller stays as it is"


def test_it_can_be_left_to_the_worker(shared: TestBroker, queue: str) -> None:
    app = app_of(shared, eta="worker")
    eta = shared.clock.now() + timedelta(days=1)
    with app, app.connection_for_read() as connection:
        send(app, queue, eta=eta)
        headers = _next(connection, queue).headers
        assert datetime.fromisoformat(headers["eta"]) == eta
        assert "tickwheel_eta" not in headers


def test_protocol_1_is_refused_with_an_eta_only(shared: TestBroker, queue: str) -> None:
    app = app_of(shared)
    app.conf.task_protocol = 1
    with app, app.connection_for_read() as connection:
        with pytest.raises(BadArgument, match="protocol 1"):
            send(app, queue, countdown=60)
        send(app, queue)
        assert _next(connection, queue).payload["task"] == "report"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task_id": "a\ud800"}, "a lone surrogate at 1"),
        ({"task_id": "\udfff", "countdown": 5}, "a lone surrogate at 0"),
        ({"task_id": 17}, "is 17, and not text"),
    ],
)
def test_an_id_that_is_no_text_is_refused(
    shared: TestBroker, queue: str, options: dict[str, Any], says: str
) -> None:
    with app_of(shared) as one, pytest.raises(BadArgument, match=says) as refused:
        send(one, queue, **options)
    assert refused.value.advice


def test_a_task_that_is_sent_again_is_another_message(shared: TestBroker, queue: str) -> None:
    """As the page says of a send that has failed."""
    with app_of(shared) as one, shared.sync_client() as client:
        for _ in range(2):
            send(one, queue, task_id="the same")
        assert len(client.browse(queue)) == 2
