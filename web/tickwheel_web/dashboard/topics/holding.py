"""What groups have before them and in hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from tickwheel import BrowsedMessage, Client, GroupState, MessageInfo
from tickwheel.stats import ClientInfo, ClientSubscription, TopicStats

MAX_UNASKED: Final = 20_000
"""Looking for single messages goes through all that the broker has: where there are more, it waits until one asks."""


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whether to look for single messages even so."""

    scan: bool = False
    tab: Literal["now", "settings"] = "now"
    """How it goes, or what can be changed: the settings of a topic, and what cannot be taken back."""


class Consumer(NamedTuple):
    """A subscription, and the connection that has it."""

    client: ClientInfo
    reads: ClientSubscription


class Held(NamedTuple):
    """A message, and how far a group is with it."""

    message: MessageInfo
    state: GroupState


def are_few(topics: Iterable[TopicStats]) -> bool:
    """Whether single messages can be looked for unasked."""
    return sum(one.messages for one in topics if not one.shard_of) <= MAX_UNASKED


async def consumers(client: Client, topic: str) -> list[Consumer]:
    """Of a topic and its shards are not told apart: a consumer of a sharded topic subscribes to it by its name."""
    return [
        Consumer(one, reads)
        for one in await client.clients()
        for reads in one.subscriptions
        if reads.topic == topic
    ]


async def oldest(client: Client, topic: str, group: str) -> BrowsedMessage | None:
    """The first message by id that a group is not done with."""
    found = await client.browse(
        topic, states=["ready", "leased", "waiting"], group=group, limit=1, max_body_bytes=0
    )
    return found[0] if found else None


async def held(client: Client, topic: str, group: str, state: str, limit: int) -> list[Held]:
    """The first messages that a group has in a state, in the order in which their lease or wait ends."""
    browsed = await client.browse(topic, states=[state], group=group, limit=limit, max_body_bytes=0)
    if not browsed:
        return []
    infos = await client.messages(ids=[one.id for one in browsed], max_body_bytes=0)
    found = [
        Held(info, one)
        for info in infos
        if info is not None
        for one in info.groups
        if one.group == group and one.state == state
    ]
    return sorted(found, key=lambda one: one.state.until_ms)
