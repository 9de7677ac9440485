"""Recurring schedules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from tickwheel._moments import datetime_of, length, moment, moment_or_none
from tickwheel.client.checks import listed, shown, text, whole
from tickwheel.client.columns import Body, Headers, body_bytes, check_name, check_priority, checked_headers
from tickwheel.client.options import CatchUp, Overlap
from tickwheel.client.requests import Requests
from tickwheel.client.times import Delay, Moment, duration_ms, moment_ms
from tickwheel.protocol.bodies import schedules
from tickwheel.protocol.bodies.schedules import (
    MAX_SCHEDULES,
    MAX_TRIGGER_TOKEN,
    DeleteSchedule,
    DeleteScheduleOk,
    GetSchedules,
    SetSchedule,
    TriggerSchedule,
    TriggerScheduleOk,
)
from tickwheel.protocol.errors import BadArgument, BadSchedule, ScheduleExists, UnknownSchedule
from tickwheel.protocol.limits import MAX_TIME_MS


class Schedule(schedules.Schedule, frozen=True, kw_only=True):
    """A recurring schedule. Moments are epoch ms, durations ms."""

    next_ms: list[int]
    """The next slots, five unless more were asked for; none when it is paused."""
    trouble: str = ""
    """Why what is due cannot be sent; it is tried again until it can."""

    every = length("every_ms", "``every_ms`` as a timedelta; zero: it has a ``cron``.")
    start = moment("start_ms")
    until = moment("until_ms", "``until_ms`` as a datetime; the end of the year 9999: it has no end.")
    window = length("window_ms")
    last_slot = moment_or_none("last_slot_ms", "``last_slot_ms`` as a datetime; None: there was none yet.")

    @property
    def next(self) -> list[datetime]:
        """``next_ms`` as datetimes."""
        return [datetime_of(time_ms) for time_ms in self.next_ms]


class PreviewedTime(NamedTuple):
    """A slot of a schedule that there is not yet."""

    time_ms: int
    repeated: str
    """Where its local time comes twice, because clocks are put back: ``first`` or ``second``; else empty."""

    @property
    def time(self) -> datetime:
        """``time_ms`` as a datetime."""
        return datetime_of(self.time_ms)


class SchedulePreview(msgspec.Struct, frozen=True):
    """The slots that a schedule would have."""

    times: list[PreviewedTime]
    skipped: list[str]
    """Local times of the cron expression, up to the last slot, that there are not, because clocks are put forward: a
    time of day comes right after the gap, anything else not at all."""


class _Schedules(msgspec.Struct, frozen=True):
    schedules: list[Schedule]
    more: bool = False


_UNSET: Final[dict[str, dict[str, Any]]] = {
    "until": {"until_ms": MAX_TIME_MS},
    "body": {"body": b""},
    "headers": {"headers": {}},
    "priority": {"priority": None},
    "window": {"window_ms": 0},
}


_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Of cron expressions, as crontab knows them. The broker has the expression."""


def _rhythm_fields(
    cron: str | None, tz: str | None, every: Delay | None, start: Moment | None, until: Moment | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if cron is not None or every is not None:
        expression = "" if cron is None else text(cron, "cron")
        fields["cron"] = _NICKNAMES.get(expression.strip().lower(), expression)
        fields["every_ms"] = 0 if every is None else duration_ms(every, "every")
    fields |= {"tz": text(tz, "tz")} if tz is not None else {}
    fields |= {"start_ms": moment_ms(start, "start")} if start is not None else {}
    fields |= {"until_ms": moment_ms(until, "until")} if until is not None else {}
    return fields


def _message_fields(
    body: Body | None,
    headers: Headers | None,
    priority: int | None,
    overlap: str | None,
    catch_up: str | None,
    window: Delay | None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    fields |= {"body": body_bytes(body)} if body is not None else {}
    fields |= {"headers": checked_headers(headers)} if headers is not None else {}
    fields |= {"priority": check_priority(priority)} if priority is not None else {}
    fields |= {"overlap": text(overlap, "overlap")} if overlap is not None else {}
    fields |= {"catch_up": text(catch_up, "catch_up")} if catch_up is not None else {}
    fields |= {"window_ms": duration_ms(window, "window")} if window is not None else {}
    return fields


def _unset_fields(unset: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in listed(unset, "unset", '["until"]'):
        if not isinstance(name, str) or name not in _UNSET:
            raise BadSchedule(f"{shown(name)} cannot be unset.", advice=f"Use {', '.join(_UNSET)}.")
        fields |= _UNSET[name]
    both = fields.keys() & given.keys()
    if both:
        raise BadSchedule(f"{sorted(both)[0]} is both given and unset.")
    return fields


def _checked_token(token: str) -> str:
    """Raises BadArgument."""
    if not 1 <= len(text(token, "token")) <= MAX_TRIGGER_TOKEN:
        raise BadArgument(
            f"The token of a trigger has {len(token):,} characters.", advice=f"Use 1 to {MAX_TRIGGER_TOKEN}."
        )
    return token


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
        overlap: Overlap = "allow",
        catch_up: CatchUp = "last",
        window: Delay = 0,
    ) -> Schedule:
        """Sends a message to ``topic`` again and again: at the times of ``cron`` in the zone ``tz``, or ``every`` so
        long.

        ``overlap`` "skip": not while the message of the slot before is not done (acked by every group of the topic).
        ``catch_up``, for slots that passed while the broker was down: "none", "last" (one message), or "all".
        ``window``: each message is due somewhere in so long after its slot, always at the same place.
        To create a schedule that is there with exactly these settings succeeds and changes nothing; if somebody has
        paused it, it stays paused.
        Raises BadSchedule, ScheduleExists, TooManySchedules, UnknownTopic.
        """
        check_name(name, "schedule")
        check_name(topic)
        fields: dict[str, Any] = {"topic": topic}
        fields |= _rhythm_fields(cron, tz, every, start, until)
        fields |= _message_fields(body, headers, priority, overlap, catch_up, window)
        return await self._ask(SetSchedule(name=name, create=True, fields=fields), Schedule)

    async def set_schedule(
        self,
        name: str,
        *,
        unset: Sequence[str] = (),
        topic: str | None = None,
        cron: str | None = None,
        tz: str | None = None,
        every: Delay | None = None,
        start: Moment | None = None,
        until: Moment | None = None,
        body: Body | None = None,
        headers: Headers | None = None,
        priority: int | None = None,
        overlap: Overlap | None = None,
        catch_up: CatchUp | None = None,
        window: Delay | None = None,
    ) -> Schedule:
        """Changes what is given of a schedule, all of it or, when it is refused, nothing; it counts for slots that
        have not come yet. ``cron`` takes the place of ``every``, and the other way round.

        Those of ``unset`` ("until", "body", "headers", "priority", "window") are as if they had never been given.
        Raises UnknownSchedule, BadSchedule, UnknownTopic.
        """
        check_name(name, "schedule")
        fields: dict[str, Any] = {}
        if topic is not None:
            check_name(topic)
            fields["topic"] = topic
        fields |= _rhythm_fields(cron, tz, every, start, until)
        fields |= _message_fields(body, headers, priority, overlap, catch_up, window)
        fields |= _unset_fields(unset, fields)
        return await self._ask(SetSchedule(name=name, fields=fields), Schedule)

    async def _put_schedule(
        self, /, name: str, topic: str, *, unset: Sequence[str] = (), **fields: Any
    ) -> tuple[Schedule, bool]:
        """Changes a schedule, or makes it where there is none; somebody else may make or delete it meanwhile. Whether
        it is new is told with it. ``fields``: those of ``create_schedule``; ``unset``: of a schedule that is there."""
        while True:
            with suppress(UnknownSchedule):
                return await self.set_schedule(name, topic=topic, unset=unset, **fields), False
            with suppress(ScheduleExists):
                return await self.create_schedule(name, topic, **fields), True

    async def pause_schedule(self, name: str) -> Schedule:
        """Sends nothing until ``resume_schedule``; messages that wait for their slot or in their window are called
        back."""
        check_name(name, "schedule")
        return await self._ask(SetSchedule(name=name, fields={"paused": True}), Schedule)

    async def resume_schedule(self, name: str) -> Schedule:
        """Goes on with the next slot; those in between are not caught up."""
        check_name(name, "schedule")
        return await self._ask(SetSchedule(name=name, fields={"paused": False}), Schedule)

    async def schedules(self, *, count: int = 5, after: str = "", limit: int | None = None) -> list[Schedule]:
        """All schedules, by name, each with its next ``count`` slots (up to 1,000); or up to ``limit`` of those that
        come ``after`` a name. The broker finds slots only of those that it lists."""
        count = whole(count, "count", 0, 1_000)
        left = None if limit is None else whole(limit, "limit", 1, MAX_SCHEDULES)
        if not isinstance(after, str) or after:
            check_name(after, "schedule")
        found: list[Schedule] = []
        more = True
        while more and left != 0:
            page = await self._ask(GetSchedules(after=after, count=count, limit=left), _Schedules)
            found += page.schedules[:left]
            more = page.more and bool(page.schedules)
            if more:
                after = found[-1].name
            left = None if limit is None else limit - len(found)
        return found

    async def schedule(self, name: str, *, count: int = 5, after: Moment | None = None) -> Schedule:
        """One schedule, with its next ``count`` slots (up to 1,000) after now or a moment. Raises UnknownSchedule."""
        check_name(name, "schedule")
        request = GetSchedules(
            name=name,
            count=whole(count, "count", 0, 1_000),
            from_ms=None if after is None else moment_ms(after, "after"),
        )
        return (await self._ask(request, _Schedules)).schedules[0]

    async def preview_schedule(
        self,
        *,
        cron: str | None = None,
        tz: str = "UTC",
        every: Delay | None = None,
        start: Moment | None = None,
        until: Moment | None = None,
        count: int = 5,
        after: Moment | None = None,
    ) -> SchedulePreview:
        """The ``count`` slots (up to 1,000) after now or a moment of a schedule that says this, without creating it,
        and what clocks that change make of them. Raises BadSchedule."""
        request = GetSchedules(
            count=whole(count, "count", 0, 1_000),
            from_ms=None if after is None else moment_ms(after, "after"),
            fields=_rhythm_fields(cron, tz, every, start, until),
        )
        return await self._ask(request, SchedulePreview)

    async def delete_schedule(self, name: str) -> None:
        """Ends a schedule; messages that wait for their slot or in their window are called back. Raises
        UnknownSchedule."""
        check_name(name, "schedule")
        await self._answer(DeleteSchedule(name=name), DeleteScheduleOk)

    async def trigger_schedule(self, name: str, *, token: str | None = None) -> int:
        """Sends its message now, beside the rhythm, once also if the connection breaks meanwhile; the message's id.

        ``token``: your own name for this time, of 1 to 64 characters; with the same one it is sent once, however often
        it is asked for. Raises UnknownSchedule.
        """
        check_name(name, "schedule")
        chosen = token_hex(16) if token is None else _checked_token(token)
        return (await self._answer(TriggerSchedule(name=name, token=chosen), TriggerScheduleOk)).id
