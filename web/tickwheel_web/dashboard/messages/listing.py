"""A list of messages of one topic, the soonest first or in order of their ids, a part after the other."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from tickwheel import BrowsedMessage, MessageInfo
from tickwheel.protocol.limits import MAX_ID
from tickwheel.protocol.message_states import STATES
from tickwheel_web.dashboard.forms import whole
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.messages.search import Wanted, read
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
    order = {"order": viewed.query.order} if viewed.query.order else {}
    return viewed.page(
        "messages/messages.html",
        wanted=wanted,
        states=CHOICES,
        now=now,
        rows=rows,
        following=wanted.address(after=following, **order) if following else None,
        first=wanted.address(**order),
        by_id=wanted.address(order="id"),
        soonest=wanted.address(),
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


async def _rows(viewed: Viewed, wanted: Wanted) -> tuple[list[Row], str]:
    """The soonest first, or in order of ids; and behind which the next ones are, or nothing. Raises BadArgument."""
    after_ms, _, after_id = (viewed.query.after or "0").rpartition(".")
    client, topic, is_soonest = viewed.client, wanted.topic, not viewed.query.order
    if wanted.key:
        one = await client.message(topic, key=wanted.key, max_body_bytes=0)
        return ([] if one is None else [_row(one)]), ""
    browse = partial(client.browse, topic, max_body_bytes=0, soonest=is_soonest, **wanted.where)
    place = whole(after_ms or "0", "after"), whole(after_id, "after")
    found = await browse(after_ms=place[0], after_id=place[1], limit=ROWS)
    if not found:
        return [], ""
    # An answer has fewer than were asked for where no more have room in it.
    place = found[-1].deliver_at_ms if is_soonest else 0, found[-1].id
    more = await browse(after_ms=place[0], after_id=place[1], limit=1)
    return [_row(one) for one in found], f"{place[0]}.{place[1]}" if more else ""


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
