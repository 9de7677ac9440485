"""The backend: from ``task.enqueue()`` to the broker, and back to the result."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone

from tickwheel.client.results import CancelResult, RescheduleResult
from tickwheel.django.broker import client_of
from tickwheel.django.envelope import Envelope, broker_priority, check_size, iso, new_id
from tickwheel.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
)
from tickwheel.django.options import BackendOptions, queue_trouble, read_options
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.limits import HARD_MAX_BODY_BYTES

_APP: Final = "tickwheel.django"
RELAYED: Final = ("sqlite", "postgresql", "mysql")
"""Kinds of databases, as Django names them, that the relay knows."""

_log = logging.getLogger("tickwheel.django")


class TickwheelBackend(BaseTaskBackend):
    """Tasks in a Tickwheel broker, their results in a table. Its options are those of ``BackendOptions``."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._read_options, self._troubles = read_options(self.options)

    @property
    def settings(self) -> BackendOptions:
        """The options. Raises InvalidTaskBackend if they are wrong."""
        if self._troubles:
            raise InvalidTaskBackend(
                f"TASKS[{self.alias!r}]: " + " ".join(str(trouble) for trouble in self._troubles)
            )
        return self._read_options

    @cached_property
    def records(self) -> Any:
        """The results. Models can be imported only once Django has loaded its apps."""
        from tickwheel.django.records import Records

        return Records(self.settings.database)

    @cached_property
    def outbox(self) -> Any:
        """The tasks that are to be sent."""
        from tickwheel.django.outbox import Outbox

        return Outbox(self.settings.database)

    def validate_task(self, task: Any) -> None:
        """As Django has it; besides, the queue must have a topic."""
        super().validate_task(task)
        trouble = queue_trouble(self._read_options, task.queue_name)
        if trouble is not None:
            raise InvalidTask(str(trouble))

    # -- enqueueing --

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Stores a task: when this returns it is on the broker's disk or, via the outbox, in the transaction that is
        open. Raises InvalidTask; via "direct" also what ``tickwheel.Client.send`` raises, and then it is not stored,
        unless the answer was lost (SendUncertain, RequestTimeout)."""
        self.validate_task(task)
        options = self.settings
        result = self._new_result(task, args, kwargs)
        envelope = _envelope(result)
        body = envelope.encode()
        check_size(body, HARD_MAX_BODY_BYTES)
        if options.via == "outbox":
            with transaction.atomic(using=options.database, savepoint=False):
                self.records.add(envelope)
                self.outbox.add(envelope, options.topic_of(task.queue_name), task.run_after)
        else:
            self._send(envelope, body, task.run_after)
        signals.task_enqueued.send(type(self), task_result=result)
        # What a receiver changes, or a caller, is not the other's.
        return copy(result)

    def _new_result(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return TaskResult(
            task=task,
            id=new_id(),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=normalize_json(list(args)),
            kwargs=normalize_json(dict(kwargs)),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _send(self, envelope: Envelope, body: bytes, run_after: datetime | None) -> None:
        """The row comes first: a worker may have the message before this returns."""
        from tickwheel.django.records import aware

        options = self.settings
        client = client_of(options)
        check_size(body, client.max_body_bytes)
        with transaction.atomic(using=options.database, savepoint=False):
            self.records.add(envelope)
        try:
            client.send(
                options.topic_of(envelope.queue),
                body,
                key=envelope.id,
                priority=broker_priority(envelope.priority),
                deliver_at=None if run_after is None else aware(run_after),
            )
        except BaseException:
            # A worker that has the message all the same makes the row anew.
            self.records.rows.filter(pk=envelope.id, delivery=0).delete()
            raise

    # -- results --

    def get_result(self, result_id: str) -> Any:
        """Raises TaskResultDoesNotExist; ImportError and SuspiciousOperation if there is no such task any more."""
        record = self.records.get(str(result_id))
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return record.result()

    # -- changing --

    def cancel(self, result: Any, *, stop: bool = False) -> CancelResult:
        """Takes a task back that has not begun, and says truthfully what came of it. ``result``: of ``enqueue``, or its
        id. ``stop``: also a task that has failed, and waits for its next attempt (STOPPED).

        ALREADY_DELIVERED: it runs, or has run and will be tried again. ALREADY_ACKED: it is finished. What is said is
        part of the transaction that is open: after a rollback the task runs. A cancelled task has the status FAILED,
        and the error TaskCancelled.
        """
        options, task_id = self.settings, _id_of(result)
        with transaction.atomic(using=options.database, savepoint=False):
            answer: CancelResult = self.records.cancel(task_id, stop=stop)
            if answer not in (CancelResult.CANCELLED, CancelResult.STOPPED):
                return answer
            was_here = self.outbox.remove(task_id)
            if not was_here:
                # The row is what counts: a worker that gets the message sees it there, and leaves the task alone.
                transaction.on_commit(lambda: self._call_back(task_id), using=options.database)
        return answer

    async def acancel(self, result: Any, *, stop: bool = False) -> CancelResult:
        """See ``cancel``."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(result, stop=stop)

    def _call_back(self, task_id: str) -> None:
        record = self.records.get(task_id)
        if record is None:
            return
        try:
            client_of(self.settings).cancel(self.settings.topic_of(record.queue), key=task_id, stop=True)
        except TickwheelError as error:
            _log.warning("task %s is cancelled, and its message stays in the broker: %s", task_id, error)

    def reschedule(self, result: Any, run_after: datetime) -> RescheduleResult:
        """Gives a task that has not begun another time, and says truthfully what came of it. ``result``: of
        ``enqueue``, or its id.

        For a task that is in the outbox still, this is part of the transaction that is open; once the broker has
        it, it is not, and counts at once. Raises InvalidTask, and what ``tickwheel.Client.reschedule`` raises.
        """
        from tickwheel.django.records import aware

        options, task_id = self.settings, _id_of(result)
        record = self.records.get(task_id)
        if record is None:
            return RescheduleResult.NOT_FOUND
        record.task().using(run_after=run_after)  # validates it
        if record.cancelled_at is not None:
            return RescheduleResult.ALREADY_CANCELLED
        with transaction.atomic(using=options.database, savepoint=False):
            if self.outbox.move(task_id, run_after):
                self.records.move(task_id, run_after)
                return RescheduleResult.RESCHEDULED
        answer = client_of(options).reschedule(
            options.topic_of(record.queue), key=task_id, deliver_at=aware(run_after)
        )
        if answer is RescheduleResult.RESCHEDULED:
            self.records.move(task_id, run_after)
        return answer

    async def areschedule(self, result: Any, run_after: datetime) -> RescheduleResult:
        """See ``reschedule``."""
        return await sync_to_async(self.reschedule, thread_sensitive=True)(result, run_after)

    # -- checks --

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """What is wrong with the settings of this backend."""
        place = f"TASKS[{self.alias!r}]"
        yield from super().check(**kwargs)
        for trouble in self._troubles:
            yield checks.Error(
                f"{place}['OPTIONS']: {trouble.text}", hint=trouble.hint, obj=place, id="tickwheel.E001"
            )
        for queue in sorted(self.queues, key=str):
            found = queue_trouble(self._read_options, queue)
            if found is not None:
                yield checks.Error(
                    f"{place}['QUEUES']: {found.text}", hint=found.hint, obj=place, id="tickwheel.E002"
                )
        yield from _relay_troubles(self._read_options, place)
        if not apps.is_installed(_APP):
            yield checks.Error(
                f"{place} keeps results in tables of the app {_APP!r}, which is not installed.",
                hint=f"Add {_APP!r} to INSTALLED_APPS, and run `manage.py migrate`.",
                obj=place,
                id="tickwheel.E003",
            )


def _relay_troubles(options: BackendOptions, place: str) -> Iterable[checks.CheckMessage]:
    """Why what goes into the outbox would stay there."""
    if options.via != "outbox":
        return
    vendor = connections[options.database].vendor
    if vendor not in RELAYED:
        yield checks.Error(
            f"{place}: the relay knows no databases of the kind {vendor!r}.",
            hint=f"It knows {', '.join(RELAYED)}. Use OPTIONS['via'] = 'direct'.",
            obj=place,
            id="tickwheel.E004",
        )
    if importlib.util.find_spec("sqlalchemy") is None:
        yield checks.Warning(
            f"{place}: the relay needs SQLAlchemy, which is not installed here.",
            hint="pip install 'tickwheel[django]' where `manage.py tickwheel_relay` runs.",
            obj=place,
            id="tickwheel.W001",
        )


def _envelope(result: Any) -> Envelope:
    task = result.task
    return Envelope(
        id=result.id,
        task_path=task.module_path,
        args=result.args,
        kwargs=result.kwargs,
        backend=task.backend,
        queue=task.queue_name,
        priority=int(task.priority),
        run_after=iso(task.run_after),
        enqueued_at=iso(result.enqueued_at),
    )


def _id_of(result: Any) -> str:
    return result if isinstance(result, str) else str(result.id)
