"""The broker of an app, for what goes beside Kombu: schedules, and tasks that wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from celery import Celery

from tickwheel import sync
from tickwheel.celery.names import exchange_topic, queue_topic
from tickwheel.celery.registration import DRIVER
from tickwheel.celery.transport.options import options_of, url_of
from tickwheel.celery.waiting import Queue, WaitingTasks
from tickwheel.errors import ConfigError

_CONNECT_TIMEOUT_S: Final = 5.0


def is_ours(app: Celery) -> bool:
    """Whether the app's broker is one of Tickwheel."""
    with app.connection_for_write() as connection:  # it is not opened
        return bool(connection.get_transport_cls().driver_type == DRIVER)


def client_of(app: Celery, name: str) -> sync.Client:
    """A client of the app's broker, not yet connected. ``name`` is for the broker's log. Raises ConfigError if the app
    has another broker, or its options are wrong."""
    with app.connection_for_write() as connection:
        transport = connection.get_transport_cls()
        if transport.driver_type != DRIVER:
            raise ConfigError(
                f"The app's broker is {connection.as_uri()}, which is not Tickwheel.",
                advice="Set broker_url to tickwheel://host:7411.",
            )
        options = options_of(connection.transport_options, connection.ssl)
        timeout_s = float(connection.connect_timeout or _CONNECT_TIMEOUT_S)
        given: Any = {"connect_timeout": timeout_s, **options.client, "name": name}
        # Of a cluster Kombu tries one node after the other, and this client knows them all.
        urls = [*connection.alt] if len(connection.alt or ()) > 1 else url_of(connection)
        return sync.Client(urls, **given)


def tasks_of(app: Celery, client: sync.Client, names: Iterable[str] = ()) -> WaitingTasks:
    """The tasks that wait in the queues of an app, and in those of these names."""
    with app.connection_for_write() as connection:
        options = options_of(connection.transport_options, connection.ssl)
    return WaitingTasks(client, queues_of(app, names), have_all_keys=options.publish == "confirmed")


def queues_of(app: Celery, names: Iterable[str] = ()) -> list[Queue]:
    """The queues of an app (``task_queues``, or the default one), and those of these names."""
    found = {}
    for name in (*app.amqp.queues, *names):
        queue = app.amqp.queues.get(name)
        exchange = None if queue is None else queue.exchange
        if exchange is not None and exchange.name and exchange.type in ("topic", "fanout"):
            found[name] = Queue(name, exchange_topic(exchange.name))
        else:
            found[name] = Queue(name, queue_topic(name))
    return list(found.values())
