"""The tables: what became of tasks, and the outbox of those that have not reached the broker."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.db import models
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from tickwheel.django.framework import Task, TaskError, TaskResult, TaskResultStatus
from tickwheel.protocol.limits import DEFAULT_PRIORITY as BROKER_PRIORITY

ID_LENGTH = 64
NAME_LENGTH = 255
OUTBOX_TABLE = "tickwheel_task_outbox"
SEQUENCE = "tickwheel_seq"
"""A column of the outbox that only the database and the relay know: it counts up. SQLite numbers rows by itself."""


class TaskRecord(models.Model):
    """A task that was enqueued, and what became of it."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH, editable=False)
    status = models.CharField(
        _("status"),
        max_length=10,
        choices=TaskResultStatus.choices,
        default=TaskResultStatus.READY.value,
    )
    backend = models.CharField(_("backend"), max_length=NAME_LENGTH)
    queue = models.CharField(_("queue"), max_length=NAME_LENGTH)
    task_path = models.TextField(_("task"))
    args = models.JSONField(_("arguments"), default=list)
    kwargs = models.JSONField(_("named arguments"), default=dict)
    priority = models.SmallIntegerField(_("priority"), default=0)
    schedule = models.CharField(_("schedule"), max_length=NAME_LENGTH, blank=True, default="")
    run_after = models.DateTimeField(_("not before"), null=True, blank=True)
    enqueued_at = models.DateTimeField(_("enqueued"))
    started_at = models.DateTimeField(_("first started"), null=True, blank=True)
    last_attempted_at = models.DateTimeField(_("last started"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    cancelled_at = models.DateTimeField(_("cancelled"), null=True, blank=True)
    worker_ids = models.JSONField(_("workers"), default=list)
    errors = models.JSONField(_("errors"), default=list)
    return_value = models.JSONField(_("return value"), null=True, blank=True)
    failures = models.PositiveIntegerField(_("attempts that failed"), default=0)
    lost_workers = models.PositiveIntegerField(_("workers that were lost"), default=0)
    message_id = models.BigIntegerField(_("message"), default=0)
    """Which message of the broker it came with last."""
    delivery = models.BigIntegerField(_("delivery"), default=0)
    """Which delivery of this message runs, or ran last: a worker whose task was given to another one has an older
    number, and what it writes does not count."""

    class Meta:
        db_table = "tickwheel_task"
        ordering = ("-enqueued_at",)
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        indexes = (
            models.Index(fields=("enqueued_at",), name="tickwheel_task_enqueued"),
            models.Index(fields=("status", "finished_at"), name="tickwheel_task_status"),
        )

    def __str__(self) -> str:
        return f"{self.task_path} {self.id}"

    @property
    def attempts(self) -> int:
        """How often it was begun."""
        return len(self.worker_ids)

    def task(self) -> Any:
        """The task, as it was enqueued. Raises ImportError and SuspiciousOperation."""
        found = import_string(self.task_path)
        if not isinstance(found, Task):
            raise SuspiciousOperation(f"{self.task_path!r}, which was to be run, is no task.")
        return found.using(
            priority=self.priority,
            queue_name=self.queue,
            run_after=self.run_after,
            backend=self.backend,
        )

    def result(self, task: Any = None) -> Any:
        """As Django has it. ``task``: what ``task`` would return, if it is known."""
        result = TaskResult(
            task=self.task() if task is None else task,
            id=self.id,
            status=TaskResultStatus[self.status],
            enqueued_at=self.enqueued_at,
            started_at=self.started_at,
            last_attempted_at=self.last_attempted_at,
            finished_at=self.finished_at,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            errors=[TaskError(**one) for one in self.errors],
            worker_ids=list(self.worker_ids),
        )
        object.__setattr__(result, "_return_value", self.return_value)
        return result


class OutboxMessage(models.Model):
    """A task that was committed here, and that the relay is to send, or has sent: a message table of Tickwheel's."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH, editable=False)
    priority = models.BigIntegerField(default=BROKER_PRIORITY)
    epoch = models.BigIntegerField(default=0)
    time_next = models.BigIntegerField(null=True)
    """When it is due, in ns since 1970; null: it was sent."""
    time_acked = models.BigIntegerField(null=True)
    """When it was sent."""
    topic = models.CharField(max_length=NAME_LENGTH)
    body = models.TextField()

    class Meta:
        db_table = OUTBOX_TABLE
        verbose_name = _("task to be sent")
        verbose_name_plural = _("tasks to be sent")
        indexes = (models.Index(fields=("time_acked", "time_next"), name="tickwheel_outbox_next"),)

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"
