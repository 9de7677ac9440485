"""A step of Celery's worker: leases are renewed while it waits, at a warm shutdown, for tasks that run.

A pool of processes turns the worker's loop meanwhile. The pools of threads, gevent and eventlet do not.
"""

from __future__ import annotations

from typing import Any

from celery.bootsteps import StartStopStep
from celery.worker.components import Pool

from tickwheel.celery.transport.connection import Connection


class Stopping(StartStopStep):  # type: ignore[misc]  # Celery has no types
    """It starts after the pool, so it is stopped before it."""

    requires = (Pool,)

    def __init__(self, worker: Any, **_: Any) -> None:
        super().__init__(worker)

    def stop(self, worker: Any) -> None:
        """The consumer has stopped, and the pool is about to wait for its tasks."""
        if worker.pool.uses_semaphore:
            return
        connection = getattr(worker.consumer.connection, "connection", None)
        if isinstance(connection, Connection):
            connection.attend()
