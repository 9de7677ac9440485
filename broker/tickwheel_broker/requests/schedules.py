"""Requests about recurring schedules: list, create, change, delete, trigger."""

from __future__ import annotations

from typing import Any, Final

from tickwheel.protocol.bodies.requests import encode_map
from tickwheel.protocol.bodies.schedules import (
    DeleteSchedule,
    DeleteScheduleOk,
    GetSchedules,
    SetSchedule,
    TriggerSchedule,
    TriggerScheduleOk,
)
from tickwheel.protocol.errors import BadSchedule, ScheduleExists, TooManySchedules
from tickwheel.protocol.limits import MAX_HEADERS_BYTES, MAX_TIME_MS
from tickwheel_broker.background import schedule_slots as schedule_plan
from tickwheel_broker.background.schedule_slots import Schedule
from tickwheel_broker.background.schedules import HEADER, MOST, Schedules
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.requests.answers import Answers, check_name
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import expect
from timerlog.commitlog.log import CommitLog
from timerlog.engine.topics import Topics
from timerlog.settings import StoreSettings, effective_settings
from timerlog.tables.tables import Tables

_PAGE: Final = 100
_UPCOMING: Final = 5
_MARGIN_BYTES: Final = 4_096
"""What an answer and a document take beside the body and the headers."""


class ScheduleRequests:
    """Show, set, delete, trigger."""

    def __init__(
        self,
        topics: Topics,
        tables: Tables,
        log: CommitLog,
        defaults: StoreSettings,
        clock: Clock,
        settings: Settings,
        schedules: Schedules,
        answers: Answers,
    ) -> None:
        """`defaults` hold for a topic where it has no settings of its own."""
        self._topics = topics
        self._tables = tables
        self._log = log
        self._defaults = defaults
        self._clock = clock
        self._settings = settings
        self._schedules = schedules
        self._answers = answers

    def show(self, caller: Caller, correlation: int, request: GetSchedules) -> None:
        """SCHEDULES."""
        schedules = self._schedules
        if request.name is not None:
            found = [self._described(schedules.get(request.name), request.count)]
            self._answers.when_durable(
                caller, correlation, request, encode_map({"schedules": found, "more": False})
            )
            return
        names = sorted(
            name
            for name, schedule in schedules.schedules.items()
            if name > request.after and caller.identity.sees(schedule.topic)
        )
        page: list[dict[str, Any]] = []
        room_bytes = self._settings.max_frame_bytes - _MARGIN_BYTES
        for name in names[:_PAGE]:
            entry = self._described(schedules.schedules[name], request.count)
            room_bytes -= len(encode_map(entry))
            if page and room_bytes < 0:
                break
            page.append(entry)
        answer = {"schedules": page, "more": len(page) < len(names)}
        self._answers.when_durable(caller, correlation, request, encode_map(answer))

    def _described(self, schedule: Schedule, count: int) -> dict[str, Any]:
        fields = schedule_plan.fields_of(schedule)
        trouble = self._schedules.troubles.get(schedule.name, "")
        try:
            upcoming = schedule_plan.upcoming(schedule, self._clock.now_ms(), 0 if schedule.paused else count)
        except BadSchedule as error:
            upcoming, trouble = [], trouble or str(error)
        return {**fields, "next_ms": upcoming, "trouble": trouble}

    def set(self, caller: Caller, correlation: int, request: SetSchedule) -> None:
        """SET_SCHEDULE: everything is checked before anything is changed."""
        schedules = self._schedules
        check_name(request.name, "schedule")
        expect(caller, correlation, lambda known: encode_map(self._described(known, _UPCOMING)))
        if request.create:
            self._create(request)
        else:
            known = schedules.get(request.name)
            self._check(schedule_plan.merged(known, request.fields))
            schedules.change(request.fields, known)
        described = self._described(schedules.get(request.name), _UPCOMING)
        self._answers.when_durable(caller, correlation, request, encode_map(described))

    def _create(self, request: SetSchedule) -> None:
        """Creating what is there with exactly the same settings changes nothing: it is how a repeated request ends."""
        schedules, now_ms = self._schedules, self._clock.now_ms()
        known = schedules.schedules.get(request.name)
        start_ms = now_ms if known is None else known.start_ms
        base = {"name": request.name, "last_slot_ms": now_ms, "start_ms": start_ms}
        schedule = schedule_plan.merged(base, request.fields)
        if known is not None:
            if not schedule_plan.says_the_same(known, schedule):
                raise ScheduleExists(
                    f"There is a schedule {request.name!r} already, and it has other settings."
                )
            return
        if len(schedules.schedules) >= MOST:
            raise TooManySchedules
        self._check(schedule)
        if not schedule_plan.upcoming(schedule, now_ms, 1):
            raise BadSchedule("The schedule ends before its first time.")
        schedules.create(schedule)

    def _check(self, schedule: Schedule) -> None:
        """Raises BadSchedule, BadTopicName, UnknownTopic, TooManyTopics, DiskFull."""
        check_name(schedule.topic, "topic")
        schedule_plan.check(schedule)
        self._check_size(schedule)
        create = self._settings.auto_create_topics
        self._topics.open(schedule.topic, self._clock.now_ms(), create=create)

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

    def delete(self, caller: Caller, correlation: int, request: DeleteSchedule) -> None:
        """DELETE_SCHEDULE."""
        expect(caller, correlation, lambda _: DeleteScheduleOk())
        self._schedules.remove(request.name)
        self._answers.when_durable(caller, correlation, request, DeleteScheduleOk())

    def trigger(self, caller: Caller, correlation: int, request: TriggerSchedule) -> None:
        """TRIGGER_SCHEDULE: one message now, beside the rhythm."""
        expect(caller, correlation, lambda stored: TriggerScheduleOk(stored[0][0]))
        message_id = self._schedules.trigger(request.name, request.token)
        self._answers.when_durable(caller, correlation, request, TriggerScheduleOk(message_id))
