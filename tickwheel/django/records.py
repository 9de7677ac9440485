"""What becomes of a task, step by step, in its row. Each step is one statement that counts only if the row is still
as it was read: of two processes that want different things, one is told that it came too late."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from tickwheel.client.results import CancelResult
from tickwheel.django.envelope import Envelope
from tickwheel.django.errors import TaskCancelled, WorkerLost
from tickwheel.django.framework import TaskResultStatus
from tickwheel.django.models import TaskRecord
from tickwheel.protocol.errors import TickwheelError

READY: Final = TaskResultStatus.READY.value
RUNNING: Final = TaskResultStatus.RUNNING.value
FAILED: Final = TaskResultStatus.FAILED.value
SUCCESSFUL: Final = TaskResultStatus.SUCCESSFUL.value
_MOST_TRACEBACK_CHARS: Final = 50_000


class Claim(Enum):
    """What a worker is to do with a message."""

    RUN = auto()
    DONE = auto()
    """The task has succeeded, or was cancelled: only the ack is missing."""
    FAILED = auto()
    """It has failed for good: only the word of it is missing."""
    LOST = auto()
    """It has ended too many workers, and has failed now."""
    STALE = auto()
    """The message was given to another worker meanwhile."""


class Delivery(NamedTuple):
    """A message in the hands of a worker: the ``number``-th delivery of it, which is its attempt number
    ``attempt``."""

    message_id: int
    number: int
    attempt: int
    worker: str


class Records:
    """The rows of one database."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.rows = TaskRecord.objects.using(database)

    def get(self, task_id: str) -> TaskRecord | None:
        """One row."""
        return self.rows.filter(pk=task_id).first()

    def add(self, envelope: Envelope) -> TaskRecord:
        """The row of a task, in the transaction that is open."""
        return self.rows.create(**_columns(envelope))

    def ensure(self, envelope: Envelope) -> TaskRecord:
        """The row of a task that was delivered. Where there is none it is made: the task comes from a schedule, the
        transaction that enqueued it was rolled back after it was sent, or its row was pruned."""
        found = self.get(envelope.id)
        if found is not None:
            return found
        try:
            with transaction.atomic(using=self.database):
                return self.add(envelope)
        except IntegrityError:  # another one was faster
            return self.rows.get(pk=envelope.id)

    # -- running --

    def claim(self, record: TaskRecord, delivery: Delivery, lost_workers: int) -> tuple[Claim, TaskRecord]:
        """Begins an attempt, if it is to be made; and the row as it is then."""
        attempt = delivery.attempt
        while True:
            if record.message_id == delivery.message_id and record.delivery >= delivery.number:
                return Claim.STALE, record
            if record.cancelled_at is not None or record.status == SUCCESSFUL:
                return Claim.DONE, record
            changes: dict[str, Any] = {}
            if record.status == FAILED:
                if attempt > 1:
                    return Claim.FAILED, record
                # Attempts are counted anew: the dead letter was replayed.
                changes |= {"failures": 0, "lost_workers": 0, "finished_at": None}
            verdict = Claim.RUN
            now = timezone.now()
            if record.status == RUNNING and attempt > 1:
                lost = WorkerLost("The worker ended while it ran the task, or could not say what came of it.")
                changes["errors"] = [*record.errors, error_fields(lost)]
                changes["lost_workers"] = record.lost_workers + 1
                if changes["lost_workers"] > lost_workers:
                    verdict = Claim.LOST
                    changes |= {"status": FAILED, "finished_at": now}
            if verdict is Claim.RUN:
                changes |= {
                    "status": RUNNING,
                    "started_at": record.started_at or now,
                    "last_attempted_at": now,
                    "worker_ids": [*record.worker_ids, delivery.worker],
                }
            changes |= {"message_id": delivery.message_id, "delivery": delivery.number}
            if self._change(record, changes):
                return verdict, record
            record = self.rows.get(pk=record.pk)

    def succeed(self, record: TaskRecord, value: Any) -> bool:
        """The attempt has returned ``value``. Whether this still counts."""
        return self._change(
            record, {"status": SUCCESSFUL, "finished_at": timezone.now(), "return_value": value}
        )

    def fail(self, record: TaskRecord, error: BaseException, *, finally_: bool) -> bool:
        """The attempt has raised ``error``. ``finally_``: there is none after it. Whether this still counts."""
        changes: dict[str, Any] = {
            "status": FAILED if finally_ else READY,
            "errors": [*record.errors, error_fields(error)],
            "failures": record.failures + 1,
        }
        if finally_:
            changes["finished_at"] = timezone.now()
        return self._change(record, changes)

    def put_back(self, record: TaskRecord) -> bool:
        """The attempt was none. Whether this still counts."""
        return self._change(record, {"status": READY, "worker_ids": record.worker_ids[:-1]})

    # -- changing --

    def cancel(self, task_id: str, *, stop: bool) -> CancelResult:
        """Takes a task back that does not run. ``stop``: and one that has failed and is to be tried again."""
        while True:
            record = self.get(task_id)
            if record is None:
                return CancelResult.NOT_FOUND
            if record.cancelled_at is not None:
                return CancelResult.ALREADY_CANCELLED
            if record.status in (SUCCESSFUL, FAILED):
                return CancelResult.ALREADY_ACKED
            if record.status == RUNNING or (record.worker_ids and not stop):
                return CancelResult.ALREADY_DELIVERED
            now = timezone.now()
            error = error_fields(TaskCancelled("The task was cancelled."))
            changes = {"status": FAILED, "cancelled_at": now, "finished_at": now}
            if self._change(record, {**changes, "errors": [*record.errors, error]}):
                return CancelResult.STOPPED if record.worker_ids else CancelResult.CANCELLED

    def move(self, task_id: str, run_after: datetime) -> bool:
        """Writes down another time. Whether the task still waits for its first attempt."""
        return bool(self.rows.filter(pk=task_id, status=READY, started_at=None).update(run_after=run_after))

    def _change(self, record: TaskRecord, changes: Mapping[str, Any]) -> bool:
        """Changes a row, and ``record`` with it, if it still is in the state in which it was read."""
        as_read = self.rows.filter(
            pk=record.pk, message_id=record.message_id, delivery=record.delivery, status=record.status
        )
        if not as_read.update(**changes):
            return False
        for name, value in changes.items():
            setattr(record, name, value)
        return True


def error_fields(error: BaseException) -> dict[str, str]:
    """An exception, as ``TaskError`` has it."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    if isinstance(error, TickwheelError) and error.__traceback__ is None:
        text = f"{kind.__module__}.{kind.__qualname__}: {error}\n"
    if len(text) > _MOST_TRACEBACK_CHARS:
        text = f"{text[: _MOST_TRACEBACK_CHARS // 2]}\n…\n{text[-_MOST_TRACEBACK_CHARS // 2 :]}"
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL takes none in JSON
    return {"exception_class_path": f"{kind.__module__}.{kind.__qualname__}", "traceback": text}


def _columns(envelope: Envelope) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "backend": envelope.backend,
        "queue": envelope.queue,
        "task_path": envelope.task_path,
        "args": envelope.args,
        "kwargs": envelope.kwargs,
        "priority": envelope.priority,
        "schedule": envelope.schedule,
        "run_after": _moment(envelope.run_after),
        "enqueued_at": _moment(envelope.enqueued_at) or timezone.now(),
    }


def _moment(text: str | None) -> datetime | None:
    """A moment of an envelope, as this project's settings want it."""
    found = None if text is None else parse_datetime(text)
    if found is None or timezone.is_aware(found) == settings.USE_TZ:
        return found
    if settings.USE_TZ:
        return aware(found)
    return timezone.make_naive(found, timezone.get_default_timezone())


def aware(moment: datetime) -> datetime:
    """For the broker, which knows no naive times: those are of the project's zone, whichever a thread has activated."""
    if not timezone.is_naive(moment):
        return moment
    return timezone.make_aware(moment, timezone.get_default_timezone())
