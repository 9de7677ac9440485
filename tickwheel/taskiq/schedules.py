"""Schedules of Taskiq that the broker keeps by itself: no process of a scheduler has to run.

What has a time is a scheduled message; what recurs, by cron or an interval, is a schedule of the broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from taskiq import ScheduledTask, ScheduleSource, TaskiqMessage
from taskiq.exceptions import ScheduledTaskCancelledError
from taskiq.kicker import AsyncKicker

from tickwheel.client.admin.schedules import Schedule
from tickwheel.client.admin.topics import BrowsedMessage
from tickwheel.client.columns import check_name
from tickwheel.client.options import CatchUp, Overlap
from tickwheel.errors import ScheduleExists, UnknownTopic
from tickwheel.protocol.headers import readable_headers
from tickwheel.taskiq.broker import TickwheelBroker
from tickwheel.taskiq.cancelling import TASK_ID
from tickwheel.taskiq.crons import checked_cron, offset_of, zone_of
from tickwheel.taskiq.declared import declared
from tickwheel.taskiq.deliveries import SCHEDULE_ID, TASK_NAME
from tickwheel.taskiq.labels import DELAY, DELIVER_AT, KEY, SCHEDULE, moment, wishes_of
from tickwheel.taskiq.replacing import Waiting, is_once

PREFIX: Final = "taskiq."
_PAGE: Final = 200
_MOST_BODY_BYTES: Final = 16 * 1024 * 1024

logger = logging.getLogger("tickwheel.taskiq")


class TickwheelScheduleSource(ScheduleSource):
    """Where ``schedule_by_time``, ``schedule_by_cron`` and ``schedule_by_interval`` put their tasks::

        schedules = TickwheelScheduleSource(broker)
        created = await remind.schedule_by_time(schedules, datetime.now(UTC) + timedelta(days=400), "ada")
        await created.unschedule()

    The broker sends what is due, to the millisecond: do not run ``taskiq scheduler`` for it (it would send nothing).
    ``broker`` has to be started. ``prefix``: of the names of the broker's schedules. ``catch_up``: of times that passed
    while the broker was down, ``none``, the ``last``, or ``all``; ``overlap``: ``allow``, or ``skip`` while the task
    of the time before is not done.
    """

    def __init__(
        self,
        broker: TickwheelBroker,
        *,
        prefix: str = PREFIX,
        catch_up: CatchUp = "last",
        overlap: Overlap = "allow",
    ) -> None:
        """Raises BadTopicName."""
        check_name(prefix, "schedule")
        self._broker = broker
        self._prefix = prefix
        self._rules: dict[str, Any] = {"catch_up": catch_up, "overlap": overlap}

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Keeps a task for later. What waits under the same id is replaced: a message or a schedule by its like in one
        step, and whatever it is, nothing is lost before the new task is kept. A schedule that somebody has paused stays
        paused. What is in the past is due now. Raises BadSchedule, BadTime, BadArgument, ClientClosed, NotConnected."""
        waiting = self._waiting(schedule.schedule_id)
        if schedule.time is not None:
            body, message, time = await self._once(schedule, schedule.time)
            await waiting.set_once(body, time, message)
            return
        is_interval = schedule.cron is None and schedule.interval is not None
        start = datetime.now(UTC) + _seconds(schedule.interval or 0) if is_interval else None
        rhythm = _rhythm_of(schedule, start=start)
        body, message = await self._recurring(schedule)
        await waiting.set_recurring(body, {**self._rules, **rhythm}, message)
        if is_interval:
            # The first one is due now, by whatever clock.
            body, message = await self._recurring(schedule, has_id=True)
            del message["headers"][SCHEDULE_ID]
            await waiting.send_first(body, message)

    async def declare(self) -> None:
        """Keeps the schedules that stand at the broker's tasks (``@broker.task(schedule=[{"cron": "0 9 * * *"}])``),
        and ends those that stood there once. Any number of processes may do it at their start; what is the same stays
        as it is. Several programs that share a topic need a ``prefix`` each, or they end those of the others. An
        interval is counted from the year 1970 on. Raises what `add_schedule` raises."""
        marked = f"label.{self._prefix}"
        wanted = {one.schedule_id: one for one in declared(self._broker, marked)}
        known = await self._known()
        for schedule_id, one in wanted.items():
            if schedule_id in known:
                continue
            if one.time is not None:
                body, message, time = await self._once(one, one.time)
                await self._waiting(schedule_id).add_once(body, time, message)
                continue
            body, message = await self._recurring(one)
            rhythm = _rhythm_of(one, start=datetime.fromtimestamp(0, UTC))
            with suppress(ScheduleExists):  # another process was first
                await self._broker.client.create_schedule(
                    self._name(schedule_id), self._broker.topic, body=body, **message, **self._rules, **rhythm
                )
        for schedule_id in known - wanted.keys():
            if schedule_id.startswith(marked):
                await self.delete_schedule(schedule_id)

    async def _once(self, schedule: ScheduledTask, time: datetime) -> tuple[bytes, dict[str, Any], datetime]:
        """The body, the priority and headers, and the time of a task with a time."""
        at = moment(time)
        labels = {name: value for name, value in schedule.labels.items() if name not in (DELAY, KEY)}
        labels |= {SCHEDULE: schedule.schedule_id, DELIVER_AT: at.isoformat()}
        body, message = await self._message(schedule, labels, has_id=True)
        return body, message, at

    async def _recurring(
        self, schedule: ScheduledTask, *, has_id: bool = False
    ) -> tuple[bytes, dict[str, Any]]:
        """The body, and the priority and headers, of a task that comes again and again, or of one of its times, which
        has an id."""
        labels = {
            name: value for name, value in schedule.labels.items() if name not in (DELAY, DELIVER_AT, KEY)
        }
        has_id = has_id or schedule.task_id is not None
        return await self._message(schedule, labels | {SCHEDULE: schedule.schedule_id}, has_id=has_id)

    async def _message(
        self, schedule: ScheduledTask, labels: dict[str, Any], *, has_id: bool
    ) -> tuple[bytes, dict[str, Any]]:
        message = await self._prepared(schedule, labels)
        dumped = self._broker.formatter.dumps(message)
        headers = {TASK_NAME: message.task_name, SCHEDULE_ID: schedule.schedule_id}
        if has_id:
            headers[TASK_ID] = message.task_id
        return dumped.message, {"priority": wishes_of(dumped.labels).priority, "headers": headers}

    async def _prepared(self, schedule: ScheduledTask, labels: dict[str, Any]) -> TaskiqMessage:
        """As Taskiq would send it at its time: ids and labels are made, and middlewares have seen it."""
        task_id = schedule.task_id or self._broker.id_generator()
        kicker: AsyncKicker[Any, Any] = AsyncKicker(schedule.task_name, self._broker, dict(labels))
        message = kicker.with_task_id(task_id)._prepare_message(*schedule.args, **schedule.kwargs)
        for middleware in self._broker.middlewares:
            seen = middleware.pre_send(message)
            message = seen if isinstance(seen, TaskiqMessage) else await seen
        return message

    async def delete_schedule(self, schedule_id: str) -> None:
        """Nothing more is sent of it; what a worker was given already stays with it. It is no error if there is none.
        Raises ClientClosed, NotConnected."""
        await self._waiting(schedule_id).delete()

    async def get_schedules(self) -> list[ScheduledTask]:
        """What waits, in the whole topic: a task with a time first. It reads all of it. What cannot be read, as after a
        change of the serializer, is left out and logged. Raises ClientClosed."""
        found = [self._of_message(one, name) async for one, name in self._messages(_MOST_BODY_BYTES)]
        found += [self._of_schedule(one) for one in await self._schedules()]
        return [one for one in found if one is not None]

    async def _known(self) -> set[str]:
        """The ids of all that waits, whatever is in the tasks."""
        once = {schedule_id async for _, schedule_id in self._messages(0)}
        return once | {one.name.removeprefix(self._prefix) for one in await self._schedules()}

    async def _schedules(self) -> list[Schedule]:
        """The broker's schedules of which something comes."""
        return [
            one
            for one in await self._broker.client.schedules(count=1)
            if one.name.startswith(self._prefix)
            and one.topic == self._broker.topic
            and (one.next_ms or not is_once(one))
        ]

    async def _messages(self, max_body_bytes: int) -> AsyncIterator[tuple[BrowsedMessage, str]]:
        """Messages with a time, and the ids of their schedules."""
        last = 0
        while True:
            try:
                page = await self._broker.client.browse(
                    self._broker.topic,
                    after_id=last,
                    limit=_PAGE,
                    max_body_bytes=max_body_bytes,
                    states="scheduled",
                )
            except UnknownTopic:  # nothing was ever sent
                return
            if not page:
                return
            for one in page:
                schedule_id = (readable_headers(one) or {}).get(SCHEDULE_ID)
                if isinstance(schedule_id, str):
                    yield one, schedule_id
            last = page[-1].id

    def _of_message(self, one: BrowsedMessage, schedule_id: str) -> ScheduledTask | None:
        try:
            task = self._task(one.body)
            return self._scheduled(task, schedule_id, task_id=task.task_id, time=one.deliver_at)
        except Exception as error:  # anything may have written it, and with any serializer
            logger.warning("the task of message %d of %r is left out: %r", one.id, self._broker.topic, error)
            return None

    def _of_schedule(self, one: Schedule) -> ScheduledTask | None:
        try:
            rhythm: dict[str, Any] = {"interval": one.every}
            if is_once(one):
                rhythm = {"time": one.start}
            elif one.cron:
                rhythm = {"cron": one.cron, "cron_offset": offset_of(one.tz)}
            task_id = one.headers.get(TASK_ID)
            return self._scheduled(
                self._task(one.body), one.name.removeprefix(self._prefix), task_id=task_id, **rhythm
            )
        except Exception as error:
            logger.warning("the task of the schedule %r is left out: %r", one.name, error)
            return None

    def _task(self, body: bytes) -> TaskiqMessage:
        task = self._broker.formatter.loads(body)
        task.parse_labels()
        return task

    def _scheduled(self, task: TaskiqMessage, schedule_id: str, **fields: Any) -> ScheduledTask:
        labels = {name: value for name, value in task.labels.items() if name not in (SCHEDULE, DELIVER_AT)}
        return ScheduledTask(
            task_name=task.task_name,
            labels=labels,
            args=task.args,
            kwargs=task.kwargs,
            schedule_id=schedule_id,
            **fields,
        )

    def pre_send(self, task: ScheduledTask) -> None:
        """For a ``taskiq scheduler`` that has this source all the same: the broker sends it."""
        raise ScheduledTaskCancelledError

    def _name(self, schedule_id: str) -> str:
        return f"{self._prefix}{schedule_id}"

    def _waiting(self, schedule_id: str) -> Waiting:
        return Waiting(self._broker.client, self._broker.topic, schedule_id, name=self._name(schedule_id))


def _seconds(interval: int | timedelta) -> timedelta:
    return interval if isinstance(interval, timedelta) else timedelta(seconds=interval)


def _rhythm_of(schedule: ScheduledTask, *, start: datetime | None) -> dict[str, Any]:
    """As the broker's schedules have it. Raises BadSchedule."""
    if schedule.cron is not None:
        return {"cron": checked_cron(schedule.cron), "tz": zone_of(schedule.cron_offset)}
    assert schedule.interval is not None
    return {"every": _seconds(schedule.interval), "start": start}
