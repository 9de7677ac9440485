"""Recurring schedules: a task that sends the message of each slot, and the requests about them.

A schedule lies in the log as a document. The message of a slot has a key of its own, so that a slot whose message was
sent before a crash, and whose document was not, is not sent twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker import logs, schedule_plan
from broker.replying import Caller, at_once, check_name, when_durable
from broker.schedule_plan import Schedule
from tickwheel.protocol.errors import BadSchedule, ScheduleExists, TooManySchedules, UnknownSchedule
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.messages import TOPIC_PRIORITY, SendColumns, decode_send_ok, encode_send
from tickwheel.protocol.requests import encode_map
from tickwheel.protocol.schedules import (
    DeleteSchedule,
    DeleteScheduleOk,
    GetSchedules,
    SetSchedule,
    TriggerSchedule,
    TriggerScheduleOk,
)
from timerlog.changing import CANCELLED, DONE, EXPIRED, UNKNOWN
from timerlog.errors import DiskFull, StoreError

if TYPE_CHECKING:
    from broker.core import Broker

PREFIX: Final = "schedule/"
MOST: Final = 10_000
HEADER: Final = "tickwheel-schedule"
_NEXT: Final = 5
_RETRY_MS: Final = 1_000
_OVER: Final = (DONE, CANCELLED, EXPIRED, UNKNOWN)

_log = logs.get_logger("schedules")


class Schedules:
    """All schedules of a broker, and the task that keeps them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._alarm = broker.clock.alarm()
        documents = broker.store.tables.documents
        found = [content for name, content in documents.items() if name.startswith(PREFIX)]
        decoded = [msgspec.msgpack.decode(content, type=Schedule) for content in found]
        self.schedules: dict[str, Schedule] = {schedule.name: schedule for schedule in decoded}
        self._wakes: dict[str, int | None] = {
            name: schedule_plan.wake_ms(schedule) for name, schedule in self.schedules.items()
        }

    async def run(self) -> None:
        """Send what is to be sent, until cancelled."""
        try:
            while True:
                now_ms = self._broker.clock.now_ms()
                for name, wake_ms in list(self._wakes.items()):
                    if wake_ms is not None and wake_ms <= now_ms:
                        self._keep(self.schedules[name], now_ms)
                await self._alarm.sleep_until(min(filter(None, self._wakes.values()), default=None))
        finally:
            self._alarm.close()

    def put(self, schedule: Schedule) -> None:
        """Keep a schedule as it is from now on. Raises DiskFull."""
        self._broker.store.put_document(PREFIX + schedule.name, msgspec.msgpack.encode(schedule))
        self.schedules[schedule.name] = schedule
        self._wakes[schedule.name] = schedule_plan.wake_ms(schedule)
        self._broker.commit.mark_dirty()
        self._alarm.ring()

    def remove(self, name: str) -> None:
        """Forget a schedule. Raises UnknownSchedule, DiskFull."""
        schedule = self.get(name)
        self.call_back(schedule)
        self._broker.store.put_document(PREFIX + name, None)
        del self.schedules[name], self._wakes[name]

    def get(self, name: str) -> Schedule:
        """Raises UnknownSchedule."""
        schedule = self.schedules.get(name)
        if schedule is None:
            raise UnknownSchedule(f"There is no schedule {name!r}.")
        return schedule

    def call_back(self, schedule: Schedule) -> None:
        """Cancel the message of a slot that has not come yet."""
        if schedule.last_slot_ms > self._broker.clock.now_ms() and schedule.last_id:
            self._broker.store.cancel([schedule.last_id], self._broker.clock.now_ms())

    def send(self, schedule: Schedule, slot_ms: int, due_ms: int, key: str) -> int:
        """Send one message; its id. Raises StoreError."""
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        topic_id = broker.store.open_topic(schedule.topic, now_ms)
        headers = {**schedule.headers, HEADER: {"name": schedule.name, "slot_ms": slot_ms}}
        columns = SendColumns(
            bodies=[schedule.body],
            deliver_at_ms=max(1, due_ms),
            priority=TOPIC_PRIORITY if schedule.priority is None else schedule.priority,
            keys=[key.encode()],
            headers=[encode_map(headers)],
        )
        taken = broker.store.ingest(encode_frame(FrameType.SEND, 1, encode_send(topic_id, columns)), now_ms)
        if not taken.replies:
            raise DiskFull("the disk is full (sending the message of a schedule)")
        answer = decode_send_ok(taken.replies[16:])
        for exception in answer.exceptions:
            if exception.id:
                return exception.id  # it was sent before a crash
            raise BadSchedule(f"The broker refused the message of {schedule.name!r} (code {exception.code}).")
        return answer.first_id

    def _keep(self, schedule: Schedule, now_ms: int) -> None:
        try:
            self.put(self._advanced(schedule, now_ms))
        except (StoreError, BadSchedule) as error:
            if not isinstance(error, DiskFull | BadSchedule):
                raise
            _log.error("a schedule waits", schedule=schedule.name, reason=str(error))
            self._wakes[schedule.name] = now_ms + _RETRY_MS

    def _advanced(self, schedule: Schedule, now_ms: int) -> Schedule:
        """Sends what is due of a schedule; what is to be known of it then."""
        slots, missed, reached_ms = schedule_plan.due_slots(schedule, now_ms)
        last_id, sent, skipped = schedule.last_id, 0, 0
        for slot_ms in slots:
            if schedule.overlap == "skip" and last_id and not self._is_over(last_id):
                skipped += 1
                continue
            due_ms = schedule_plan.due_ms(schedule, slot_ms)
            last_id = self.send(schedule, slot_ms, due_ms, schedule_plan.key_of(schedule, slot_ms))
            sent += 1
        if missed:
            _log.warning("slots were missed", schedule=schedule.name, missed=missed)
        return msgspec.structs.replace(
            schedule,
            last_slot_ms=reached_ms,
            last_id=last_id,
            sent=schedule.sent + sent,
            skipped=schedule.skipped + skipped,
            missed=schedule.missed + missed,
        )

    def _is_over(self, message_id: int) -> bool:
        return self._broker.store.verdicts([message_id])[0] in _OVER


# Requests -------------------------------------------------------------------------------------------------


def list_schedules(caller: Caller, correlation: int, request: GetSchedules) -> None:
    """SCHEDULES."""
    schedules = caller.broker.schedules
    names = sorted(schedules.schedules) if request.name is None else [request.name]
    found = [_described(schedules.get(name), caller.broker.clock.now_ms()) for name in names]
    at_once(caller, correlation, request, encode_map({"schedules": found}))


def _described(schedule: Schedule, now_ms: int) -> dict[str, Any]:
    upcoming = [] if schedule.paused else schedule_plan.upcoming(schedule, now_ms, _NEXT)
    fields = {name: getattr(schedule, name) for name in Schedule.__struct_fields__}
    return {**fields, "next_ms": upcoming}


def set_schedule(caller: Caller, correlation: int, request: SetSchedule) -> None:
    """SET_SCHEDULE."""
    schedules, now_ms = caller.broker.schedules, caller.broker.clock.now_ms()
    check_name(request.name, "schedule")
    if request.create:
        if request.name in schedules.schedules:
            raise ScheduleExists(f"There is a schedule {request.name!r} already.")
        if len(schedules.schedules) >= MOST:
            raise TooManySchedules
        base: dict[str, Any] = {"name": request.name, "last_slot_ms": now_ms, "start_ms": now_ms}
    else:
        known = schedules.get(request.name)
        schedules.call_back(known)
        base = {name: getattr(known, name) for name in Schedule.__struct_fields__}
        base["last_slot_ms"] = min(known.last_slot_ms, now_ms)
    try:
        schedule = msgspec.convert({**base, **request.fields}, Schedule)
    except msgspec.ValidationError as error:
        raise BadSchedule(f"The schedule was not understood: {error}.") from None
    if set(request.fields) - set(Schedule.__struct_fields__) or set(request.fields) & _OWN:
        raise BadSchedule("The schedule has fields that do not exist, or that only the broker sets.")
    if not request.create and known.paused and not schedule.paused:
        # What would have come while it was paused was not missed by accident.
        schedule = msgspec.structs.replace(schedule, last_slot_ms=max(schedule.last_slot_ms, now_ms))
    check_name(schedule.topic, "topic")
    schedule_plan.check(schedule)
    schedules.put(schedule)
    when_durable(caller, correlation, request, encode_map(_described(schedule, now_ms)))


_OWN: Final = {"name", "last_slot_ms", "last_id", "sent", "skipped", "missed"}


def delete_schedule(caller: Caller, correlation: int, request: DeleteSchedule) -> None:
    """DELETE_SCHEDULE."""
    caller.broker.schedules.remove(request.name)
    when_durable(caller, correlation, request, DeleteScheduleOk())


def trigger_schedule(caller: Caller, correlation: int, request: TriggerSchedule) -> None:
    """TRIGGER_SCHEDULE: one message now, beside the rhythm."""
    broker, now_ms = caller.broker, caller.broker.clock.now_ms()
    schedule = broker.schedules.get(request.name)
    number = broker.store.tables.next_id
    key = f"~schedule/{schedule.name}/now/{now_ms}-{number}"
    message_id = broker.schedules.send(schedule, now_ms, now_ms, key)
    when_durable(caller, correlation, request, TriggerScheduleOk(message_id))
