"""Which schedules ``beat_schedule`` means, and which entries stay with beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

from tickwheel.celery.beat.errors import NotOnBroker
from tickwheel.celery.beat.message import TaskMessage, task_message
from tickwheel.celery.beat.rhythm import Rhythm, rhythm_of
from tickwheel.celery.names import schedule_name
from tickwheel.celery.slots import Mark

_EVERY_APPS: Final = "celery.backend_cleanup"


class PlannedSchedule(msgspec.Struct, frozen=True):
    """A schedule as it is to be at the broker."""

    name: str
    entry: str
    """The name in ``beat_schedule``."""
    rhythm: Rhythm
    message: TaskMessage


class Plan(msgspec.Struct):
    """What is to be done with each entry."""

    schedules: dict[str, PlannedSchedule]
    """By entry: those that the broker keeps."""
    own: dict[str, str]
    """By entry: those that beat keeps itself, and why."""


def app_mark(app: Celery) -> str:
    """The name under which an app knows its schedules again."""
    return str(app.main or "celery")


def name_of(app: Celery, entry: str) -> str:
    """The name of the schedule of an entry. The one that Celery adds by itself, in every app, has the app's in it."""
    return schedule_name(f"{app_mark(app)}.backend_cleanup" if entry == _EVERY_APPS else entry)


def configured_entries(app: Celery) -> dict[str, ScheduleEntry]:
    """The entries of ``beat_schedule``, and the one that Celery adds by itself."""
    scheduler = Scheduler(app, lazy=True)
    scheduler.merge_inplace(app.conf.beat_schedule or {})
    scheduler.install_default_entries(scheduler.schedule)
    return dict(scheduler.schedule)


def plan(app: Celery, entries: Mapping[str, ScheduleEntry]) -> Plan:
    """What the entries mean."""
    found = Plan({}, {})
    for name, entry in entries.items():
        try:
            found.schedules[name] = _planned(app, name, entry)
        except NotOnBroker as reason:
            found.own[name] = str(reason)
        except Exception as error:  # tasks, serializers and signals are other people's code
            found.own[name] = f"its message cannot be made ({error!r})"
    return found


def _planned(app: Celery, name: str, entry: Any) -> PlannedSchedule:
    rhythm = rhythm_of(entry.schedule, app.timezone)
    message = task_message(app, entry, Mark(app_mark(app), name))
    return PlannedSchedule(name_of(app, name), name, rhythm, message)
