"""One consumer group: what it has before it, in hand, and behind it."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from starlette.responses import Response

from tickwheel.errors import BadArgument, BadTime
from tickwheel.protocol.limits import dead_topic
from tickwheel.protocol.moments import parse_moment
from tickwheel.protocol.readable import noun
from tickwheel_web.dashboard.acting import counted, need_typed, path_to
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.topics.activity import activities
from tickwheel_web.dashboard.topics.holding import are_few, consumers, held, oldest

MAX_ROWS: Final = 50
PLACES: Final[dict[str, Literal["earliest", "latest"]]] = {"earliest": "earliest", "latest": "latest"}
STATES: Final = {
    "waiting": "what waits for its next attempt",
    "leased": "what is in flight: its holders lose it",
}


async def group(viewed: Viewed) -> Response:
    """Asks for single messages only where the group has some."""
    client, topic, name = viewed.client, viewed.path("topic"), viewed.path("group")
    found = await client.group(topic, name)
    sees_messages = viewed.rights.sees(f"query:{topic}")
    everything = await client.topics()
    is_quick = are_few(everything)
    has_looked = sees_messages and viewed.query.tab == "now" and (is_quick or viewed.query.scan)
    looks = has_looked and found.backlog > 0
    parts = [(one, part) for one in everything if one.shard_of == topic for part in one.groups]
    return viewed.page(
        "topics/group.html",
        topic=topic,
        group=found,
        dead_topic=dead_topic(topic),
        sees_messages=sees_messages,
        is_quick=is_quick,
        has_looked=has_looked,
        oldest=await oldest(client, topic, name) if looks else None,
        leased=await held(client, topic, name, "leased", MAX_ROWS) if looks and found.leased else [],
        waiting=await held(client, topic, name, "waiting", MAX_ROWS) if looks else [],
        max_rows=MAX_ROWS,
        consumers=[one for one in await consumers(client, topic) if one.reads.group == name]
        if viewed.rights.sees("admin:*")
        else None,
        shards=[(one.name, part) for one, part in parts if part.name == name],
        activity=(await activities(viewed)).of_group(topic, name),
        states=STATES,
    )


async def create(viewed: Viewed) -> Response:
    """One that is there stays as it is."""
    topic, name, start = viewed.path("topic"), viewed.field("name"), viewed.field("start") or "earliest"
    if start not in PLACES:
        raise BadArgument(f"A group cannot begin at {start!r}.", advice="Choose earliest or latest.")
    is_new = await viewed.client.create_group(topic, name, start=PLACES[start])
    text = (
        f"The group {name} was created; it begins at the {start} message."
        if is_new
        else f"The group {name} was there already. Nothing was changed."
    )
    does_same = ["groups", "create", topic, name, "--start", start]
    return viewed.done(
        path_to("topics", topic, "groups", name), text, does_same, "good" if is_new else "warn"
    )


async def seek(viewed: Viewed) -> Response:
    """What lies from there on is delivered again, what lies before is left out."""
    topic, name = viewed.path("topic"), viewed.path("group")
    need_typed(viewed, name)
    to = viewed.field("to") if viewed.field("to") in PLACES else viewed.field("time")
    backlog = await viewed.client.seek_group(topic, name, to=PLACES.get(to) or _moment(to))
    text = f"{name} goes on at {to}: {noun(backlog, 'message')} before it."
    return viewed.done(viewed.above, text, ["groups", "seek", topic, name, "--to", to])


async def redeliver(viewed: Viewed) -> Response:
    """Those in one state, at once."""
    topic, name, state = viewed.path("topic"), viewed.path("group"), viewed.field("state")
    need_typed(viewed, name)
    if state not in STATES:
        raise BadArgument(f"{state!r} is not delivered again.", advice=f"Choose {' or '.join(STATES)}.")
    found = await viewed.client.redeliver_where(topic, states=[state], group=name)
    does_same = ["redeliver", topic, "--state", state, "--group", name]
    return counted(viewed, viewed.above, found.results, does_same)


async def delete(viewed: Viewed) -> Response:
    """Messages are kept for it no longer."""
    topic, name = viewed.path("topic"), viewed.path("group")
    need_typed(viewed, name)
    backlog = await viewed.client.delete_group(topic, name)
    text = f"The group {name} was deleted; it was not done with {noun(backlog, 'message')}."
    return viewed.done(path_to("topics", topic), text, ["groups", "delete", topic, name])


def _moment(text: str) -> datetime:
    """With or without an offset: the client refuses one without. Raises BadTime."""
    try:
        return parse_moment(text)
    except ValueError:
        raise BadTime(f"{text!r} is no time.", advice="Write it as 2031-05-01T09:00+02:00.") from None
