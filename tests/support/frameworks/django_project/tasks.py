"""Tasks, of each kind."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import tickwheel
from tests.support.frameworks.django_project.models import Letter

if "django_tasks" in sys.modules:
    from django_tasks import TaskContext, task
else:
    from django.tasks import TaskContext, task


class Unlucky(Exception):
    """Raised by tasks."""


@task()
def add(a: int, b: int = 1) -> int:
    """Returns something."""
    return a + b


@task()
async def add_async(a: int, b: int = 1) -> int:
    """Returns something, too."""
    return a + b


@task(queue_name="mails")
def write(text: str) -> None:
    """Stores something."""
    Letter.objects.create(text=text)


@task()
def fail(text: str = "no luck") -> None:
    """Never returns."""
    raise Unlucky(text)


@task()
def leave() -> None:
    """Wants to end its worker."""
    raise SystemExit(3)


@task()
def interrupt() -> None:
    """As Ctrl-C."""
    raise KeyboardInterrupt


@task()
def give_up() -> None:
    """Wants no other attempt."""
    raise tickwheel.GiveUp("no such customer")


@task(takes_context=True)
def later(context: TaskContext) -> int:
    """Wants another attempt, twice."""
    if context.attempt < 3:
        raise tickwheel.Retry(timedelta(minutes=5), "busy")
    return context.attempt


@task()
def wait_uncounted() -> None:
    """Is not to blame."""
    if not Letter.objects.exists():
        raise tickwheel.Retry(timedelta(minutes=1), counted=False)


@task()
def strange() -> Any:
    """Returns what is no JSON."""
    return lambda: True


@task(takes_context=True)
def identify(context: TaskContext, attempt: int) -> str:
    """Returns the id of its own result."""
    assert context.attempt == attempt
    return context.task_result.id


@task()
def enqueue_more(count: int) -> None:
    """Enqueues a task."""
    if count:
        enqueue_more.enqueue(count - 1)


@task()
def begin(folder: str, name: str, until: str = "") -> int:
    """Says that it has begun, and waits until there is a file; returns the process."""
    with Path(folder, f"begun-{name}-{os.getpid()}-{time.monotonic_ns()}").open("w"):
        pass
    while until and not Path(folder, until).exists():
        time.sleep(0.01)
    return os.getpid()


@task()
def die(folder: str, times: int) -> int:
    """Ends its process, so often."""
    before = len(list(Path(folder).glob("died-*")))
    if before < times:
        Path(folder, f"died-{os.getpid()}-{before}").touch()
        os._exit(9)
    return before


no_task = print
