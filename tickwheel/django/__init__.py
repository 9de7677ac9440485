"""Tasks of Django whose queue is a Tickwheel broker: ``run_after`` to the millisecond, cancelled and moved while
they wait.

For ``settings.py``::

    INSTALLED_APPS = [..., "tickwheel.django"]
    TASKS = {
        "default": {
            "BACKEND": "tickwheel.django.TickwheelBackend",
            "OPTIONS": {"url": "tickwheel://127.0.0.1:7411", "via": "outbox"},
        }
    }

``manage.py tickwheel_worker`` runs them. With ``via="outbox"`` a task exists if and only if the transaction in which
it was enqueued has committed. For Django 6, and for Django 5.2 with the package ``django-tasks``: ``pip install
'tickwheel[django]'``. docs/how-to/django-tasks.md has the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tickwheel.django import framework as _framework  # says what is missing

if TYPE_CHECKING:
    from tickwheel.django.backend import TickwheelBackend
    from tickwheel.django.errors import DjangoMissing, TaskCancelled, TimeLimitExceeded, WorkerLost
    from tickwheel.django.testing import TickwheelTestMixin

TASKS_OF: Final = _framework.PACKAGE
"""Whose tasks these are: "django.tasks", or "django_tasks"."""

__all__ = [
    "TASKS_OF",
    "DjangoMissing",
    "TaskCancelled",
    "TickwheelBackend",
    "TickwheelTestMixin",
    "TimeLimitExceeded",
    "WorkerLost",
]

_HOMES: Final = {
    "DjangoMissing": "errors",
    "TaskCancelled": "errors",
    "TickwheelBackend": "backend",
    "TickwheelTestMixin": "testing",
    "TimeLimitExceeded": "errors",
    "WorkerLost": "errors",
}
"""Imported when first asked for: models can be imported only when Django has loaded its apps."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
