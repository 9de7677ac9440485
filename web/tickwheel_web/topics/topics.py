"""Topics: look at them, create, change, pause and delete them."""

from __future__ import annotations

from starlette.responses import Response

from tickwheel.errors import BadArgument, Forbidden, UnknownTopic
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.paging import page
from tickwheel_web.topics.shapes import (
    ChangedTopic,
    DeletedTopic,
    NewTopic,
    Topic,
    TopicRow,
    Topics,
    settings_of,
)


async def list_topics(asked: Asked) -> Response:
    """Those that the token sees."""
    rows, following = page(await asked.client.topics(), lambda topic: topic.name, asked.query)
    return json(Topics([TopicRow.of(row) for row in rows], following))


async def get_topic(asked: Asked) -> Response:
    """With its settings."""
    return json(Topic.of(await asked.client.topic(asked.path("topic"))))


async def put_topic(asked: Asked) -> Response:
    """201: there was none of this name; 200: it is there with exactly these settings, and nothing was changed."""
    name, given = asked.path("topic"), reading.decode(NewTopic, asked.body)
    values, _ = settings_of(given.settings)
    shards = given.shards if isinstance(given.shards, int) else 0
    try:
        await asked.client.topic(name)
        status = 200
    except (UnknownTopic, Forbidden):  # who may not, hears it of what follows
        status = 201
    return json(Topic.of(await asked.client.create_topic(name, shards=shards, **values)), status)


async def change_topic(asked: Asked) -> Response:
    """All of it, or nothing."""
    values, unset = settings_of(reading.decode(ChangedTopic, asked.body).settings)
    if not values and not unset:
        raise BadArgument("There is no setting to change.", advice="Give one, or null for the broker's.")
    return json(Topic.of(await asked.client.set_topic(asked.path("topic"), unset=unset, **values)))


async def delete_topic(asked: Asked) -> Response:
    """With all its messages and groups."""
    name = asked.confirmed("topic")
    return json(DeletedTopic(name, await asked.client.delete_topic(name)))


async def pause_topic(asked: Asked) -> Response:
    """Nothing is delivered until it is resumed."""
    return json(Topic.of(await asked.client.pause_topic(asked.path("topic"))))


async def resume_topic(asked: Asked) -> Response:
    """It is delivered again."""
    return json(Topic.of(await asked.client.resume_topic(asked.path("topic"))))
