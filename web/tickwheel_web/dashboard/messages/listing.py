"""A list of messages of one topic, in order of their ids, a part after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from tickwheel import BrowsedMessage, Client, MessageInfo
from tickwheel.protocol.limits import MAX_ID
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.messages.search import STATES, Wanted, read
from tickwheel_web.dashboard.page import Viewed

ROWS: Final = 50
CHOICES: Final = [("", "any"), *((state, state) for state in STATES)]
MAX_TOPICS: Final = 200
TONES: Final = {"dead": "bad", "damaged": "bad", "waiting": "warn", "acked": "good"}


class Row(NamedTuple):
    """A message in the list."""

    id: int
    key: str
    states: list[tuple[str, str]]
    """Each with its tone: of the message itself while it is not due, and then those that it has in groups."""
    deliver_at: datetime
    deliveries: int
    """Most that a group has had."""
    body_bytes: int


async def messages(viewed: Viewed) -> Response:
    """Without a topic, those are shown that there are."""
    now = datetime.now(UTC)
    wanted = read(viewed.query, now)
    if wanted.id is not None:
        root = viewed.request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/messages/{min(wanted.id, MAX_ID)}", 303, HEADERS)
    if not wanted.topic:
        topics, more = await topics_of(viewed)
        return viewed.page(
            "messages/topics.html", wanted=wanted, states=CHOICES, topics=topics, more_topics=more
        )
    rows, following = await _rows(viewed, wanted)
    return viewed.page(
        "messages/messages.html",
        wanted=wanted,
        states=CHOICES,
        now=now,
        rows=rows,
        following=None if following is None else wanted.address(after=str(following)),
        is_first=not viewed.query.after,
        actions=actions_of(viewed, wanted.topic),
        twin=f"/v1/topics/{quote(wanted.topic, safe='')}/messages",
    )


async def topics_of(viewed: Viewed, right: str = "query") -> tuple[list[tuple[str, int]], int]:
    """Names, with how many messages are scheduled or due, of those of which the token may do something; those with most
    messages first, and how many more there are."""
    found = [
        (one.name, one.scheduled + one.ready)
        for one in await viewed.client.topics()
        if not one.shard_of and viewed.rights.sees(f"{right}:{one.name}")
    ]
    found.sort(key=lambda one: (-one[1], one[0]))
    return found[:MAX_TOPICS], max(0, len(found) - MAX_TOPICS)


async def _rows(viewed: Viewed, wanted: Wanted) -> tuple[list[Row], int | None]:
    """And the id behind which the next ones are. Raises BadArgument."""
    after = whole(viewed.query.after or "0", "after")
    client, topic = viewed.client, wanted.topic
    if wanted.key:
        one = await client.message(topic, key=wanted.key, max_body_bytes=0)
        return ([] if one is None else [_row(one)]), None
    found = await client.browse(topic, after_id=after, limit=ROWS, max_body_bytes=0, **wanted.where)
    return [_row(one) for one in found], await following_id(client, topic, found, wanted.where)


async def following_id(
    client: Client, topic: str, found: Sequence[BrowsedMessage], where: Mapping[str, Any]
) -> int | None:
    """Behind which there are more than were found: an answer has fewer than were asked for where no more have room in
    it. None: there are no more."""
    if not found:
        return None
    more = await client.browse(topic, after_id=found[-1].id, limit=1, max_body_bytes=0, **where)
    return found[-1].id if more else None


def _row(found: BrowsedMessage | MessageInfo) -> Row:
    deliveries = [one["epoch"] if isinstance(one, dict) else one.epoch for one in found.groups]
    return Row(
        found.id,
        found.key,
        [(state, TONES.get(state, "")) for state in found.standing.split(", ")],
        found.deliver_at,
        max(deliveries, default=0),
        found.body_bytes,
    )


ACTIONS: Final = {
    "cancel": ("Cancel", "publish"),
    "stop": ("Cancel, stop what was delivered", "publish"),
    "reschedule": ("Give another time", "publish"),
    "priority": ("Give another priority", "publish"),
    "redeliver": ("Deliver again", "consume"),
}


def actions_of(viewed: Viewed, topic: str) -> list[tuple[str, str]]:
    """What the token may do with messages of the topic."""
    return [(name, text) for name, (text, right) in ACTIONS.items() if viewed.rights.may(f"{right}:{topic}")]
