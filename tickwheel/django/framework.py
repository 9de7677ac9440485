"""The names of Django's tasks: of Django 6 itself, or of the package ``django-tasks`` for earlier versions."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from tickwheel.django.errors import DjangoMissing


def _home() -> str:
    """Which package has the tasks. Raises DjangoMissing."""
    if importlib.util.find_spec("django") is None:
        raise DjangoMissing("Django is not installed.")
    if importlib.util.find_spec("django.tasks") is not None:
        return "django.tasks"
    if importlib.util.find_spec("django_tasks") is not None:
        return "django_tasks"
    raise DjangoMissing("This Django has no tasks yet, and django-tasks, which has them, is not installed.")


PACKAGE: Final = _home()
IS_BUILT_IN: Final = PACKAGE == "django.tasks"

# Both packages have the same classes, partly by other names; types know neither.
BaseTaskBackend: Any
InvalidTask: Any
InvalidTaskBackend: Any
Task: Any
TaskContext: Any
TaskError: Any
TaskResult: Any
TaskResultDoesNotExist: Any
TaskResultStatus: Any
normalize_json: Any
signals: Any
task_backends: Any

if IS_BUILT_IN:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.utils.json import normalize_json
else:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

__all__ = [
    "IS_BUILT_IN",
    "PACKAGE",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task_backends",
]
