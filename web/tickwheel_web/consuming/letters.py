"""Dead letters: what groups have given up."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from starlette.responses import Response

from tickwheel import BrowsedMessage
from tickwheel.errors import UnknownTopic
from tickwheel.protocol.headers import as_json, readable_headers
from tickwheel.protocol.limits import MAX_ID, MAX_TIME_MS, NAME_PATTERN, dead_topic
from tickwheel_web import reading
from tickwheel_web.bodies import shown
from tickwheel_web.consuming.shapes import DeadLetter, DeadLetters, Dropped, Failure, Replay, Replayed
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.paging import page_of_ids
from tickwheel_web.shapes import moment_of, or_none

_HEADER: Final = "tickwheel-dead"
_Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]


class _Story(msgspec.Struct, frozen=True):
    """What the broker has written into a letter. Others may send to the topic, too."""

    group: Annotated[str, msgspec.Meta(pattern=rf"\A{NAME_PATTERN.pattern}\Z")] | None = None
    id: Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)] | None = None
    key: str = ""
    attempts: int | None = None
    error: str = ""
    deliver_at_ms: _Moment | None = None
    history: list[tuple[int, _Moment, str]] = []


async def list_dead_letters(asked: Asked) -> Response:
    """In order of their ids."""
    topic, query = asked.path("topic"), asked.query
    has_bodies = bool(query.bodies)
    try:
        found, following = await page_of_ids(
            partial(asked.client.browse, dead_topic(topic)),
            query.after,
            query.limit,
            has_bodies=has_bodies,
            created_from=moment_of(query.created_from),
            created_until=moment_of(query.created_until),
        )
    except UnknownTopic:
        await asked.client.topic(topic)  # it is there, and never had one
        return json(DeadLetters([], None))
    return json(DeadLetters([letter_of(one, has_body=has_bodies) for one in found], following))


async def replay_dead_letters(asked: Asked) -> Response:
    """To the groups that gave them up, and to no others."""
    wanted = reading.decode(Replay, asked.body)
    ids = or_none(wanted.ids)
    chosen = None if ids is None else [int(one) for one in ids]
    return json(Replayed(await asked.client.replay_dead(asked.path("topic"), ids=chosen, limit=wanted.limit)))


async def drop_dead_letters(asked: Asked) -> Response:
    """For good."""
    topic = asked.confirmed("topic")
    try:
        found = await asked.client.cancel_where(dead_topic(topic), stop=True)
    except UnknownTopic:
        await asked.client.topic(topic)
        return json(Dropped(0, {}))
    return json(Dropped(found.matched, found.results))


def letter_of(found: BrowsedMessage, *, has_body: bool) -> DeadLetter:
    """What its headers tell."""
    headers = readable_headers(found)
    told: object = {}
    if headers is not None:
        told = headers.pop(_HEADER, {})
        headers = {name: as_json(value) for name, value in headers.items()}
    try:
        story = msgspec.convert(told, _Story)
    except msgspec.ValidationError:
        story = _Story()
    body: dict[str, Any] = shown(found.body, headers or {}) if has_body else {}
    return DeadLetter(
        id=str(found.id),
        original=None if story.id is None else str(story.id),
        group=story.group,
        attempts=story.attempts,
        error=story.error,
        failures=[Failure(attempt, _moment(at_ms), error) for attempt, at_ms, error in story.history],
        key=story.key or None,
        order_key=found.order_key or None,
        priority=found.priority,
        deliver_at=None if story.deliver_at_ms is None else _moment(story.deliver_at_ms),
        dead_at=found.created,
        headers=headers,
        body_bytes=found.body_bytes,
        **body,
    )


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1_000, UTC)
