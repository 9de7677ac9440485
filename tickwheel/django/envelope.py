"""A task as the message that the broker gets: JSON, whose key is the id of the result."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from tickwheel.django.framework import InvalidTask
from tickwheel.protocol.headers import readable_headers

MOST_PRIORITY: Final = 100
LEAST_PRIORITY: Final = -100
_BROKER_PRIORITIES: Final = 255
_SCHEDULE_HEADER: Final = "tickwheel-schedule"
_RUNS_OF_SCHEDULES: Final = uuid.UUID("8b0c6e0e-6c9a-5b6f-9a55-3f3a1f0b5d53")


class Delivered(Protocol):
    """A message, as the blocking client has it."""

    @property
    def body(self) -> bytes:
        """What was sent."""

    @property
    def headers(self) -> dict[str, Any]:
        """What was sent with it."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a worker must know of a task. ``id``: of the result. ``schedule``: whose slot it is; empty: none's."""

    id: str
    task_path: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue: str
    priority: int
    run_after: str | None = None
    enqueued_at: str | None = None
    schedule: str = ""

    def encode(self) -> bytes:
        """As the body of a message."""
        fields = {
            "task": self.task_path,
            "args": self.args,
            "kwargs": self.kwargs,
            "backend": self.backend,
            "queue": self.queue,
            "priority": self.priority,
        }
        more = {
            "id": self.id,
            "run_after": self.run_after,
            "enqueued_at": self.enqueued_at,
            "schedule": self.schedule,
        }
        return json.dumps(
            fields | {name: value for name, value in more.items() if value}, separators=(",", ":")
        ).encode()


def decode(message: Delivered) -> Envelope:
    """The task of a message. Raises ValueError for what is none.

    The message of a schedule has no id of its own: it follows from the schedule and the slot, so that a slot that is
    delivered twice is one run.
    """
    try:
        found = json.loads(message.body)
        schedule = str(found.get("schedule", ""))
        run_id = found["id"] if not schedule else _id_of_slot(message)
        return Envelope(
            id=str(run_id),
            task_path=str(found["task"]),
            args=list(found["args"]),
            kwargs=dict(found["kwargs"]),
            backend=str(found["backend"]),
            queue=str(found["queue"]),
            priority=int(found["priority"]),
            run_after=found.get("run_after"),
            enqueued_at=found.get("enqueued_at"),
            schedule=schedule,
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"The message is no task of Django: {type(error).__name__}: {error}") from None


def _id_of_slot(message: Delivered) -> str:
    slot = (readable_headers(message) or {}).get(_SCHEDULE_HEADER)
    if slot is None:
        raise ValueError("it has no slot of its schedule")
    return uuid.uuid5(_RUNS_OF_SCHEDULES, json.dumps(slot, sort_keys=True, default=str)).hex


def new_id() -> str:
    """Of a result."""
    return uuid.uuid4().hex


def broker_priority(priority: int) -> int:
    """From -100 to 100, where larger goes first, to 255 to 0, where smaller does; no two become one.

    >>> [broker_priority(one) for one in (100, 1, 0, -1, -100)]
    [0, 126, 128, 129, 255]
    """
    span = MOST_PRIORITY - LEAST_PRIORITY
    return ((MOST_PRIORITY - priority) * _BROKER_PRIORITIES + span // 2) // span


def iso(moment: datetime | None) -> str | None:
    """A moment as text, with its zone if it has one."""
    return None if moment is None else moment.isoformat()


def check_size(body: bytes, most_bytes: int) -> None:
    """Raises InvalidTask for a body that the broker would refuse."""
    if len(body) > most_bytes:
        raise InvalidTask(
            f"The arguments of the task make a message of {len(body):,} bytes, and the broker takes {most_bytes:,}. "
            "Store them, and enqueue the task with the key of what was stored."
        )
