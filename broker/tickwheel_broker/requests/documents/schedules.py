"""Requests about recurring schedules: list, create, change, delete, trigger."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import trio

from tickwheel.protocol.bodies.requests import encode_entry, encode_map
from tickwheel.protocol.bodies.schedules import (
    MAX_SCHEDULES,
    DeleteSchedule,
    DeleteScheduleOk,
    GetSchedules,
    SetSchedule,
    TriggerSchedule,
    TriggerScheduleOk,
)
from tickwheel.protocol.errors import BadSchedule, ScheduleExists, TooManySchedules
from tickwheel.protocol.limits import MAX_HEADERS_BYTES, MAX_TIME_MS
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.documents import schedule_slots
from tickwheel_broker.documents.schedule_slots import Schedule
from tickwheel_broker.documents.schedules import HEADER, Schedules
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.topics import open_topic
from tickwheel_broker.security.grants import Identity
from timerlog.commitlog.log import CommitLog
from timerlog.engine.topics import Topics
from timerlog.settings import StoreSettings, effective_settings
from timerlog.tables.tables import Tables

T = TypeVar("T")

_PAGE: Final = 100
_BREAK: Final = 10
"""Schedules between two breaks of a list."""
_UPCOMING: Final = 5
_MARGIN_BYTES: Final = 4_096
"""What an answer and a document take beside the body and the headers."""


class ScheduleRequests:
    """Show, set, delete, trigger."""

    def __init__(
        self,
        *,
        topics: Topics,
        tables: Tables,
        log: CommitLog,
        defaults: StoreSettings,
        clock: Clock,
        settings: Settings,
        schedules: Schedules,
    ) -> None:
        self._topics = topics
        self._tables = tables
        self._log = log
        self._defaults = defaults
        """Hold for a topic where it has no settings of its own."""
        self._clock = clock
        self._settings = settings
        self._schedules = schedules
        self._turn: trio.CapacityLimiter = trio.CapacityLimiter(1)
        """One request at a time looks for slots, so that the breaks between its steps are for everything else."""

    def show(self, request: GetSchedules, asked: Asked) -> Work:
        """SCHEDULES."""
        if request.fields is not None:
            return partial(self._preview, request, self._of_preview(request, request.fields))
        if request.name is not None:
            return partial(self._one, request, self._schedules.get(request.name))
        return partial(self._page, request, asked)

    async def _one(self, request: GetSchedules, schedule: Schedule) -> bytes:
        async with self._turn:
            return encode_map({"schedules": [await self._listed(schedule, request)], "more": False})

    async def _page(self, request: GetSchedules, asked: Asked) -> bytes:
        """What changes meanwhile is listed as it is when its turn comes."""
        schedules = self._schedules.schedules
        async with self._turn:
            names = sorted(
                name
                for name, schedule in schedules.items()
                if name > request.after and asked.caller.identity.sees(schedule.topic)
            )
            page: list[msgspec.Raw] = []
            most = min(_PAGE, request.limit or _PAGE)
            room_bytes = self._settings.max_frame_bytes - _MARGIN_BYTES
            for number, name in enumerate(names):
                if name not in schedules:
                    continue
                if len(page) == most:
                    return encode_map({"schedules": page, "more": True})
                entry = encode_entry(await self._listed(schedules[name], request))
                room_bytes -= len(memoryview(entry))
                if page and room_bytes < 0:
                    return encode_map({"schedules": page, "more": True})
                page.append(entry)
                if number % _BREAK == 0:
                    await trio.lowlevel.checkpoint()
            return encode_map({"schedules": page, "more": False})

    def _of_preview(self, request: GetSchedules, fields: dict[str, Any]) -> Schedule:
        """Raises BadSchedule."""
        from_ms = self._begin_ms(request)
        base = {"name": "preview", "topic": "", "start_ms": from_ms, "last_slot_ms": from_ms}
        schedule = schedule_slots.merged(base, fields)
        schedule_slots.check(schedule)
        return schedule

    async def _preview(self, request: GetSchedules, schedule: Schedule) -> bytes:
        """From the moment on that the schedule is of."""
        from_ms = schedule.last_slot_ms
        async with self._turn:
            slots = await _whole(schedule_slots.upcoming_in_steps(schedule, from_ms, request.count))
            until_ms = slots[-1] if slots else from_ms
            skipped = await _whole(schedule_slots.skipped_in_steps(schedule, from_ms, until_ms))
        return encode_map(
            {
                "times": [[slot_ms, schedule_slots.repeated(schedule, slot_ms)] for slot_ms in slots],
                "skipped": [local.isoformat() for local in skipped],
            }
        )

    async def _listed(self, schedule: Schedule, request: GetSchedules) -> dict[str, Any]:
        count = 0 if schedule.paused else request.count
        trouble = ""
        upcoming: list[int] = []
        try:
            upcoming = await _whole(
                schedule_slots.upcoming_in_steps(schedule, self._begin_ms(request), count)
            )
        except BadSchedule as error:
            trouble = str(error)
        return self._described(schedule, upcoming, trouble)

    def _begin_ms(self, request: GetSchedules) -> int:
        return self._clock.now_ms() if request.from_ms is None else request.from_ms

    def _described(self, schedule: Schedule, upcoming: list[int], trouble: str = "") -> dict[str, Any]:
        """``trouble``: what was found out just now; what keeps it from sending is told first."""
        told = self._schedules.troubles.get(schedule.name, "") or trouble
        fields = schedule_slots.fields_of(schedule)
        del fields["born"]  # clients have no use for it
        return {**fields, "next_ms": upcoming, "trouble": told}

    def _set(self, schedule: Schedule) -> bytes:
        """A schedule that was just set."""
        count = 0 if schedule.paused else _UPCOMING
        try:
            upcoming = schedule_slots.upcoming(schedule, self._clock.now_ms(), count)
        except BadSchedule as error:
            return encode_map(self._described(schedule, [], str(error)))
        return encode_map(self._described(schedule, upcoming))

    def set(self, request: SetSchedule, asked: Asked) -> bytes:
        """SET_SCHEDULE: everything is checked before anything is changed."""
        schedules = self._schedules
        check_name(request.name, "schedule")
        asked.expect(self._set)
        if request.create:
            self._create(request, asked.caller.identity)
        else:
            known = schedules.get(request.name)
            self._check(schedule_slots.merged(known, request.fields), asked.caller.identity)
            schedules.change(request.fields, known)
        return self._set(schedules.get(request.name))

    def _create(self, request: SetSchedule, identity: Identity) -> None:
        """Creating what is there with exactly the same settings changes nothing, a pause neither: it is how a repeated
        request ends, and how programs declare what they need."""
        schedules, now_ms = self._schedules, self._clock.now_ms()
        known = schedules.schedules.get(request.name)
        start_ms = now_ms if known is None else known.start_ms
        base = {"name": request.name, "last_slot_ms": now_ms, "start_ms": start_ms}
        schedule = schedule_slots.merged(base, request.fields)
        if known is not None:
            if not schedule_slots.says_the_same(known, schedule):
                raise ScheduleExists(
                    f"There is a schedule {request.name!r} already, and it has other settings."
                )
            return
        if len(schedules.schedules) >= MAX_SCHEDULES:
            raise TooManySchedules
        self._check(schedule, identity)
        if not schedule_slots.upcoming(schedule, now_ms, 1):
            raise BadSchedule("The schedule ends before its first time.")
        schedules.create(schedule)

    def _check(self, schedule: Schedule, identity: Identity) -> None:
        """Raises BadSchedule, BadTopicName, UnknownTopic, TooManyTopics, DiskFull."""
        check_name(schedule.topic, "topic")
        schedule_slots.check(schedule)
        self._check_size(schedule)
        open_topic(self._topics, self._settings, identity, schedule.topic, self._clock.now_ms())

    def _check_size(self, schedule: Schedule) -> None:
        most_bytes = self._settings.max_body_bytes
        if schedule.topic in self._tables.topic_ids:
            own = self._topics.record(schedule.topic).settings
            most_bytes = min(most_bytes, int(effective_settings(own, self._defaults)["max_body_bytes"]))
        # A slot's message and the schedule itself, which has the body too, are one record.
        most_bytes = min(most_bytes, self._log.largest_record_bytes // 2 - MAX_HEADERS_BYTES - _MARGIN_BYTES)
        if len(schedule.body) > most_bytes:
            raise BadSchedule(f"The body has {len(schedule.body):,} bytes; {most_bytes:,} are possible.")
        longest = {"name": schedule.name, "slot_ms": MAX_TIME_MS}
        try:
            headers_bytes = len(encode_map({**schedule.headers, HEADER: longest}))
        except TypeError as error:
            raise BadSchedule(f"The headers cannot be stored: {error}.") from None
        if headers_bytes > MAX_HEADERS_BYTES:
            raise BadSchedule(
                f"The headers have {headers_bytes:,} bytes; {MAX_HEADERS_BYTES:,} are possible."
            )

    def delete(self, request: DeleteSchedule, asked: Asked) -> DeleteScheduleOk:
        """DELETE_SCHEDULE."""
        asked.expect(lambda _: DeleteScheduleOk())
        self._schedules.remove(request.name)
        return DeleteScheduleOk()

    def trigger(self, request: TriggerSchedule, asked: Asked) -> TriggerScheduleOk:
        """TRIGGER_SCHEDULE: one message now, beside the rhythm."""
        asked.expect(lambda stored: TriggerScheduleOk(stored[0][0]))
        message_id = self._schedules.trigger(request.name, request.token)
        return TriggerScheduleOk(message_id)


async def _whole(steps: Iterable[T | None]) -> list[T]:
    """All that is found, with something else done at each None."""
    found: list[T] = []
    for one in steps:
        if one is None:
            await trio.lowlevel.checkpoint()
        else:
            found.append(one)
    return found
