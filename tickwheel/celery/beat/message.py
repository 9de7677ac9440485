"""The task message of an entry, as beat would send it: task options, routes, serializer and signals have their say.

It is made by sending the task to a producer that keeps what it is given. The same entry makes the same bytes in each
beat, so that beats that say the same leave a schedule as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from celery import Celery
from celery.backends.rpc import RPCBackend
from celery.beat import BeatLazyFunc, ScheduleEntry
from kombu import Producer, Queue

from tickwheel.celery.beat.errors import NotOnBroker
from tickwheel.celery.slots import BEAT_HEADER, Mark
from tickwheel.celery.transport.envelope import TASK_HEADER, encode
from tickwheel.celery.transport.sending import broker_priority
from tickwheel.celery.transport.topology import Binding, Topology
from tickwheel.celery.transport.topology import Queue as Declared
from tickwheel.client.times import duration_ms

_OPTIONS_OF_ONE_SEND: Final = ("countdown", "eta", "task_id", "root_id", "parent_id", "group_id")
_ORIGIN: Final = "celery-beat@tickwheel"


class TaskMessage(msgspec.Struct, frozen=True):
    """What a schedule sends."""

    topic: str
    body: bytes
    headers: dict[str, Any]
    """At the broker."""
    priority: int
    """The broker's."""


class _Kept(msgspec.Struct, frozen=True):
    message: dict[str, Any]
    exchange: str
    routing_key: str
    declared: list[Any]


class _KeepingProducer(Producer):  # type: ignore[misc]
    """Keeps what it is to publish."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, auto_declare=False)
        self.kept: list[_Kept] = []

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        """Never waits for a connection, and needs none."""
        return super().publish(body, *args, **{**options, "retry": False})

    def _publish(
        self,
        body: Any,
        priority: Any,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        declare: list[Any],
        *_: Any,
    ) -> None:
        properties = {**properties, "priority": priority or 0}
        message = {
            "body": body,
            "content-type": content_type,
            "content-encoding": content_encoding,
            "headers": headers,
            "properties": properties,
        }
        self.kept.append(_Kept(message, exchange, routing_key, list(declare)))


def task_message(app: Celery, entry: ScheduleEntry, mark: Mark) -> TaskMessage:
    """What a schedule is to send for an entry. Raises NotOnBroker if that cannot be said before the slot; what sending
    the task raises."""
    options = _checked_options(app, entry)
    expires_ms, options = _relative_expires(app, entry, options)
    ignore_result = _ignore_result(app, entry, options)
    with app.connection_for_write() as connection:  # it is not opened
        producer = _KeepingProducer(connection)
        _send(app, entry, options, producer)
    tasks = [kept for kept in producer.kept if "task" in kept.message["headers"]]
    if len(tasks) != 1:
        raise NotOnBroker(f"sending its task sent {len(tasks)} messages instead of one")
    tasks[0].message["headers"]["ignore_result"] = ignore_result
    return _as_stored(tasks[0], msgspec.structs.replace(mark, expires_ms=expires_ms))


def _checked_options(app: Celery, entry: ScheduleEntry) -> dict[str, Any]:
    if app.conf.task_always_eager:
        raise NotOnBroker("task_always_eager is set")
    if app.conf.task_protocol != 2:
        raise NotOnBroker("the broker needs messages of task protocol 2")
    values = [*(entry.args or ()), *(entry.kwargs or {}).values()]
    if any(isinstance(value, BeatLazyFunc) for value in values):
        raise NotOnBroker("an argument of it is made when it is sent (BeatLazyFunc)")
    options = dict(entry.options)
    given = [name for name in _OPTIONS_OF_ONE_SEND if options.get(name) is not None]
    if given:
        raise NotOnBroker(f"its option {given[0]} is for one task, and not for each of a schedule")
    options["headers"] = {**(options.get("headers") or {}), "celery_beat_task": True}
    return options


def _ignore_result(app: Celery, entry: ScheduleEntry, options: Mapping[str, Any]) -> Any:
    if isinstance(app.backend, RPCBackend):
        return True  # a reply has no address: the process that made the schedule may be gone
    return options.get("ignore_result", getattr(app.tasks.get(entry.task), "ignore_result", None))


def _relative_expires(
    app: Celery, entry: ScheduleEntry, options: dict[str, Any]
) -> tuple[int | None, dict[str, Any]]:
    """How long after the slot the task expires, and the options without that: numbers count from when a task is sent.
    A moment stays what it is."""
    task = app.tasks.get(entry.task)
    expires = options.get("expires", getattr(task, "expires", None))
    if isinstance(expires, bool) or not isinstance(expires, int | float | timedelta):
        return None, options
    after = expires if isinstance(expires, timedelta) else timedelta(seconds=expires)
    return duration_ms(max(after, timedelta(milliseconds=1)), "expires"), {**options, "expires": None}


def _send(app: Celery, entry: ScheduleEntry, options: Mapping[str, Any], producer: Producer) -> None:
    task = app.tasks.get(entry.task)
    send: Any = app.send_task if task is None else task.apply_async
    name = (entry.task,) if task is None else ()
    # Nothing is sent, so the result backend is not to expect a result.
    options = {**options, "producer": producer, "task_id": _ORIGIN, "ignore_result": True}
    send(*name, list(entry.args or ()), dict(entry.kwargs or {}), **options)


def _as_stored(kept: _Kept, mark: Mark) -> TaskMessage:
    message = kept.message
    # What says which process has made it would make the schedule another one each time.
    headers = {**message["headers"], "origin": _ORIGIN}
    properties = {**message["properties"], "reply_to": "", "expiration": None}
    whole = {**message, "headers": headers, "properties": properties}
    body = json.loads(encode(whole, kept.exchange, kept.routing_key))
    body["properties"]["delivery_tag"] = _ORIGIN
    return TaskMessage(
        topic=_topic(kept.exchange, kept.routing_key, kept.declared),
        body=json.dumps(body).encode(),
        headers={TASK_HEADER: str(message["headers"]["task"]), BEAT_HEADER: msgspec.to_builtins(mark)},
        priority=broker_priority(properties["priority"]),
    )


def _topic(exchange: str, routing_key: str, declared: list[Any]) -> str:
    """Where the transport sends what is published so, when all that was declared is. Raises NotOnBroker."""
    topology = Topology()
    for entity in declared:
        of = entity.exchange if isinstance(entity, Queue) else entity
        if of is not None and of.name:
            topology.declare_exchange(of.name, of.type, is_durable=bool(of.durable))
        if isinstance(entity, Queue):
            topology.declare_queue(Declared(entity.name))
            if of is not None and of.name:
                topology.bind(entity.name, Binding(of.name, entity.routing_key))
    topics = topology.targets(exchange, routing_key)
    if len(topics) != 1:
        raise NotOnBroker(f"its task goes to {len(topics)} queues")
    return topics[0]
