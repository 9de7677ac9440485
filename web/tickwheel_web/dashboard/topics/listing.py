"""The list of topics: how much is where, and what is special about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio
from starlette.responses import Response

from tickwheel.errors import Forbidden, TickwheelError, UnknownTopic
from tickwheel.protocol.limits import DEAD_SUFFIX
from tickwheel.stats import TopicInfo, TopicStats
from tickwheel.watching.activity import Activity
from tickwheel_web.dashboard.acting import path_to
from tickwheel_web.dashboard.listing import listed
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.topics.activity import activities
from tickwheel_web.dashboard.topics.settings import told
from tickwheel_web.reading import converted
from tickwheel_web.topics.shapes import NewTopic


class Row(NamedTuple):
    """A topic."""

    stats: TopicStats
    backlog: int
    in_flight: int
    dead: int
    """Letters that lie in its topic of dead letters."""
    shards: int
    settings: str
    """Those that were set for it."""
    activity: Activity


async def topics(viewed: Viewed) -> Response:
    """The names are one request; settings are asked for those on the page."""
    everything = await viewed.client.topics()
    lately = await activities(viewed)
    letters = {one.name: one.ready for one in everything if one.name.endswith(DEAD_SUFFIX)}
    orders: dict[str, Callable[[TopicStats], float]] = {
        "scheduled": lambda one: one.scheduled,
        "backlog": _backlog,
        "in flight": lambda one: sum(group.leased for group in one.groups),
        "dead letters": lambda one: letters.get(f"{one.name}{DEAD_SUFFIX}", 0),
        "groups": lambda one: len(one.groups),
        "sent": lambda one: lately.of_topic(one.name).sent or 0,
        "delivered": lambda one: lately.of_topic(one.name).delivered or 0,
    }
    wanted = _wanted(everything, viewed.query.search)
    part = listed(viewed, wanted, lambda topic: topic.name, orders=orders)
    infos = await _infos(viewed, [one.name for one in part.rows])
    return viewed.page(
        "topics/topics.html",
        rows=[
            Row(
                stats=one,
                backlog=_backlog(one),
                in_flight=sum(group.leased for group in one.groups),
                dead=letters.get(f"{one.name}{DEAD_SUFFIX}", 0),
                shards=len(infos[one.name].shards) if one.name in infos else 0,
                settings=told(infos[one.name].settings) if one.name in infos else "",
                activity=lately.of_topic(one.name),
            )
            for one in part.rows
        ],
        part=part,
        has_rates=viewed.rights.sees("query:*"),
    )


def _backlog(topic: TopicStats) -> int:
    return sum(group.backlog for group in topic.groups)


async def create(viewed: Viewed) -> Response:
    """With the broker's settings, which its page can change."""
    name, shards = viewed.field("name"), viewed.field("shards")
    given = converted(NewTopic, {"shards": shards} if shards else {}).shards
    count = given if isinstance(given, int) else 0
    try:
        await viewed.client.topic(name)
        is_new = False
    except (UnknownTopic, Forbidden):  # who may not, hears it of what follows
        is_new = True
    await viewed.client.create_topic(name, shards=count)
    does_same = ["topics", "create", name, *(("--shards", str(count)) if count else ())]
    if is_new:
        return viewed.done(path_to("topics", name), f"The topic {name} was created.", does_same)
    text = f"The topic {name} was there already. Nothing was changed."
    return viewed.done(path_to("topics", name), text, does_same, "warn")


def _wanted(everything: Sequence[TopicStats], search: str) -> list[TopicStats]:
    """Without shards; without topics of dead letters unless they are searched for: they stand beside their topics."""
    names = {one.name for one in everything}
    return [
        one
        for one in everything
        if not one.shard_of and (search or one.name.removesuffix(DEAD_SUFFIX) not in names - {one.name})
    ]


async def _infos(viewed: Viewed, names: Sequence[str]) -> dict[str, TopicInfo]:
    """All at once. One that was deleted meanwhile is left out."""
    found: dict[str, TopicInfo] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = await viewed.client.topic(name)
        except TickwheelError:
            return

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(ask, name)
    return found
