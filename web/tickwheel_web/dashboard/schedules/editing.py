"""The form of a schedule: a new one or one that there is, with a preview of its times before anything is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response

from tickwheel import Schedule
from tickwheel.errors import BadSchedule, BadTime, TickwheelError
from tickwheel.protocol.units import format_duration
from tickwheel_web.dashboard.forms import (
    Field,
    Form,
    Wrong,
    checked,
    duration,
    headers,
    moment_in,
    whole,
    zone,
)
from tickwheel_web.dashboard.notices import Tone
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.schedules import rhythm
from tickwheel_web.shapes import MAX_PRIORITY

TIMES: Final = 10
_LONG: Final = {"maxlength": 256}
FORM: Final = Form(
    Field("name", "Name", is_required=True, option=None, more=_LONG),
    Field("topic", "Topic", is_required=True, more=_LONG),
    Field(
        "cron",
        "Cron expression",
        hint="minute hour day month weekday; with six fields, seconds first",
        more=_LONG,
    ),
    Field("every", "or every", duration, "such as 10m or 1h30m; then without cron"),
    Field("tz", "Zone", zone, "such as Europe/Berlin", more=_LONG),
    Field("start", "Not before", hint="2031-05-01T09:00, in its zone"),
    Field("until", "Not after", hint="the same; empty: no end", may_unset=True),
    Field(
        "priority",
        "Priority",
        partial(whole, most=MAX_PRIORITY),
        "0 goes first; empty: as usual",
        may_unset=True,
    ),
    Field(
        "overlap",
        "While the message before is not done",
        choices={"allow": "send all the same", "skip": "leave it out"},
    ),
    Field(
        "catch_up",
        "After the broker was down, catch up",
        choices={"last": "the last one", "none": "nothing", "all": "all"},
    ),
    Field("window", "Window", duration, "each is due somewhere in so long after its time", may_unset=True),
    Field("body", "Body", kind="area", option=None, more={"rows": 5}),
    Field("headers", "Headers", headers, "One on a line: name: value", kind="area", option=None),
)
NEW: Final = {"cron": "0 9 * * MON-FRI", "tz": "UTC", "overlap": "allow", "catch_up": "last"}
_RHYTHM: Final = ("cron", "every", "tz", "start", "until")


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What stands in the form already."""

    topic: Annotated[str, msgspec.Meta(max_length=255)] = ""


async def new(viewed: Viewed) -> Response:
    """An empty form."""
    return await _page(viewed, {**NEW, "topic": viewed.query.topic}, "")


async def edit(viewed: Viewed) -> Response:
    """The form of one that there is."""
    found = await viewed.client.schedule(viewed.path("schedule"), count=0)
    return await _page(viewed, _given(viewed, found), found.name)


async def preview(viewed: Viewed) -> Response:
    """The same form again, with the times that this rhythm would have. Nothing is created."""
    return await _page(viewed, FORM.given(viewed), viewed.field("existing"))


async def create(viewed: Viewed) -> Response:
    """One that there is not yet."""
    given = FORM.given(viewed)
    try:
        values = _arguments(given)
        values["body"] = given["body"].encode()
        made = await viewed.client.create_schedule(**values)
    except TickwheelError as error:
        return await _page(viewed, given, "", error)
    return _saved(viewed, made, "is created", ["create", made.name, *FORM.options(given)])


async def change(viewed: Viewed) -> Response:
    """What is different of one that there is; a body or a header that was not shown stays."""
    name = viewed.path("schedule")
    found = await viewed.client.schedule(name, count=0)
    before, given = _given(viewed, found), {**FORM.given(viewed), "name": name}
    try:
        values = _arguments(given)
        del values["name"]
        if given["body"] != before["body"].replace("\r\n", "\n"):
            values["body"] = given["body"].encode()
        told = values.pop("headers", {})
        visible = _visible(viewed, found)
        if told != {key: _text(value) for key, value in visible.items()}:
            hidden = {key: value for key, value in found.headers.items() if key not in visible}
            kept = {key: visible[key] for key, text in told.items() if text == _text(visible.get(key))}
            values["headers"] = hidden | told | kept  # a value that is as it was keeps its type
        changed = await viewed.client.set_schedule(name, unset=FORM.unset(values), **values)
    except TickwheelError as error:
        return await _page(viewed, given, name, error)
    did = "is changed" if given != before else "says what it said before"
    return _saved(viewed, changed, did, ["set", name, *FORM.options(given, before)])


async def _page(
    viewed: Viewed, given: Mapping[str, str], existing: str, error: TickwheelError | None = None
) -> Response:
    """With a preview, where there is a rhythm already."""
    filled = FORM.filled(given, error)
    cron, clock = filled.given["cron"], ZoneInfo("UTC")
    times: list[tuple[datetime, str, str]] = []
    skipped: list[str] = []
    told, wrong = "", ""
    if cron or filled.given["every"]:
        try:
            said = _rhythm(FORM.read(filled.given, _RHYTHM))
            clock = ZoneInfo(said["tz"])
            found = await viewed.client.preview_schedule(count=TIMES, **said)
            times = [
                (one.time, f"{one.time.astimezone(clock):%a %Y-%m-%d %H:%M:%S %Z}", one.repeated)
                for one in found.times
            ]
            skipped = found.skipped
            every = said.get("every")
            told = (
                rhythm.interval(every // timedelta(milliseconds=1))
                if every
                else rhythm.explained(cron, said["tz"])
            )
        except (BadSchedule, BadTime, Wrong) as problem:
            wrong = str(problem)
    return viewed.page(
        "schedules/form.html",
        status=filled.status,
        form=filled,
        existing=existing,
        times=times,
        skipped=skipped,
        told=told,
        wrong=wrong,
        repeats=rhythm.rule(cron, is_skipped=False),
        skips=rhythm.rule(cron, is_skipped=True),
        now=datetime.now(UTC),
    )


def _saved(viewed: Viewed, found: Schedule, did: str, does_same: list[str]) -> Response:
    text = f"{found.name} {did}: {rhythm.in_words(found)}.{'' if found.next else ' It has no next time.'}"
    tone: Tone = "good" if found.next else "warn"
    return viewed.done(f"/schedule/{found.name}", text, ["schedules", *does_same], tone)


def _given(viewed: Viewed, found: Schedule) -> dict[str, str]:
    """What the form of one has in it. The body is empty as well where it may not be shown, or is no text."""
    until = rhythm.end_of(found)
    try:
        body = found.body.decode() if _shows(viewed, found) else ""
    except UnicodeDecodeError:
        body = ""
    return {
        "name": found.name,
        "topic": found.topic,
        "cron": found.cron,
        "tz": found.tz,
        "every": format_duration(found.every_ms) if found.every_ms else "",
        "start": found.start.isoformat() if found.every_ms or found.start > datetime.now(UTC) else "",
        "until": until.isoformat() if until else "",
        "body": body,
        "headers": "\n".join(f"{name}: {_text(value)}" for name, value in _visible(viewed, found).items()),
        "priority": "" if found.priority is None else str(found.priority),
        "overlap": found.overlap,
        "catch_up": found.catch_up,
        "window": format_duration(found.window_ms) if found.window_ms else "",
    }


def _shows(viewed: Viewed, found: Schedule) -> bool:
    return not viewed.site.hiding.bodies and viewed.rights.sees(f"query:{found.topic}")


def _visible(viewed: Viewed, found: Schedule) -> dict[str, Any]:
    return viewed.site.hiding.shown(found.headers) if _shows(viewed, found) else {}


def _arguments(given: Mapping[str, str]) -> dict[str, Any]:
    """As the client takes them, but for the body. Raises Wrong."""
    values = FORM.read(given)
    values.pop("body", None)
    return values | _rhythm(values)


def _rhythm(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises Wrong."""
    if ("cron" in values) == ("every" in values):
        raise Wrong(cron="A schedule has either a cron expression or an interval. Empty one field.")
    clock = values.get("tz", ZoneInfo("UTC"))
    found = {name: values[name] for name in ("cron", "every") if name in values}
    times = {
        name: checked(name, moment_in, values[name], clock) for name in ("start", "until") if name in values
    }
    return {**found, **times, "tz": str(clock)}


def _text(value: object) -> str:
    """In one line."""
    return value if isinstance(value, str) and "\n" not in value else json.dumps(value, default=str)
