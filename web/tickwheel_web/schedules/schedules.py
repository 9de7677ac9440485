"""Schedules: set, look at, pause, trigger, delete."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from msgspec import UNSET
from starlette.responses import Response

from tickwheel.errors import BadSchedule
from tickwheel_web import reading
from tickwheel_web.bodies import FORMS, body_of, headers_of
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.paging import page, place_of
from tickwheel_web.schedules.shapes import (
    DeletedSchedule,
    NewSchedule,
    Preview,
    PreviewTime,
    Rhythm,
    Schedules,
    Times,
    Triggered,
    schedule_of,
)
from tickwheel_web.shapes import duration_of, moment_of, or_none

_UNSETTABLE: Final = ("until", "body", "headers", "priority", "window")


async def list_schedules(asked: Asked) -> Response:
    """Those that the token sees: one more than are listed, to know whether there are more."""
    query = asked.query
    found = await asked.client.schedules(after=place_of(query.after), limit=query.limit + 1)
    rows, following = page(found, lambda schedule: schedule.name, query)
    return json(Schedules([schedule_of(row) for row in rows], following))


async def get_schedule(asked: Asked) -> Response:
    """With its next times."""
    return json(schedule_of(await asked.client.schedule(asked.path("schedule"))))


async def put_schedule(asked: Asked) -> Response:
    """201: there was none of this name; 200: it says this now, all of it, and is as far as it was."""
    arguments = _arguments(reading.decode(NewSchedule, asked.body))
    unset = [one for one in _UNSETTABLE if arguments[one] is None]
    given = {one: value for one, value in arguments.items() if value is not None}
    found, is_new = await asked.client._put_schedule(asked.path("schedule"), unset=unset, **given)
    return json(schedule_of(found), 201 if is_new else 200)


def _arguments(given: NewSchedule) -> dict[str, Any]:
    """As the client takes them; None: not given. Raises BadSchedule, BadArgument, BadTime."""
    if (given.cron is UNSET) == (given.every is UNSET):
        raise BadSchedule("A schedule has either cron or every.")
    has_body = any(getattr(given, form) is not UNSET for form in FORMS)
    body, content_type = body_of(given) if has_body else (None, "")
    return {
        "topic": given.topic,
        "cron": or_none(given.cron),
        "tz": given.tz,
        "every": duration_of(given.every, "every"),
        "start": moment_of(given.start),
        "until": moment_of(given.until),
        "body": body,
        "headers": headers_of(given.headers, content_type),
        "priority": or_none(given.priority),
        "overlap": given.overlap,
        "catch_up": given.catch_up,
        "window": duration_of(given.window, "window"),
    }


async def delete_schedule(asked: Asked) -> Response:
    """With what waits for its time."""
    name = asked.path("schedule")
    await asked.client.delete_schedule(name)
    return json(DeletedSchedule(name))


async def pause_schedule(asked: Asked) -> Response:
    """Nothing is sent until it is resumed."""
    return json(schedule_of(await asked.client.pause_schedule(asked.path("schedule"))))


async def resume_schedule(asked: Asked) -> Response:
    """It goes on with its next time."""
    return json(schedule_of(await asked.client.resume_schedule(asked.path("schedule"))))


async def trigger_schedule(asked: Asked) -> Response:
    """One message now; with an Idempotency-Key once, however often it is asked for."""
    token = reading.idempotency_key(asked.request)
    return json(Triggered(str(await asked.client.trigger_schedule(asked.path("schedule"), token=token))))


async def get_next_times(asked: Asked) -> Response:
    """From now or a moment on."""
    count, after = asked.query.count, moment_of(asked.query.after)
    return json(Times((await asked.client.schedule(asked.path("schedule"), count=count, after=after)).next))


async def preview_schedule(asked: Asked) -> Response:
    """Nothing is created."""
    given = reading.decode(Rhythm, asked.body)
    if (given.cron is UNSET) == (given.every is UNSET):
        raise BadSchedule("A schedule has either cron or every.")
    found = await asked.client.preview_schedule(
        cron=or_none(given.cron),
        tz=given.tz,
        every=duration_of(given.every, "every"),
        start=moment_of(given.start),
        until=moment_of(given.until),
        count=given.count,
        after=moment_of(given.after),
    )
    zone = ZoneInfo(given.tz)
    items = [PreviewTime(_in_zone(one.time, zone), one.repeated or None) for one in found.times]  # type: ignore[arg-type]
    return json(Preview(items, found.skipped))


def _in_zone(moment: datetime, zone: ZoneInfo) -> datetime:
    try:
        return moment.astimezone(zone)
    except OverflowError:
        return moment  # there it is the year 10000 already
