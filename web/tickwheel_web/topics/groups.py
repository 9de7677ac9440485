"""Consumer groups: look at them, create, change, move and delete them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tickwheel.errors import BadArgument, UnknownGroup
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.paging import page
from tickwheel_web.shapes import Time, duration_of
from tickwheel_web.topics.shapes import Backlog, ChangedGroup, Group, Groups, NewGroup, Seek


async def list_groups(asked: Asked) -> Response:
    """Those of one topic."""
    found = await asked.client.groups(asked.path("topic"))
    rows, following = page(found, lambda group: group.name, asked.query)
    return json(Groups([Group.of(row) for row in rows], following))


async def get_group(asked: Asked) -> Response:
    """How far it is."""
    return json(Group.of(await asked.client.group(asked.path("topic"), asked.path("group"))))


async def put_group(asked: Asked) -> Response:
    """201: it was created; 200: it was there, and nothing was changed."""
    topic, name, given = asked.path("topic"), asked.path("group"), reading.decode(NewGroup, asked.body)
    start = _one_of(given.start, given.start_at, "start", "start_at") or "earliest"
    while True:
        is_new = await asked.client.create_group(
            topic,
            name,
            start=start,
            ephemeral=duration_of(given.ephemeral, "ephemeral"),
            ignore_ordering_keys=given.ignore_ordering_keys,
        )
        with suppress(UnknownGroup):  # it was deleted meanwhile
            return json(Group.of(await asked.client.group(topic, name)), 201 if is_new else 200)


async def change_group(asked: Asked) -> Response:
    """Subscribers stay."""
    topic, name, given = asked.path("topic"), asked.path("group"), reading.decode(ChangedGroup, asked.body)
    await asked.client.set_group(topic, name, ignore_ordering_keys=given.ignore_ordering_keys)
    return json(Group.of(await asked.client.group(topic, name)))


async def seek_group(asked: Asked) -> Response:
    """What lies from there on is delivered again."""
    name, given = asked.path("group"), reading.decode(Seek, asked.body)
    to = _one_of(given.to, given.to_time, "to", "to_time")
    if to is None:
        raise BadArgument("It is not said where to go on.", advice="Give to, or to_time.")
    return json(Backlog(name, await asked.client.seek_group(asked.path("topic"), name, to=to)))


async def delete_group(asked: Asked) -> Response:
    """With all that it knows."""
    name = asked.confirmed("group")
    return json(Backlog(name, await asked.client.delete_group(asked.path("topic"), name)))


def _one_of(
    place: Literal["earliest", "latest"] | UnsetType, moment: Time, name: str, name_of_moment: str
) -> Literal["earliest", "latest"] | datetime | None:
    """None: neither was given. Raises BadArgument."""
    if isinstance(moment, UnsetType):
        return None if isinstance(place, UnsetType) else place
    if place is not UNSET:
        raise BadArgument(f"Both {name} and {name_of_moment} were given.", advice="Give one of them.")
    return moment
