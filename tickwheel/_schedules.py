"""Recurring schedules."""

from __future__ import annotations

from typing import Any

import msgspec

from tickwheel._columns import Body, Headers, check_name, check_priority
from tickwheel._requests import Requests
from tickwheel._times import Delay, Moment, delay_ms, moment_ms
from tickwheel.protocol.schedules import (
    DeleteSchedule,
    DeleteScheduleOk,
    GetSchedules,
    SetSchedule,
    TriggerSchedule,
    TriggerScheduleOk,
)


class Schedule(msgspec.Struct, frozen=True):
    """A recurring schedule. Moments are epoch ms, durations ms."""

    name: str
    topic: str
    cron: str
    tz: str
    every_ms: int
    start_ms: int
    until_ms: int
    body: bytes
    headers: dict[str, Any]
    priority: int | None
    overlap: str
    catch_up: str
    window_ms: int
    paused: bool
    sent: int
    skipped: int
    """Slots that were left out because the message of the one before was not done."""
    missed: int
    """Slots that passed while the broker was down, and that were not caught up."""
    last_slot_ms: int
    next_ms: list[int]
    """The next five slots."""


class _Schedules(msgspec.Struct, frozen=True):
    schedules: list[Schedule]


class ScheduleRequests(Requests):
    """Recurring schedules."""

    async def create_schedule(
        self,
        name: str,
        topic: str,
        *,
        cron: str | None = None,
        tz: str = "UTC",
        every: Delay | None = None,
        start: Moment | None = None,
        until: Moment | None = None,
        body: Body = b"",
        headers: Headers | None = None,
        priority: int | None = None,
        overlap: str = "allow",
        catch_up: str = "last",
        window: Delay = 0,
    ) -> Schedule:
        """Sends a message to ``topic`` again and again: at the times of ``cron`` in the zone ``tz``, or ``every`` so
        long.

        ``overlap`` "skip": not while the message of the slot before is not done (acked by every group of the topic).
        ``catch_up``, for slots that passed while the broker was down: "none", "last" (one message), or "all".
        ``window``: each message is due somewhere in so long after its slot, always at the same place.
        Raises BadSchedule, ScheduleExists.
        """
        check_name(name, "schedule")
        check_name(topic)
        fields: dict[str, Any] = {
            "topic": topic,
            "tz": tz,
            "body": bytes(body),
            "headers": dict(headers or {}),
            "overlap": overlap,
            "catch_up": catch_up,
            "window_ms": delay_ms(window),
        }
        fields |= {"cron": cron} if cron is not None else {}
        fields |= {"every_ms": delay_ms(every)} if every is not None else {}
        fields |= {"start_ms": moment_ms(start)} if start is not None else {}
        fields |= {"until_ms": moment_ms(until)} if until is not None else {}
        fields |= {"priority": check_priority(priority)} if priority is not None else {}
        return await self._ask(SetSchedule(name=name, create=True, fields=fields), Schedule)

    async def pause_schedule(self, name: str) -> Schedule:
        """Sends nothing until ``resume_schedule``; a message that waits for its slot is called back."""
        return await self._ask(SetSchedule(name=name, fields={"paused": True}), Schedule)

    async def resume_schedule(self, name: str) -> Schedule:
        """Goes on with the next slot; those in between are not caught up."""
        return await self._ask(SetSchedule(name=name, fields={"paused": False}), Schedule)

    async def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return (await self._ask(GetSchedules(), _Schedules)).schedules

    async def schedule(self, name: str) -> Schedule:
        """One schedule. Raises UnknownSchedule."""
        return (await self._ask(GetSchedules(name=name), _Schedules)).schedules[0]

    async def delete_schedule(self, name: str) -> None:
        """Ends a schedule; a message that waits for its slot is called back. Raises UnknownSchedule."""
        await self._answer(DeleteSchedule(name=name), DeleteScheduleOk)

    async def trigger_schedule(self, name: str) -> int:
        """Sends its message now, beside the rhythm; the message's id. Raises UnknownSchedule."""
        return (await self._answer(TriggerSchedule(name=name), TriggerScheduleOk)).id
