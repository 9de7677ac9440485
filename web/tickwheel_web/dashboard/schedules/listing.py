"""All schedules, and one of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import anyio
from starlette.responses import Response

from tickwheel import Client, Schedule
from tickwheel.errors import UnknownSchedule
from tickwheel_web.dashboard import words
from tickwheel_web.dashboard.listing import listed
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.schedules import rhythm

TIMES: Final = 20
_BODY_CHARS: Final = 65_536


async def schedules(viewed: Viewed) -> Response:
    """A part of them, by name."""
    found = await viewed.client.schedules(count=0)
    part = listed(
        viewed,
        found,
        lambda one: one.name,
        lambda one: f"{one.name}\n{one.topic}",
        {
            "sent": lambda one: one.sent,
            "not sent": lambda one: one.skipped + one.missed,
            "last": lambda one: one.last_slot_ms,
        },
    )
    return viewed.page(
        "schedules/list.html",
        rows=[(one, rhythm.in_words(one)) for one in await _with_times(viewed.client, part.rows)],
        part=part,
        paused=sum(one.paused for one in found),
        in_trouble=sum(bool(one.trouble) for one in found),
        now=datetime.now(UTC),
    )


async def _with_times(client: Client, rows: Sequence[Schedule]) -> list[Schedule]:
    """Only these: for all of them the broker would have much to compute. One that is gone meanwhile is left out."""
    found: dict[str, Schedule] = {}

    async def ask(name: str) -> None:
        with suppress(UnknownSchedule):
            found[name] = await client.schedule(name)

    async with anyio.create_task_group() as group:
        for one in rows:
            group.start_soon(ask, one.name)
    return [found[one.name] for one in rows if one.name in found]


async def schedule(viewed: Viewed) -> Response:
    """One, with its next times and all that can be done with it."""
    found = await viewed.client.schedule(viewed.path("schedule"), count=TIMES)
    shows_body = not viewed.site.hiding.bodies and viewed.rights.sees(f"query:{found.topic}")
    return viewed.page(
        "schedules/one.html",
        schedule=found,
        words=rhythm.in_words(found),
        until=rhythm.end_of(found),
        times=[(at, at.astimezone(ZoneInfo(found.tz)).strftime("%a %Y-%m-%d %H:%M:%S")) for at in found.next],
        body=words.cut(found.body.decode(errors="replace"), _BODY_CHARS) if shows_body else None,
        body_bytes=len(found.body),
        headers=viewed.site.hiding.shown(found.headers) if shows_body else {},
        token=secrets.token_urlsafe(16),
        now=datetime.now(UTC),
    )
