"""The names of Django's tasks: of Django 6 itself, or of the package ``django-tasks`` for earlier versions."""

from __future__ import annotations

import importlib
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


def _named(module: str, *names: str) -> Any:
    """What has the first of these names that there is: both packages have the same classes, some by other names."""
    home = importlib.import_module(f"{PACKAGE}{module}")
    return next(getattr(home, name) for name in names if hasattr(home, name))


BaseTaskBackend: Any = _named(".backends.base", "BaseTaskBackend")
InvalidTask: Any = _named(".exceptions", "InvalidTask", "InvalidTaskError")
InvalidTaskBackend: Any = _named(".exceptions", "InvalidTaskBackend", "InvalidTaskBackendError")
Task: Any = _named(".base", "Task")
TaskContext: Any = _named(".base", "TaskContext")
TaskError: Any = _named(".base", "TaskError")
TaskResult: Any = _named(".base", "TaskResult")
TaskResultDoesNotExist: Any = _named(".exceptions", "TaskResultDoesNotExist")
TaskResultStatus: Any = _named(".base", "TaskResultStatus")
signals: Any = importlib.import_module(f"{PACKAGE}.signals")
task_backends: Any = _named("", "task_backends")
normalize_json: Any = importlib.import_module(
    "django.utils.json" if IS_BUILT_IN else "django_tasks.utils"
).normalize_json
