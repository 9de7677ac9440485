"""Many messages of a topic: look at them one part after the other, change all that a filter means."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from tickwheel import BrowsedMessage, ChangeResult
from tickwheel.errors import BadArgument
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.filters import where_of
from tickwheel_web.large.aside import aside
from tickwheel_web.messages.shapes import ChangeAll, ChangedAll, Listed, MessageRow, listed_of
from tickwheel_web.paging import page_of_ids
from tickwheel_web.shapes import duration_of, moment_of, or_none

_MANY: Final = 100
"""So many messages are put into an answer while others are served."""
_OF_ACTION: Final = {
    "cancel": ("stop",),
    "reschedule": ("deliver_at", "delay", "priority"),
    "redeliver": ("deliver_at", "delay", "acked", "keep_attempts"),
}
"""What besides the filter each of them takes."""


async def list_messages(asked: Asked) -> Response:
    """In order of their ids; as many as fit into an answer of the broker, so it may be fewer than wanted."""
    topic, query = asked.path("topic"), asked.query
    if isinstance(query.key, str):
        return json(Listed(await _with_key(asked, topic, query.key), None))
    has_bodies = bool(query.bodies)
    browse = partial(asked.client.browse, topic)
    found, following = await page_of_ids(
        browse, query.after, query.limit, has_bodies=has_bodies, **where_of(query)
    )
    if has_bodies or len(found) > _MANY:
        return await aside(_listed, found, following, has_bodies=has_bodies)
    return _listed(found, following, has_bodies=has_bodies)


def _listed(found: Sequence[BrowsedMessage], following: str | None, *, has_bodies: bool) -> Response:
    return json(Listed([listed_of(one, has_body=has_bodies) for one in found], following))


async def _with_key(asked: Asked, topic: str, key: str) -> list[MessageRow]:
    """Raises BadArgument: a key says it all."""
    if where_of(asked.query) or asked.query.after:
        raise BadArgument("There is a filter beside the key.", advice="Give key alone, or leave it out.")
    found = await asked.client.message(topic, key=key)
    return [] if found is None else [listed_of(found, has_body=bool(asked.query.bodies))]


async def change_messages(asked: Asked) -> Response:
    """All that the filter means; with `dry_run` they are only counted."""
    wanted, topic = reading.decode(ChangeAll, asked.body), asked.path("topic")
    arguments = _arguments(wanted)
    where = where_of(wanted.filter)
    change: dict[str, Any] = {"limit": or_none(wanted.limit), "dry_run": wanted.dry_run, **arguments, **where}
    found: ChangeResult
    if wanted.action == "cancel":
        found = await asked.client.cancel_where(topic, **change)
    elif wanted.action == "reschedule":
        found = await asked.client.reschedule_where(topic, **change)
    else:
        found = await asked.client.redeliver_where(topic, **change)
    return json(ChangedAll(found.matched, found.results))


def _arguments(wanted: ChangeAll) -> dict[str, Any]:
    """Those that the action takes. Raises BadArgument, BadTime."""
    given = {
        "stop": or_none(wanted.stop),
        "deliver_at": moment_of(wanted.deliver_at),
        "delay": duration_of(wanted.delay, "delay"),
        "priority": or_none(wanted.priority),
        "acked": or_none(wanted.acked),
        "keep_attempts": or_none(wanted.keep_attempts),
    }
    taken = _OF_ACTION[wanted.action]
    for name, value in given.items():
        if value is not None and name not in taken:
            raise BadArgument(f"{wanted.action} takes no {name}.", advice=f"It takes {', '.join(taken)}.")
    return {name: value for name, value in given.items() if value is not None}
