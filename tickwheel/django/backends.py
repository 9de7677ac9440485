"""The Tickwheel backends of a project, by their aliases in ``TASKS``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.core.management.base import CommandError

from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.framework import InvalidTaskBackend, task_backends
from tickwheel.django.options import queue_trouble


def tickwheel_backends() -> list[TickwheelBackend]:
    """All of them. Raises InvalidTaskBackend."""
    return [
        one for one in (task_backends[alias] for alias in task_backends) if isinstance(one, TickwheelBackend)
    ]


def backend_named(alias: str) -> TickwheelBackend:
    """For commands. Raises CommandError."""
    aliases = list(task_backends)
    if alias not in aliases:
        raise CommandError(f"TASKS has no backend {alias!r}. Name one with --backend: {', '.join(aliases)}.")
    try:
        backend = task_backends[alias]
        if not isinstance(backend, TickwheelBackend):
            raise CommandError(
                f"TASKS[{alias!r}] is a {type(backend).__name__}. Name a TickwheelBackend with --backend."
            )
        backend.settings  # noqa: B018 - raises what is wrong with it
    except InvalidTaskBackend as error:
        raise CommandError(str(error)) from None
    return backend


def queues_named(backend: TickwheelBackend, names: Sequence[str]) -> list[str]:
    """The queues that are to be worked on; all of QUEUES if none is named. Raises CommandError."""
    queues = list(dict.fromkeys(names)) or sorted(backend.queues)
    if not queues:
        raise CommandError(
            "QUEUES is empty, so any name is allowed: name the queues that are to be worked on."
        )
    _check(backend, queues)
    return queues


def _check(backend: TickwheelBackend, queues: Iterable[str]) -> None:
    for queue in queues:
        if backend.queues and queue not in backend.queues:
            known = ", ".join(sorted(backend.queues))
            raise CommandError(f"{queue!r} is no queue of this backend. Its QUEUES are {known}.")
        trouble = queue_trouble(backend.settings, queue)
        if trouble is not None:
            raise CommandError(str(trouble))
