"""``TICKWHEEL_SCHEDULES``: recurring tasks that are declared in the settings, and made schedules of the broker.

The broker keeps the time, so there is no process that must run once only: what a schedule sends is an ordinary task,
with a result of its own for each slot, however often it is delivered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.utils.module_loading import import_string

from tickwheel.client.admin.schedules import Schedule
from tickwheel.client.checks import shown
from tickwheel.client.columns import check_name
from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.envelope import Envelope, broker_priority
from tickwheel.django.framework import InvalidTask, Task, normalize_json
from tickwheel.django.options import Trouble, seconds_or_timedelta
from tickwheel.protocol.errors import BadArgument, TickwheelError, UnknownSchedule
from tickwheel.sync import Client

SETTING: Final = "TICKWHEEL_SCHEDULES"
_RHYTHM: Final = ("cron", "tz", "every")
_BROKER: Final = ("overlap", "catch_up", "window")
_TASK: Final = ("task", "args", "kwargs", "queue", "priority", "backend")
_KNOWN: Final = (*_TASK, *_RHYTHM, *_BROKER)
_PROJECT_HEADER: Final = "django-project"
"""Whose a schedule is, in the headers of what it sends."""
_CHOICES: Final = {"overlap": ("allow", "skip"), "catch_up": ("none", "last", "all")}


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule of the settings, as the broker is to have it."""

    name: str
    backend: TickwheelBackend
    topic: str
    body: bytes
    priority: int
    rhythm: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)

    def differs_from(self, found: Schedule) -> bool:
        """Whether the broker has something else under this name."""
        wanted = (
            self.topic,
            self.body,
            self.priority,
            self.rhythm.get("cron") or "",
            self.rhythm["tz"],
            self.rhythm.get("every") or timedelta(0),
            self.more.get("overlap", "allow"),
            self.more.get("catch_up", "last"),
            self.more.get("window", timedelta(0)),
        )
        return wanted != (
            found.topic,
            found.body,
            found.priority,
            found.cron,
            found.tz,
            found.every,
            found.overlap,
            found.catch_up,
            found.window,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done, or was done, with one schedule: "create", "change", "delete", "keep"."""

    action: str
    name: str
    detail: str = ""


def declared_schedules() -> tuple[list[Declared], list[tuple[str, Trouble]]]:
    """Those of the settings, and what is wrong with them, by name. Raises InvalidTaskBackend."""
    given = getattr(settings, SETTING, {})
    if not isinstance(given, Mapping):
        return [], [("", Trouble(f"it is {shown(given)}.", "Give a dict of schedules by their names."))]
    found: list[Declared] = []
    troubles: list[tuple[str, Trouble]] = []
    for name, entry in given.items():
        try:
            found.append(_declared(name, entry))
        except Trouble as trouble:
            troubles.append((str(name), trouble))
    return found, troubles


def _declared(name: Any, entry: Any) -> Declared:
    """Raises Trouble."""
    if not isinstance(entry, Mapping):
        raise Trouble(f"it is {shown(entry)}.", "Give a dict with 'task', and 'cron' or 'every'.")
    unknown = [one for one in entry if one not in _KNOWN]
    if unknown:
        raise Trouble(f"there is no {shown(unknown[0])}.", f"Use {', '.join(_KNOWN)}.")
    task = _task_of(entry)
    backend = task.get_backend()
    if not isinstance(backend, TickwheelBackend):
        raise Trouble(
            f"the backend {task.backend!r} is a {type(backend).__name__}.",
            "Name a TickwheelBackend as 'backend'.",
        )
    options = backend.settings
    full_name = f"{options.prefix}{name}"
    try:
        check_name(full_name, "schedule")
        args = normalize_json(list(_sequence(entry.get("args", ()))))
        kwargs = normalize_json(dict(_mapping(entry.get("kwargs", {}))))
    except (TickwheelError, TypeError, ValueError) as error:
        raise Trouble(f"{error}", "args is a list, kwargs a dict, and both are JSON.") from None
    envelope = Envelope(
        id="",
        task_path=task.module_path,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        queue=task.queue_name,
        priority=int(task.priority),
        schedule=str(name),
    )
    return Declared(
        name=full_name,
        backend=backend,
        topic=options.topic_of(task.queue_name),
        body=envelope.encode(),
        priority=broker_priority(int(task.priority)),
        rhythm=_rhythm(entry),
        more=_more(entry),
    )


def _task_of(entry: Mapping[str, Any]) -> Any:
    path = entry.get("task")
    hint = "Give the path of a task, such as 'shop.tasks.report'."
    if not isinstance(path, str):
        raise Trouble(f"its task is {shown(path)}.", hint)
    try:
        found = import_string(path)
    except ImportError as error:
        raise Trouble(f"its task cannot be imported: {error}", hint) from None
    if not isinstance(found, Task):
        raise Trouble(f"{path} is no task.", "Decorate the function with @task.")
    try:
        return found.using(
            backend=entry.get("backend"), queue_name=entry.get("queue"), priority=entry.get("priority")
        )
    except (InvalidTask, TypeError) as error:
        raise Trouble(str(error), "Correct queue and priority.") from None


def _sequence(value: Any) -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"args is {shown(value)}.")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"kwargs is {shown(value)}.")
    return value


def _rhythm(entry: Mapping[str, Any]) -> dict[str, Any]:
    cron, every = entry.get("cron"), entry.get("every")
    if (cron is None) == (every is None):
        raise Trouble(
            "it needs either 'cron' or 'every'.", "Give 'cron': '0 3 * * *', or 'every': timedelta(…)."
        )
    tz = entry.get("tz", settings.TIME_ZONE if cron is not None else "UTC")
    if not isinstance(tz, str):
        raise Trouble(f"its tz is {shown(tz)}.", "Give a name, such as 'Europe/Paris'.")
    if cron is not None:
        if not isinstance(cron, str):
            raise Trouble(f"its cron is {shown(cron)}.", "Give a text, such as '0 3 * * *'.")
        return {"cron": cron, "tz": tz}
    interval = seconds_or_timedelta(every, "every")
    if not interval:
        raise Trouble("every is 0.", "Give a timedelta, or seconds.")
    return {"every": interval, "tz": tz}


def _more(entry: Mapping[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    for name, choices in _CHOICES.items():
        if name in entry:
            if entry[name] not in choices:
                raise Trouble(f"its {name} is {shown(entry[name])}.", f"Give one of {', '.join(choices)}.")
            more[name] = entry[name]
    if "window" in entry:
        more["window"] = seconds_or_timedelta(entry["window"], "window")
    return more


def synchronise(
    client: Client, backend: TickwheelBackend, declared: Sequence[Declared], *, dry_run: bool
) -> Iterator[Change]:
    """Makes the broker's schedules of one backend those that are declared; what was made for it before, and is not
    declared any more, is deleted. Each change is told when it was made. Raises BadArgument before the first one if a
    name is another project's, or was made by hand; and what the broker raises: BadSchedule."""
    known = client.schedules(count=0)
    taken = {one.name for one in declared}
    found = {one.name: one for one in known if _is_of(backend, one)}
    others = sorted(one.name for one in known if one.name in taken and one.name not in found)
    if others:
        raise BadArgument(
            f"The broker has a schedule {others[0]!r} that is not of this project, {_project()!r}.",
            advice="Give the schedule another name, or the backend a prefix of its own.",
        )
    for one in declared:
        there = found.pop(one.name, None)
        if there is not None and not one.differs_from(there):
            yield Change("keep", one.name)
            continue
        if dry_run:
            client.preview_schedule(**one.rhythm, count=1)  # says what the broker would not take
        else:
            _write(client, one)
        rhythm = one.rhythm.get("cron") or f"every {one.rhythm['every']}"
        yield Change("create" if there is None else "change", one.name, f"{rhythm} to {one.topic}")
    for name in found:
        if not dry_run:
            with suppress(UnknownSchedule):  # another deployment has deleted it
                client.delete_schedule(name)
        yield Change("delete", name)


def _write(client: Client, one: Declared) -> None:
    """Makes the schedule, or changes what is there; another deployment may do the same, or delete it, meanwhile. A
    pause stays."""
    client._put_schedule(one.name, one.topic, **one.rhythm, **_settings(one))


def _is_of(backend: TickwheelBackend, schedule: Schedule) -> bool:
    """Whether a schedule was made for tasks of this backend, and not by hand."""
    if not schedule.name.startswith(backend.settings.prefix):
        return False
    try:
        body = json.loads(schedule.body)
    except (ValueError, RecursionError):
        return False
    is_ours = schedule.headers.get(_PROJECT_HEADER) == _project()
    return (
        is_ours
        and isinstance(body, dict)
        and bool(body.get("schedule"))
        and body.get("backend") == backend.alias
    )


def _project() -> str:
    """The name of this project: the first part of ROOT_URLCONF, which is the same wherever it runs."""
    return (getattr(settings, "ROOT_URLCONF", None) or "django").partition(".")[0]


def _settings(one: Declared) -> dict[str, Any]:
    """All of them, so that what is not declared any more is as if it never had been."""
    unsaid = {"overlap": "allow", "catch_up": "last", "window": timedelta(0)}
    headers = {_PROJECT_HEADER: _project()}
    return {"body": one.body, "priority": one.priority, "headers": headers, **unsaid, **one.more}
