"""What can go wrong with tasks of Django, as typed errors. The last three stand in the results of tasks."""

from __future__ import annotations

from tickwheel.protocol.errors import TickwheelError


class DjangoMissing(TickwheelError, ImportError):
    """``tickwheel.django`` was imported, and Django's tasks are not installed."""

    code = "extra_missing"
    advice = (
        "Install them: pip install 'tickwheel[django]'; with Django 5.2 on Python 3.12 also django-tasks."
    )


class TaskCancelled(TickwheelError):
    """The task was cancelled before it began, or before it was tried again."""

    code = "task_cancelled"
    advice = "Enqueue it again if it is to run."


class TimeLimitExceeded(TickwheelError, TimeoutError):
    """The task ran for longer than its time limit, and the process that ran it has ended."""

    code = "time_limit_exceeded"
    advice = "Raise the time limit, or have the task do less at once."


class WorkerLost(TickwheelError):
    """The process that ran the task ended without a word: it was killed, or ran out of memory."""

    code = "worker_lost"
    advice = "Look into the system's log for what ended it."
