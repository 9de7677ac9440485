"""What has happened to a message."""

from __future__ import annotations

from starlette.responses import Response

from tickwheel.errors import MessageNotFound
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.messages.shapes import Event, Events


async def get_events(asked: Asked) -> Response:
    """Read from the broker's log, in a process of its own."""
    found = await asked.client.history(id=asked.id, limit=asked.query.limit)
    if found is None:
        raise MessageNotFound
    return json(
        Events(str(found.id), found.topic, [Event.of(event) for event in found.events], found.missing)
    )
