"""Recurring schedules: a task that sends the message of each slot.

A schedule lies in the log as a document, and so does how far it is. A slot's message and the note that it was sent are
one record, so that a crash finds both or none. The message has a key of its own besides, so that a slot that comes
again (the clock was set back) is not sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import trio

from tickwheel.protocol.bodies.requests import encode_map
from tickwheel.protocol.errors import BadSchedule, TickwheelError, UnknownSchedule
from tickwheel.protocol.messages import TOPIC_PRIORITY, SendColumns, encode_send
from tickwheel_broker import logs
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.documents import schedule_slots
from tickwheel_broker.documents.schedule_slots import Decision, Schedule
from tickwheel_broker.errors import ends_the_broker
from tickwheel_broker.rest import Rest
from timerlog.engine.change import CANCELLED, DONE, EXPIRED, UNKNOWN, Change
from timerlog.engine.commit import Commit
from timerlog.engine.produce import JudgedSend, Produce
from timerlog.engine.select import Select
from timerlog.engine.state import INTERNAL
from timerlog.engine.topics import Topics
from timerlog.errors import DiskFull, StoreError
from timerlog.tables.tables import Tables

PREFIX: Final = "schedule/"
HEADER: Final = "tickwheel-schedule"
_RETRY_MS: Final = 1_000
_SENDS_A_STEP: Final = 10
_PLANS_A_STEP: Final = 10
_OVER: Final = (DONE, CANCELLED, EXPIRED, UNKNOWN)

_log = logs.get_logger("schedules")


class Schedules:
    """All schedules of a broker, and the task that keeps them."""

    def __init__(
        self,
        *,
        change: Change,
        select: Select,
        produce: Produce,
        commit: Commit,
        topics: Topics,
        tables: Tables,
        clock: Clock,
        rest: Rest,
    ) -> None:
        self._change = change
        self._select = select
        self._produce = produce
        self._commits = commit
        self._topics = topics
        self._tables = tables
        self._clock = clock
        self._rest = rest
        self._alarm = clock.alarm()
        self._seen_ms = clock.now_ms()
        documents = self._tables.documents
        found = [content for name, content in documents.items() if name.startswith(PREFIX)]
        decoded = [msgspec.msgpack.decode(content, type=Schedule) for content in found]
        self.schedules: dict[str, Schedule] = {schedule.name: schedule for schedule in decoded}
        self.troubles: dict[str, str] = {}
        """Why schedules wait that cannot send what is due."""
        self._wakes: dict[str, int | None] = {}
        for _ in self._plan_all(self._seen_ms):
            pass

    async def run(self) -> None:
        """Send what is to be sent, until cancelled."""
        try:
            while True:
                now_ms = self._clock.now_ms()
                if now_ms < self._seen_ms:
                    for _ in self._plan_all(now_ms):
                        await trio.lowlevel.checkpoint()
                self._seen_ms = now_ms
                due = sorted(
                    (ms, name) for name, ms in self._wakes.items() if ms is not None and ms <= now_ms
                )
                for _, name in due:
                    wake_ms = self._wakes.get(name)  # it may be paused or deleted while another one is kept
                    if wake_ms is not None and wake_ms <= now_ms:
                        await self._keep(self.schedules[name], self._clock.now_ms())
                wakes = [wake_ms for wake_ms in self._wakes.values() if wake_ms is not None]
                await self._alarm.sleep_until(min(wakes, default=None))
        finally:
            self._alarm.close()

    # What requests ask for ---------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule:
        """Raises UnknownSchedule."""
        schedule = self.schedules.get(name)
        if schedule is None:
            raise UnknownSchedule(f"There is no schedule {name!r}.")
        return schedule

    def topic_of(self, name: str) -> str | None:
        """The topic of a schedule; None: there is no such schedule."""
        schedule = self.schedules.get(name)
        return None if schedule is None else schedule.topic

    def of_topic(self, topic: str) -> list[str]:
        """The names of the schedules that send to a topic."""
        return sorted(name for name, schedule in self.schedules.items() if schedule.topic == topic)

    def create(self, schedule: Schedule) -> None:
        """Keep a new schedule from now on. Raises DiskFull, TransactionTooLarge."""
        schedule = msgspec.structs.replace(schedule, born=self._tables.next_id)
        self._commit(schedule, is_answer=True)
        self._changed(schedule.name)

    def change(self, fields: dict[str, Any], known: Schedule) -> None:
        """Change a schedule, whole or not at all: what has come is sent as it was, what was sent ahead is called back
        and sent again as it is now. Raises BadSchedule, DiskFull, TransactionTooLarge."""
        now_ms = self._clock.now_ms()
        known = self._settled(known, now_ms)
        schedule = schedule_slots.merged(known, fields)
        stops = schedule.paused and not known.paused
        called_back = self._called_back(known, now_ms, in_window=stops)
        reached_ms = min(known.last_slot_ms, now_ms)
        if schedule_slots.has_other_rhythm(known, schedule):
            reached_ms = now_ms  # the new rhythm begins now: its earlier slots are not sent
        lost = sum(slot_ms <= now_ms for slot_ms in called_back)
        schedule = msgspec.structs.replace(schedule, last_slot_ms=reached_ms, skipped=schedule.skipped + lost)
        self._commit(schedule, cancel=list(called_back.values()), is_answer=True)
        self._changed(schedule.name)

    def remove(self, name: str) -> None:
        """Forget a schedule, and call back what waits. Raises UnknownSchedule, DiskFull."""
        now_ms = self._clock.now_ms()
        called_back = self._called_back(self.get(name), now_ms, in_window=True)
        self._change.put_document(PREFIX + name, None, now_ms, cancel=list(called_back.values()), result=name)
        del self.schedules[name], self._wakes[name]
        self.troubles.pop(name, None)

    def trigger(self, name: str, token: str) -> int:
        """Send the message of a schedule now, once for a token; the message's id. Raises UnknownSchedule, BadSchedule,
        StoreError."""
        now_ms = self._clock.now_ms()
        schedule = self.get(name)
        token = token or f"{now_ms}-{self._tables.next_id}"
        key = schedule_slots.trigger_key(schedule, token)
        sent = self._find(schedule, key)
        if sent and sent < schedule.born:
            key = schedule_slots.trigger_key(schedule, token, is_taken=True)
            sent = self._find(schedule, key)
        if sent:
            return sent
        send = self.judged(schedule, now_ms, now_ms, key)
        return self._commits.write(INTERNAL, [send], [], now_ms, is_answer=True)[0][0]

    def judged(self, schedule: Schedule, slot_ms: int, due_ms: int, key: str) -> JudgedSend:
        """The message of a slot as it can be stored. Raises BadSchedule, StoreError."""
        now_ms = self._clock.now_ms()
        topic_id = self._topics.open(schedule.topic, now_ms)
        headers = {**schedule.headers, HEADER: {"name": schedule.name, "slot_ms": slot_ms}}
        columns = SendColumns(
            bodies=[schedule.body],
            deliver_at_ms=max(1, due_ms),
            priority=TOPIC_PRIORITY if schedule.priority is None else schedule.priority,
            keys=[key.encode()],
            headers=[encode_map(headers)],
        )
        return self._produce.judge(encode_send(topic_id, columns), now_ms)

    # Keeping -----------------------------------------------------------------------------------------------

    async def _keep(self, schedule: Schedule, now_ms: int) -> None:
        try:
            for _ in self._steps(schedule, now_ms):
                await self._rest()
        except (StoreError, TickwheelError) as error:
            if ends_the_broker(error):
                raise
            self._wait(schedule.name, error, now_ms)
        await self._rest()

    def _settled(self, schedule: Schedule, now_ms: int) -> Schedule:
        """A schedule when it has sent what is due. Raises DiskFull."""
        try:
            wake_ms = schedule_slots.wake_ms(schedule)
            if wake_ms is not None and wake_ms <= now_ms:
                for _ in self._steps(schedule, now_ms):
                    pass
        except (StoreError, TickwheelError) as error:
            if ends_the_broker(error) or isinstance(error, DiskFull):
                raise
            self._wait(schedule.name, error, now_ms)  # the change may be what it waits for
        return self.schedules[schedule.name]

    def _steps(self, schedule: Schedule, now_ms: int) -> Iterator[None]:
        """Sends what is due of a schedule. Others may be served at each step; if the schedule was changed or deleted
        then, this ends. Raises BadSchedule, StoreError."""
        for decision in schedule_slots.decide(schedule, now_ms):
            if decision is not None:
                yield from self._carry_out(schedule, decision, now_ms)
                return
            yield
            if self.schedules.get(schedule.name) is not schedule:
                return

    def _carry_out(self, schedule: Schedule, decision: Decision, now_ms: int) -> Iterator[None]:
        if decision.missed:
            _log.warning("slots were missed", schedule=schedule.name, missed=decision.missed)
        schedule = msgspec.structs.replace(schedule, missed=schedule.missed + decision.missed)
        for number, slot_ms in enumerate(decision.slots, 1):
            schedule = self._send_slot(schedule, slot_ms)
            if number % _SENDS_A_STEP == 0:
                yield
                if self.schedules.get(schedule.name) is not schedule:
                    return
        if schedule.last_slot_ms != decision.reached_ms:
            schedule = msgspec.structs.replace(schedule, last_slot_ms=decision.reached_ms)
            self._commit(schedule)
        self.troubles.pop(schedule.name, None)
        self._plan(schedule, now_ms)

    def _send_slot(self, schedule: Schedule, slot_ms: int) -> Schedule:
        """Sends the message of a slot, and notes it; the schedule as it is then. Raises BadSchedule, StoreError."""
        reached = msgspec.structs.replace(schedule, last_slot_ms=slot_ms)
        if schedule.overlap == "skip" and schedule.last_id and not self._is_over(schedule.last_id):
            reached = msgspec.structs.replace(reached, skipped=schedule.skipped + 1)
            self._commit(reached)
            return reached
        key = schedule_slots.key_of(schedule, slot_ms)
        sent_before = self._find(schedule, key)
        if sent_before:
            reached = msgspec.structs.replace(reached, last_id=sent_before)
            self._commit(reached)
            return reached
        send = self.judged(schedule, slot_ms, schedule_slots.due_ms(schedule, slot_ms), key)
        next_id = self._tables.next_id
        reached = msgspec.structs.replace(reached, last_id=next_id, sent=schedule.sent + 1)
        self._commit(reached, send=send)
        return reached

    def _is_over(self, message_id: int) -> bool:
        return self._change.verdicts([message_id])[0] in _OVER

    def _find(self, schedule: Schedule, key: str) -> int:
        return self._select.find(schedule.topic, [key])[0]

    def _called_back(self, schedule: Schedule, now_ms: int, *, in_window: bool) -> dict[int, int]:
        """The ids of messages that were sent and are not due yet, by their slots."""
        if schedule.paused:
            return {}
        try:
            slots = schedule_slots.waiting(schedule, now_ms, in_window=in_window)
        except BadSchedule:  # its time zone is gone: nothing can be said of its slots
            return {schedule.last_slot_ms: schedule.last_id} if schedule.last_slot_ms > now_ms else {}
        keys = [schedule_slots.key_of(schedule, slot_ms) for slot_ms in slots]
        ids = self._select.find(schedule.topic, keys)
        return {slot_ms: found for slot_ms, found in zip(slots, ids, strict=True) if found}

    def _commit(
        self,
        schedule: Schedule,
        *,
        send: JudgedSend | None = None,
        cancel: list[int] | None = None,
        is_answer: bool = False,
    ) -> None:
        """Keep a schedule as it is from now on, together with what is sent and called back; `is_answer`: a request is
        answered with it. Raises DiskFull, TransactionTooLarge."""
        content = msgspec.msgpack.encode(schedule)
        now_ms = self._clock.now_ms()
        result = schedule if is_answer else None
        self._change.put_document(
            PREFIX + schedule.name, content, now_ms, send=send, cancel=cancel or (), result=result
        )
        self.schedules[schedule.name] = schedule

    # When to look again ------------------------------------------------------------------------------------

    def _changed(self, name: str) -> None:
        """A request changed a schedule: look at it again."""
        self.troubles.pop(name, None)
        self._plan(self.schedules[name], self._clock.now_ms())
        self._alarm.ring()

    def _plan_all(self, now_ms: int) -> Iterator[None]:
        """At the start, and when the clock was set back. Others may be served at each step."""
        for number, name in enumerate(list(self.schedules), 1):
            schedule = self.schedules.get(name)
            if schedule is not None:
                ahead = schedule_slots.after_wrong_clock(schedule, now_ms)
                if ahead is not schedule:
                    _log.warning("a schedule was ahead of the clock", schedule=name)
                    self.schedules[name] = ahead
                self._plan(ahead, now_ms)
            if number % _PLANS_A_STEP == 0:
                yield

    def _plan(self, schedule: Schedule, now_ms: int) -> None:
        try:
            self._wakes[schedule.name] = schedule_slots.wake_ms(schedule)
        except BadSchedule as error:
            self._wait(schedule.name, error, now_ms)

    def _wait(self, name: str, error: Exception, now_ms: int) -> None:
        """Something is due that cannot be sent now: it is tried again, for as long as it takes."""
        if self.troubles.get(name) != str(error):
            self.troubles[name] = str(error)
            _log.error("a schedule waits", schedule=name, reason=str(error))
        self._wakes[name] = now_ms + _RETRY_MS
