"""One topic: how much is where, its groups, its settings."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tickwheel.errors import BadTopicSettings
from tickwheel.protocol.limits import dead_topic
from tickwheel.protocol.readable import noun
from tickwheel.stats import GroupInfo
from tickwheel_web.dashboard.acting import counted, need_typed
from tickwheel_web.dashboard.forms import Wrong
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.topics import settings
from tickwheel_web.dashboard.topics.activity import TICKS, activities, hour
from tickwheel_web.dashboard.topics.holding import are_few, consumers, oldest

MAX_GROUPS: Final = 200
MAX_OLDEST: Final = 20
"""Groups whose oldest message is looked for."""


async def topic(viewed: Viewed) -> Response:
    """Asks for what lies in it by numbers alone, and of some groups for one message."""
    name = viewed.path("topic")
    info = await viewed.client.topic(name)
    everything = {one.name: one for one in await viewed.client.topics()}
    groups = sorted(await viewed.client.groups(name), key=lambda group: group.name)
    shown = groups[:MAX_GROUPS]
    is_quick = are_few(everything.values())
    minutes = viewed.site.history.traffic.minutes(info.topic_id)
    looks = viewed.rights.sees(f"query:{name}") and (is_quick or viewed.query.scan)
    return viewed.page(
        "topics/topic.html",
        topic=name,
        info=info,
        stats=everything.get(name),
        dead=everything[dead_topic(name)].ready if dead_topic(name) in everything else 0,
        dead_topic=dead_topic(name),
        shards=[one for one in everything.values() if one.shard_of == name],
        groups=shown,
        more_groups=len(groups) - len(shown),
        backlog=sum(group.backlog for group in groups),
        in_flight=sum(group.leased for group in groups),
        is_quick=is_quick,
        most_oldest=MAX_OLDEST if sum(bool(group.backlog) for group in shown) > MAX_OLDEST else 0,
        oldest=await _oldest(viewed, name, shown) if looks else None,
        credit=await _credit(viewed, name),
        activity=(await activities(viewed)).of_topic(name),
        hour=hour(minutes) if minutes else None,
        ticks=TICKS,
        settings=settings.settings(info),
    )


async def pause(viewed: Viewed) -> Response:
    """Nothing is delivered until it is resumed."""
    name = viewed.path("topic")
    await viewed.client.pause_topic(name)
    text = f"{name} is paused: nothing of it is delivered, and messages still come in."
    return viewed.done(_back(viewed), text, ["topics", "pause", name])


async def resume(viewed: Viewed) -> Response:
    """It is delivered again."""
    name = viewed.path("topic")
    await viewed.client.resume_topic(name)
    return viewed.done(_back(viewed), f"{name} is delivered again.", ["topics", "resume", name])


async def change(viewed: Viewed) -> Response:
    """All of it, or nothing."""
    name = viewed.path("topic")
    try:
        wanted = settings.changes(viewed)
        if not wanted.values and not wanted.unset:
            return viewed.done(viewed.above, "No setting was changed: all are as they were.", tone="warn")
        info = await viewed.client.set_topic(name, unset=wanted.unset, **wanted.values)
    except (Wrong, BadTopicSettings) as error:
        form, found = settings.refused(viewed, await viewed.client.topic(name), error)
        return viewed.page("topics/settings.html", status=form.status, topic=name, form=form, settings=found)
    now = {one.name: one for one in settings.settings(info)}
    told = [f"{one} is {now[one].effective}" for one in wanted.values]
    told += [f"{one} is {now[one].effective} again, as the broker says" for one in wanted.unset]
    return viewed.done(viewed.above, f"{', '.join(told)}.", ["topics", "set", name, *wanted.words])


async def cancel(viewed: Viewed) -> Response:
    """What is scheduled is not delivered, what was delivered is not delivered again."""
    name = viewed.path("topic")
    need_typed(viewed, name)
    found = await viewed.client.cancel_where(name, stop=True)
    return counted(viewed, viewed.above, found.results, ["cancel", name, "--all", "--stop"])


async def delete(viewed: Viewed) -> Response:
    """With all its messages and groups."""
    name = viewed.path("topic")
    need_typed(viewed, name)
    count = await viewed.client.delete_topic(name)
    text = f"The topic {name} was deleted, with {noun(count, 'message')}."
    return viewed.done("/topics", text, ["topics", "delete", name])


def _back(viewed: Viewed) -> str:
    """To where the form was: the list, or the topic."""
    return "/topics" if viewed.field("back") == "topics" else viewed.above


async def _oldest(viewed: Viewed, topic: str, groups: list[GroupInfo]) -> dict[str, object]:
    """When the first message was due that a group is not done with, by groups."""
    waiting = [group.name for group in groups if group.backlog][:MAX_OLDEST]
    found = {name: await oldest(viewed.client, topic, name) for name in waiting}
    return {name: one.deliver_at for name, one in found.items() if one is not None}


async def _credit(viewed: Viewed, topic: str) -> dict[str, int] | None:
    """For how many messages the consumers of each group have room; None: the token may not know."""
    if not viewed.rights.sees("admin:*"):
        return None
    found: dict[str, int] = {}
    for one in await consumers(viewed.client, topic):
        found[one.reads.group] = found.get(one.reads.group, 0) + one.reads.credit
    return found
