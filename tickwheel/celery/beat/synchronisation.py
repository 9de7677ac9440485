"""Makes the schedules of the broker those of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tickwheel import Schedule, sync
from tickwheel.celery.beat.plan import PlannedSchedule
from tickwheel.celery.names import SCHEDULE_PREFIX
from tickwheel.celery.slots import mark_of
from tickwheel.client.times import EPOCH
from tickwheel.errors import BadSchedule, ScheduleExists, TooManySchedules, UnknownSchedule


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
            elif _changes(known, one):
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
            except (BadSchedule, TooManySchedules) as error:
                done.refused[one.name] = str(error)
        for name, known in there.items():
            if name not in names and self._is_own(known):
                try:
                    self._client.delete_schedule(name)
                    done.deleted.append(name)
                except UnknownSchedule:
                    pass  # another beat has deleted it
        return done

    def _write(self, planned: PlannedSchedule, known: Schedule | None, done: Written) -> None:
        if known is None:
            try:
                self._client.create_schedule(planned.name, planned.message.topic, **_fields(planned))
                done.created.append(planned.name)
                return
            except ScheduleExists:
                known = self._client.schedule(planned.name, count=0)  # another beat was faster
        if not self._is_own(known):
            done.foreign.append(planned.name)
            return
        changes = _changes(known, planned)
        if changes:
            self._client.set_schedule(planned.name, **changes)
            done.changed.append(planned.name)

    def _schedules(self) -> dict[str, Schedule]:
        found = self._client.schedules(count=0)
        return {one.name: one for one in found if one.name.startswith(SCHEDULE_PREFIX)}

    def _is_own(self, schedule: Schedule) -> bool:
        mark = mark_of(schedule.headers)
        return mark is not None and mark.app == self._mark


def _fields(planned: PlannedSchedule) -> dict[str, Any]:
    message = planned.message
    fields = {"body": message.body, "headers": message.headers, "priority": message.priority}
    return {**fields, **_rhythm_fields(planned)}


def _rhythm_fields(planned: PlannedSchedule) -> dict[str, Any]:
    rhythm = planned.rhythm
    if rhythm.cron:
        return {"cron": rhythm.cron, "tz": rhythm.tz, "start": EPOCH}
    every = timedelta(milliseconds=rhythm.every_ms)
    if rhythm.offset_ms is None:
        # As with Celery's own beat, the first one is an interval away, and clocks may differ.
        return {"every": every, "start": datetime.now(UTC) + every}
    return {"every": every, "start": EPOCH + timedelta(milliseconds=rhythm.offset_ms)}


def _changes(known: Schedule, planned: PlannedSchedule) -> dict[str, Any]:
    """What to set so that a schedule is as planned."""
    message, changes = planned.message, dict[str, Any]()
    if not _has_rhythm(known, planned):
        changes |= _rhythm_fields(planned)
    if known.topic != message.topic:
        changes["topic"] = message.topic
    if known.body != message.body:
        changes["body"] = message.body
    if known.headers != message.headers:
        changes["headers"] = message.headers
    if known.priority != message.priority:
        changes["priority"] = message.priority
    return changes


def _has_rhythm(known: Schedule, planned: PlannedSchedule) -> bool:
    rhythm = planned.rhythm
    if rhythm.cron:
        return (known.cron, known.tz) == (rhythm.cron, rhythm.tz)
    return known.every_ms == rhythm.every_ms and rhythm.offset_ms in (None, known.start_ms)
