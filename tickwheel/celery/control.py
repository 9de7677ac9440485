"""Remote control that asks the broker first: ``Celery(…, control="tickwheel.celery.control:Control")``.

A revoke of Celery tells the workers that are there, and each of them remembers it in memory. A task that waits for its
time is at the broker, so it is cancelled there: durably, and with a true answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from billiard.common import TERM_SIGNAME
from celery import Celery
from celery.app.control import Control as CeleryControl
from celery.app.control import Inspect as CeleryInspect
from celery.app.task import Context
from celery.utils.log import get_logger
from kombu.serialization import loads
from kombu.utils.objects import cached_property

from tickwheel.celery.broker import client_of, is_ours, tasks_of
from tickwheel.celery.transport.envelope import decode
from tickwheel.celery.waiting import CancelledTask, Outcome, WaitingTask

_CLIENT: Final = "celery control"
_MOST_INSPECTED: Final = 10_000

_log: logging.Logger = get_logger(__name__)


def scheduled(app: Celery, *, queues: Iterable[str] = (), limit: int = 1_000) -> list[WaitingTask]:
    """The tasks that wait for their time at the broker: up to ``limit`` that are due first, in order.

    ``queues``: to look through besides those of the app (``task_queues``, or the default one). Raises TickwheelError.
    """
    with client_of(app, _CLIENT) as client:
        return tasks_of(app, client, queues).earliest(limit)


def cancel(app: Celery, task_ids: str | Iterable[str], *, queues: Iterable[str] = ()) -> dict[str, Outcome]:
    """Takes tasks back before a worker is given them, and stores ``REVOKED`` as the result of those that were; what
    became of each. A task that was delivered runs on, and is not delivered again. Raises TickwheelError.

    ``queues``: to look through besides those of the app (``task_queues``, or the default one).
    """
    wanted = [task_ids] if isinstance(task_ids, str) else list(task_ids)
    with client_of(app, _CLIENT) as client:
        outcomes, cancelled = tasks_of(app, client, queues).cancel(wanted)
    for task in cancelled:
        _store_revoked(app, task)
    return outcomes


def reschedule(
    app: Celery, task_id: str, eta: datetime | timedelta, *, queues: Iterable[str] = ()
) -> Outcome:
    """Gives a task that waits another time: an aware datetime, or so long from now; what became of it. Raises
    TickwheelError (NaiveDatetime, BadTime).

    ``queues``: to look through besides those of the app (``task_queues``, or the default one).
    """
    with client_of(app, _CLIENT) as client:
        return tasks_of(app, client, queues).reschedule(task_id, eta)


class Inspect(CeleryInspect):  # type: ignore[misc]
    """Celery's, where ``scheduled`` is answered by the broker as well."""

    def _request(self, command: str, **arguments: Any) -> Any:
        replies = super()._request(command, **arguments)
        if command != "scheduled" or self.destination or self.pattern or not is_ours(self.app):
            return replies
        with client_of(self.app, _CLIENT) as client:
            node = f"tickwheel@{client.url.partition('://')[2]}"
            tasks = tasks_of(self.app, client).earliest(_MOST_INSPECTED)
        answer = {node: [_as_inspected(task, node) for task in tasks]}
        if self.callback:
            self.callback(answer)
        return {**(replies or {}), **answer}


class Control(CeleryControl):  # type: ignore[misc]
    """Celery's, whose ``revoke`` cancels at the broker first. With the broker of another kind it is Celery's."""

    @cached_property  # type: ignore[untyped-decorator]
    def inspect(self) -> Any:
        """A class: call it for an ``Inspect``."""
        return self.app.subclass_with_self(Inspect, reverse="control.inspect")

    def revoke(
        self,
        task_id: str | Iterable[str],
        destination: Any = None,
        terminate: bool = False,
        signal: str = TERM_SIGNAME,
        queues: Iterable[str] = (),
        **options: Any,
    ) -> Any:
        """Cancels tasks at the broker, and tells workers about those that they have.

        Answers what became of each task (an ``Outcome``), by its id. With ``reply=True`` it answers what Celery's does,
        a list of replies, and the broker's is one of them: ``{"tickwheel": {"ok": {id: outcome}}}``.
        ``queues``: to look through besides those of the app. Raises TickwheelError; then no worker was told.
        """
        wanted = task_id if isinstance(task_id, str) else list(task_id)
        outcomes = cancel(self.app, wanted, queues=queues) if is_ours(self.app) else None
        # Also of what was cancelled: a task that was being retried meanwhile has a message that was not there yet.
        told = {"task_id": wanted, "terminate": terminate, "signal": signal}
        replies = super().broadcast("revoke", told, destination, **options)
        if outcomes is None:
            return replies
        if not options.get("reply"):
            return outcomes
        answer = {"tickwheel": {"ok": outcomes}}
        if options.get("callback"):
            options["callback"](answer)
        return [*(replies or []), answer]

    def broadcast(self, command: str, arguments: Any = None, destination: Any = None, **options: Any) -> Any:
        """As Celery's. A revoke that is broadcast by itself, as the program ``celery control revoke`` does, cancels at
        the broker as well."""
        if command == "revoke" and arguments and "task_id" in arguments:
            return self.revoke(**arguments, destination=destination, **options)
        return super().broadcast(command, arguments, destination, **options)


def _as_inspected(task: WaitingTask, node: str) -> dict[str, Any]:
    """As a worker tells of a task that it holds."""
    return {
        "eta": task.eta.isoformat(),
        "priority": task.priority,
        "request": {
            "id": task.id,
            "name": task.name,
            "args": task.args,
            "kwargs": task.kwargs,
            "type": task.name,
            "hostname": node,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": "",
                "routing_key": task.queue,
                "priority": None,
                "redelivered": False,
            },
            "worker_pid": None,
        },
    }


def _store_revoked(app: Celery, task: CancelledTask) -> None:
    """Tells who waits for the result, as a worker does that discards a revoked task."""
    try:
        request, wants_result = None, True
        if task.body:
            message = decode(task.body, task.headers)
            request = _request_of(app, message)
            wants_result = not message["headers"].get("ignore_result")
        app.backend.mark_as_revoked(task.id, "revoked", request=request, store_result=wants_result)
    except Exception as error:  # the backend, and what is in the message, are other people's
        _log.warning("The task %s was cancelled, but that was not stored as its result: %r", task.id, error)


def _request_of(app: Celery, message: Mapping[str, Any]) -> Context:
    accept = [*app.conf.accept_content, "application/json"]
    encoded = (message["body"], message["content-type"], message["content-encoding"])
    args, kwargs, embed = loads(*encoded, accept=accept)
    return Context({**message["headers"], **(embed or {}), "args": args, "kwargs": kwargs})
