"""Apps of Celery for tests: a worker's part that takes task messages as they arrive, and what waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery

PATIENCE_S = 60.0


def app_of(name: str, url: str, beat_schedule: Mapping[str, Any] | None = None, **settings: Any) -> Celery:
    """An app with a queue of its own name."""
    app = Celery(name, broker=url, control="tickwheel.celery.control:Control", set_as_current=False)
    app.conf.update(task_default_queue=name, beat_schedule=dict(beat_schedule or {}), **settings)
    return app


@contextmanager
def arrivals(app: Celery) -> Iterator[Callable[[int], list[dict[str, Any]]]]:
    """What a worker of the app would be given: a function that waits for so many more messages, and answers their
    headers. They are acked."""
    with app.connection_for_read() as connection:
        found: list[dict[str, Any]] = []

        def take(body: Any, message: Any) -> None:
            found.append(dict(message.headers))
            message.ack()

        def wait(count: int) -> list[dict[str, Any]]:
            until = time.monotonic() + PATIENCE_S
            while len(found) < count:
                assert time.monotonic() < until, f"{len(found)} of {count} messages came"
                try:
                    connection.drain_events(timeout=1.0)
                except TimeoutError:
                    continue
            taken = found[:count]
            del found[:count]
            return taken

        with app.amqp.TaskConsumer(connection.channel(), callbacks=[take]):
            yield wait


@contextmanager
def holding(app: Celery, count: int) -> Iterator[None]:
    """A worker of the app has so many messages, and acks none of them before the end."""
    with app.connection_for_read() as connection:
        held: list[Any] = []
        with app.amqp.TaskConsumer(
            connection.channel(), callbacks=[lambda body, message: held.append(message)]
        ):
            until = time.monotonic() + PATIENCE_S
            while len(held) < count:
                assert time.monotonic() < until
                try:
                    connection.drain_events(timeout=1.0)
                except TimeoutError:
                    continue
            yield
