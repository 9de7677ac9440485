"""Which simulated process a task belongs to, and processes that are stopped for a while, as by SIGSTOP.

While one is stopped, none of its tasks runs. What they wait for comes meanwhile, and time goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from unittest import mock

import trio

_RUN: Any = getattr(trio._core, "_run", None)

HERE: ContextVar[object] = ContextVar("HERE", default=None)
"""What a task and all that it starts belong to."""


class Stops:
    """Which processes are stopped, and their tasks that would run otherwise."""

    def __init__(self) -> None:
        self._waiting: dict[object, list[trio.lowlevel.Task]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, trio asks this before it runs a task."""
        schedule = _RUN.Runner.reschedule

        def reschedule(runner: Any, task: trio.lowlevel.Task, *outcome: Any) -> None:
            schedule(runner, task, *outcome)
            waiting = self._waiting.get(task.context.get(HERE)) if self._waiting else None
            if waiting is not None:
                waiting.append(runner.runq.pop())

        with mock.patch.object(_RUN.Runner, "reschedule", reschedule):
            yield

    def stop(self, process: object) -> None:
        """From now on none of its tasks runs."""
        if process in self._waiting:
            return
        queue = _RUN.GLOBAL_RUN_CONTEXT.runner.runq
        self._waiting[process] = [task for task in queue if task.context.get(HERE) is process]
        others = [task for task in queue if task.context.get(HERE) is not process]
        queue.clear()
        queue.extend(others)

    def go_on(self, process: object) -> None:
        """It runs again."""
        _RUN.GLOBAL_RUN_CONTEXT.runner.runq.extend(self._waiting.pop(process, ()))

    def is_stopped(self, process: object) -> bool:
        """Whether it is."""
        return process in self._waiting
