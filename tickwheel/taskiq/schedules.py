"""Schedules of Taskiq that the broker keeps by itself: no process of a scheduler has to run.

What has a time is a scheduled message; what recurs, by cron or an interval, is a schedule of the broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
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
from tickwheel.client.results import CancelResult
from tickwheel.errors import BadArgument, ScheduleExists, UnknownSchedule, UnknownTopic
from tickwheel.protocol.headers import readable_headers
from tickwheel.taskiq.broker import TickwheelBroker
from tickwheel.taskiq.crons import checked_cron, offset_of, zone_of
from tickwheel.taskiq.declared import declared
from tickwheel.taskiq.deliveries import SCHEDULE_ID, TASK_ID, TASK_NAME
from tickwheel.taskiq.labels import DELAY, DELIVER_AT, KEY, SCHEDULE, moment, wishes_of

PREFIX: Final = "taskiq."
_REPLACED_MOST: Final = 32
"""So often the task of one schedule id may be replaced before it has run."""
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
        self._rules = {"catch_up": catch_up, "overlap": overlap}

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Keeps a task for later; one with the same id is replaced. What is in the past is due now. Raises BadSchedule,
        BadTime, BadArgument, ClientClosed, NotConnected."""
        if schedule.time is not None:
            await self._add_once(schedule, schedule.time, replaces=True)
            return
        has_cron = schedule.cron is not None
        start = (
            None if has_cron or schedule.interval is None else datetime.now(UTC) + _seconds(schedule.interval)
        )
        rhythm = _rhythm_of(schedule, start=start)
        with suppress(UnknownSchedule):
            await self._broker.client.delete_schedule(self._name(schedule.schedule_id))
        await self._create(schedule, **rhythm)
        if start is not None:
            # The first one is due now, by whatever clock.
            await self._broker.client.trigger_schedule(self._name(schedule.schedule_id))

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
                await self._add_once(one, one.time, replaces=False)
                continue
            with suppress(ScheduleExists):  # another process was first
                await self._create(one, **_rhythm_of(one, start=datetime.fromtimestamp(0, UTC)))
        for schedule_id in known - wanted.keys():
            if schedule_id.startswith(marked):
                await self.delete_schedule(schedule_id)

    async def _add_once(self, schedule: ScheduledTask, time: datetime, *, replaces: bool) -> None:
        labels = {name: value for name, value in schedule.labels.items() if name not in (DELAY, KEY)}
        labels |= {SCHEDULE: schedule.schedule_id, DELIVER_AT: moment(time).isoformat()}
        message = await self._prepared(schedule, labels)
        dumped = self._broker.formatter.dumps(message)
        headers = {
            TASK_ID: message.task_id,
            TASK_NAME: message.task_name,
            SCHEDULE_ID: schedule.schedule_id,
        }
        wishes = wishes_of(dumped.labels)
        client, topic = self._broker.client, self._broker.topic
        for key in _keys(schedule.schedule_id):
            sent = await client.send(
                topic,
                dumped.message,
                key=key,
                deliver_at=wishes.deliver_at,
                priority=wishes.priority,
                headers=headers,
            )
            if not sent.duplicate or not replaces:
                return
            await client.cancel(topic, key=key)
        raise BadArgument(
            f"The schedule {schedule.schedule_id} was replaced {_REPLACED_MOST} times.",
            advice="Use another id.",
        )

    async def _create(self, schedule: ScheduledTask, **rhythm: Any) -> None:
        labels = {
            name: value for name, value in schedule.labels.items() if name not in (DELAY, DELIVER_AT, KEY)
        }
        message = await self._prepared(schedule, labels | {SCHEDULE: schedule.schedule_id})
        dumped = self._broker.formatter.dumps(message)
        headers = {TASK_NAME: message.task_name, SCHEDULE_ID: schedule.schedule_id}
        if schedule.task_id is not None:
            headers[TASK_ID] = schedule.task_id
        settings: dict[str, Any] = {
            "body": dumped.message,
            "headers": headers,
            "priority": wishes_of(dumped.labels).priority,
            **self._rules,
            **rhythm,
        }
        await self._broker.client.create_schedule(
            self._name(schedule.schedule_id), self._broker.topic, **settings
        )

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
        client = self._broker.client
        with suppress(UnknownSchedule):
            await client.delete_schedule(self._name(schedule_id))
        results: Sequence[CancelResult] = await client.cancel(
            self._broker.topic, keys=list(_keys(schedule_id))
        )
        assert len(results) == _REPLACED_MOST

    async def get_schedules(self) -> list[ScheduledTask]:
        """What waits, in the whole topic: a task with a time first. It reads all of it. What cannot be read, as after a
        change of the serializer, is left out and logged. Raises ClientClosed."""
        found = [self._of_message(one, name) async for one, name in self._waiting(_MOST_BODY_BYTES)]
        found += [self._of_schedule(one) for one in await self._recurring()]
        return [one for one in found if one is not None]

    async def _known(self) -> set[str]:
        """The ids of all that waits, whatever is in the tasks."""
        once = {schedule_id async for _, schedule_id in self._waiting(0)}
        return once | {one.name.removeprefix(self._prefix) for one in await self._recurring()}

    async def _recurring(self) -> list[Schedule]:
        found = await self._broker.client.schedules(count=0)
        return [one for one in found if one.name.startswith(self._prefix) and one.topic == self._broker.topic]

    async def _waiting(self, max_body_bytes: int) -> AsyncIterator[tuple[BrowsedMessage, str]]:
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
            rhythm: dict[str, Any] = (
                {"cron": one.cron, "cron_offset": offset_of(one.tz)} if one.cron else {"interval": one.every}
            )
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


def _seconds(interval: int | timedelta) -> timedelta:
    return interval if isinstance(interval, timedelta) else timedelta(seconds=interval)


def _rhythm_of(schedule: ScheduledTask, *, start: datetime | None) -> dict[str, Any]:
    """As the broker's schedules have it. Raises BadSchedule."""
    if schedule.cron is not None:
        return {"cron": checked_cron(schedule.cron), "tz": zone_of(schedule.cron_offset)}
    assert schedule.interval is not None
    return {"every": _seconds(schedule.interval), "start": start}


def _keys(schedule_id: str) -> Sequence[str]:
    """A key is remembered after its message was cancelled, so that of another one has to be another one."""
    name = f"schedule:{schedule_id}"
    return [name, *(f"{name}:{number}" for number in range(1, _REPLACED_MOST))]
