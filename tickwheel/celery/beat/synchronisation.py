"""Makes the schedules of the broker those of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec

from tickwheel import Schedule, sync
from tickwheel.celery.beat.message import TaskMessage
from tickwheel.celery.beat.plan import PlannedSchedule
from tickwheel.celery.beat.rhythm import Rhythm
from tickwheel.celery.names import SCHEDULE_PREFIX
from tickwheel.celery.slots import mark_of
from tickwheel.client.times import EpochMs
from tickwheel.errors import (
    BadSchedule,
    BodyTooLarge,
    Forbidden,
    HeadersTooLarge,
    ScheduleExists,
    TooManySchedules,
    TooManyTopics,
    UnknownSchedule,
)

_REFUSALS: Final = (BadSchedule, BodyTooLarge, Forbidden, HeadersTooLarge, TooManySchedules, TooManyTopics)
"""What is wrong with one schedule, and will be."""


class Differences(msgspec.Struct):
    """How the broker's schedules differ from those that are planned, by name."""

    missing: list[str] = []
    changed: list[str] = []
    superfluous: list[str] = []
    """They have this app's mark, and are not planned."""
    foreign: list[str] = []
    """They have a name that is planned, and another app's mark or none."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.superfluous or self.foreign)


class Written(msgspec.Struct):
    """What was done, by name of the schedule."""

    created: list[str] = []
    changed: list[str] = []
    deleted: list[str] = []
    foreign: list[str] = []
    """Those of another app, or of no app, which stay as they are."""
    refused: dict[str, str] = {}
    """Those that the broker does not take, and why."""


class Synchronisation:
    """Compares and writes the schedules of one app. Only those with its mark are ever changed or deleted; what it does
    not say (paused, overlap, catch-up, window, end) stays as it is."""

    def __init__(self, client: sync.Client, mark: str) -> None:
        self._client = client
        self._mark = mark

    def compare(self, planned: Iterable[PlannedSchedule]) -> Differences:
        """Changes nothing. Raises TickwheelError."""
        there, found = self._schedules(), Differences([], [], [], [])
        names = set()
        for one in planned:
            names.add(one.name)
            known = there.get(one.name)
            if known is None:
                found.missing.append(one.name)
            elif not self._is_own(known):
                found.foreign.append(one.name)
            elif _message_changes(known, one.message) or not _has_rhythm(known, one.rhythm):
                found.changed.append(one.name)
        found.superfluous += [
            name for name, known in there.items() if name not in names and self._is_own(known)
        ]
        return found

    def write(self, planned: Iterable[PlannedSchedule]) -> Written:
        """Creates, changes and deletes until they are as planned. It may be done by several beats at once. Raises
        TickwheelError; what was done until then stays."""
        there, done = self._schedules(), Written([], [], [], [], {})
        names = set()
        for one in planned:
            names.add(one.name)
            try:
                self._write(one, there.get(one.name), done)
            except _REFUSALS as error:
                done.refused[one.name] = str(error)
                names.discard(one.name)  # as it was before it may not stay, beside a beat that keeps it now
        for name, known in there.items():
            if name not in names and self._is_own(known):
                with suppress(UnknownSchedule):  # another beat has deleted it
                    self._client.delete_schedule(name)
                    done.deleted.append(name)
        return done

    def _write(self, planned: PlannedSchedule, known: Schedule | None, done: Written) -> None:
        while True:
            if known is None:
                with suppress(ScheduleExists):  # another beat was faster
                    fields = {**_fields(planned.message), **self._rhythm(planned.rhythm)}
                    self._client.create_schedule(planned.name, planned.message.topic, **fields)
                    done.created.append(planned.name)
                    return
            else:
                with suppress(UnknownSchedule):  # it was deleted meanwhile
                    self._change(planned, known, done)
                    return
            known = self._find(planned.name)

    def _find(self, name: str) -> Schedule | None:
        try:
            return self._client.schedule(name, count=0)
        except UnknownSchedule:
            return None

    def _change(self, planned: PlannedSchedule, known: Schedule, done: Written) -> None:
        if not self._is_own(known):
            done.foreign.append(planned.name)
            return
        changes = _message_changes(known, planned.message)
        if not _has_rhythm(known, planned.rhythm):
            changes |= self._rhythm(planned.rhythm)
        if changes:
            self._client.set_schedule(planned.name, **changes)
            done.changed.append(planned.name)

    def _schedules(self) -> dict[str, Schedule]:
        found = self._client.schedules(count=0)
        return {one.name: one for one in found if one.name.startswith(SCHEDULE_PREFIX)}

    def _is_own(self, schedule: Schedule) -> bool:
        mark = mark_of(schedule.headers)
        return mark is not None and mark.app == self._mark

    def _rhythm(self, rhythm: Rhythm) -> dict[str, Any]:
        """What makes a schedule have it from now on."""
        if rhythm.cron:
            return {"cron": rhythm.cron, "tz": rhythm.tz, "start": EpochMs(0)}
        every = timedelta(milliseconds=rhythm.every_ms)
        # As with Celery's own beat, the first one is an interval away.
        start_ms = self._now_ms() if rhythm.offset_ms is None else rhythm.offset_ms
        return {"every": every, "start": EpochMs(start_ms)}

    def _now_ms(self) -> int:
        """By the broker's clock, and without a right to look at its figures: the next slot of what comes each ms."""
        return self._client.preview_schedule(every=timedelta(milliseconds=1), count=1).times[0].time_ms - 1


def _fields(message: TaskMessage) -> dict[str, Any]:
    return {"body": message.body, "headers": message.headers, "priority": message.priority}


def _message_changes(known: Schedule, message: TaskMessage) -> dict[str, Any]:
    """What to set so that a schedule sends this message."""
    wanted = {"topic": message.topic, **_fields(message)}
    return {name: value for name, value in wanted.items() if getattr(known, name) != value}


def _has_rhythm(known: Schedule, rhythm: Rhythm) -> bool:
    if rhythm.cron:
        return (known.cron, known.tz, known.start_ms) == (rhythm.cron, rhythm.tz, 0)
    return known.every_ms == rhythm.every_ms and rhythm.offset_ms in (None, known.start_ms)
