"""One task, from the message to what becomes of it: the row first, then the broker.

A worker that dies in between has its task run again (at least once); one that only could not ack has not: the row says
that it is done.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
    reset_queries,
)

from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.envelope import Envelope, decode
from tickwheel.django.errors import TimeLimitExceeded
from tickwheel.django.framework import TaskContext, normalize_json, signals
from tickwheel.django.models import TaskRecord
from tickwheel.django.records import Claim, Delivery, Records
from tickwheel.worker.outcomes import GiveUp, Retry

_AGAIN: Final = timedelta(seconds=1)
"""How long a task waits whose database is away."""
_STORE_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Between the attempts to write down what came of a task."""

_log = logging.getLogger("tickwheel.django.worker")


@dataclass(eq=False)
class Running:
    """A task that a thread runs now."""

    message: Any
    began_s: float
    record: TaskRecord | None = None
    is_over: bool = False
    """Something else has said what came of it."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Execution:
    """Runs the tasks of one backend: a handler, as ``tickwheel.worker`` has it. Any number of threads may call it."""

    def __init__(self, backend: TickwheelBackend) -> None:
        self._backend = backend
        self._options = backend.settings
        self._records: Records = backend.records
        self._running: set[Running] = set()
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> Retry | GiveUp | None:
        """Runs the task of a message; returns what is to become of the message."""
        run = Running(message, time.monotonic())
        with self._lock:
            self._running.add(run)
        reset_queries()
        _close_old_connections()
        try:
            return self._judged(run)
        finally:
            _close_old_connections()
            with self._lock:
                self._running.discard(run)

    def running(self) -> Collection[Running]:
        """What is run now."""
        with self._lock:
            return list(self._running)

    def expire(self, run: Running, limit: timedelta, withdraw: Callable[[], bool]) -> Retry | GiveUp | None:
        """A task has run for too long. What is to become of its message; None: it has just ended by itself.

        ``withdraw`` takes the message from the thread, so that the end of the task does not ack what is to come again;
        it tells whether it was still there.
        """
        with run.lock:
            if run.is_over or run.record is None or not withdraw():
                return None
            run.is_over = True
        error = TimeLimitExceeded(f"The task ran for longer than its time limit, {limit}.")
        return self._failed(run.record, error)

    # -- the steps --

    def _judged(self, run: Running) -> Retry | GiveUp | None:
        message = run.message
        try:
            envelope = decode(message)
        except ValueError as error:
            _log.error("message %s: %s", message.id, error)
            return GiveUp(str(error)[:500])
        delivery = Delivery(message.id, message.epoch, message.attempt, _worker_id())
        try:
            record = self._records.ensure(envelope)
            verdict, record = self._records.claim(record, delivery, self._options.lost_workers)
        except (OperationalError, InterfaceError) as error:
            _log.warning("task %s waits, its database is away: %s", envelope.id, error)
            return Retry(_AGAIN, counted=False)
        if verdict is Claim.RUN:
            with run.lock:
                run.record = record
            return self._run(run, envelope, record)
        _log.debug("task %s is not run: %s", envelope.id, verdict.name)
        if verdict is Claim.LOST:
            _log.error("task %s has ended %d workers, and is given up", envelope.id, record.lost_workers)
            self._tell_finished(record)
        if verdict in (Claim.LOST, Claim.FAILED):
            return GiveUp(_reason(record))
        return None

    def _run(self, run: Running, envelope: Envelope, record: TaskRecord) -> Retry | GiveUp | None:
        try:
            task = record.task()
            result = record.result(task)
        except Exception as error:  # its code is not there, or not yet
            return self._ended(run, partial(self._failed, record, error))
        try:
            signals.task_started.send(type(self._backend), task_result=result)
            context = (TaskContext(task_result=result),) if task.takes_context else ()
            value = normalize_json(task.call(*context, *record.args, **record.kwargs))
        except Retry as asked:
            return self._ended(run, partial(self._asked, record, asked))
        except BaseException as error:  # a task may not end its worker, whatever it raises
            return self._ended(run, partial(self._failed, record, error, result))
        return self._ended(run, partial(self._succeeded, record, value, result))

    def _ended(self, run: Running, judge: Callable[[], Retry | GiveUp | None]) -> Retry | GiveUp | None:
        with run.lock:
            if run.is_over:
                return None  # and is not heard: the message was withdrawn
            run.is_over = True
        return judge()

    def _succeeded(self, record: TaskRecord, value: Any, result: Any) -> Retry | GiveUp | None:
        try:
            counts = self._store(record, lambda: self._records.succeed(record, value))
        except (OperationalError, InterfaceError):
            raise
        except DatabaseError as error:  # it does not take this value
            return self._failed(record, error, result)
        if counts:
            self._tell_finished(record, result)
        return None

    def _failed(self, record: TaskRecord, error: BaseException, result: Any = None) -> Retry | GiveUp:
        failures = record.failures + 1
        finally_ = failures >= self._options.attempts or isinstance(error, GiveUp)
        counts = self._store(record, lambda: self._records.fail(record, error, finally_=finally_))
        reason = f"{type(error).__name__}: {error}"[:500]
        if not counts:
            return GiveUp(reason) if finally_ else Retry(reason=reason)
        if finally_:
            self._tell_finished(record, result)
            return GiveUp(reason)
        _log.warning(
            "attempt %d of task %s has failed, and is made again", failures, record.pk, exc_info=error
        )
        return Retry(self._options.delay_after(failures), reason)

    def _asked(self, record: TaskRecord, asked: Retry) -> Retry | GiveUp:
        """The task raised Retry: it is not finished, and has not failed, unless it was the last attempt."""
        if not asked.counted:
            self._store(record, lambda: self._records.put_back(record))
            return asked
        said = self._failed(record, asked)
        if isinstance(said, GiveUp) or asked.after_ms is None:
            return said
        return asked

    def _store(self, record: TaskRecord, write: Callable[[], bool]) -> bool:
        """Writes down what came of a task. Raises what the database raises; while it is away only after some time, and
        then the task is run again."""
        pauses = list(_STORE_PAUSES_S)
        while True:
            try:
                counts = write()
            except (OperationalError, InterfaceError) as error:
                _close_old_connections()
                if not pauses or connections[self._records.database].in_atomic_block:
                    raise
                _log.warning("what came of task %s cannot be written yet: %s", record.pk, error)
                time.sleep(pauses.pop(0))
                continue
            if not counts:
                _log.warning("task %s was another worker's by the time it ended here", record.pk)
            return counts

    def _tell_finished(self, record: TaskRecord, result: Any = None) -> None:
        try:
            current = record.result(None if result is None else result.task)
        except Exception as error:
            _log.warning("task %s has ended, and its code is not there: %s", record.pk, error)
            return
        for receiver, answer in signals.task_finished.send_robust(type(self._backend), task_result=current):
            if isinstance(answer, Exception):
                _log.error("%r has failed for task %s", receiver, record.pk, exc_info=answer)


def _close_old_connections() -> None:
    """As Django's, which also closes one with a transaction open: that is the test's, where a test runs tasks."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _reason(record: TaskRecord) -> str:
    last = record.errors[-1]["traceback"].strip().rpartition("\n")[2] if record.errors else ""
    return str(last)[:500]


def _worker_id() -> str:
    return f"{socket.gethostname()[:40]}/{os.getpid()}/{threading.current_thread().name[-12:]}"
