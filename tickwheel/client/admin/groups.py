"""Consumer groups: looking at them, making, deleting and moving them; and single messages as groups see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import msgspec

from tickwheel._moments import moment, moment_or_none
from tickwheel.client.checks import flag, many_ids, many_keys, one_id, one_key
from tickwheel.client.columns import check_name
from tickwheel.client.consumer.headers import headers_of
from tickwheel.client.consumer.subscription import Start, ephemeral_ms, start_of_group
from tickwheel.client.requests import Requests
from tickwheel.client.times import Delay
from tickwheel.protocol.bodies.groups import (
    MAX_MESSAGES_A_REQUEST,
    CreateGroup,
    CreateGroupOk,
    DeleteGroup,
    DeleteGroupOk,
    GetGroups,
    GetMessages,
    SeekGroup,
    SeekGroupOk,
    SetGroup,
    SetGroupOk,
)
from tickwheel.protocol.errors import BadArgument, RemoteProtocolError, UnknownGroup
from tickwheel.stats import GroupInfo


class GroupState(msgspec.Struct, frozen=True):
    """How far one group is with a message."""

    group: str
    group_id: int
    state: str
    """ready, leased, waiting, acked, dead; ``not_its_own``: it lies before what the group is given."""
    epoch: int
    """How often it was delivered to the group."""
    attempts: int
    """Of these, those that count against ``max_attempts``."""
    until_ms: int
    """When its lease or its wait ends; 0: it has none."""
    done_ms: int
    """When it was acked or given up; 0: it was not."""

    until = moment_or_none("until_ms")
    done = moment_or_none("done_ms")


def standing(state: str, in_groups: Iterable[str]) -> str:
    """How a message stands, of its own state and those that it has in groups: once it is in its topic, that is how far
    the groups are that it is for.

    >>> standing("scheduled", []), standing("ready", []), standing("ready", ["dead"])
    ('scheduled', 'ready', 'dead')
    >>> standing("ready", ["acked", "not_its_own", "ready", "acked"]), standing("cancelled", ["acked"])
    ('acked, ready', 'cancelled')
    """
    if state != "ready":
        return state
    return ", ".join(dict.fromkeys(one for one in in_groups if one != "not_its_own")) or state


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of each message that the broker has."""

    id: int
    key: str
    """Empty: none."""
    order_key: str
    priority: int
    state: str
    """scheduled; ready: in its topic, then ``groups`` says how far each group is with it; cancelled, expired,
    damaged."""
    deliver_at_ms: int
    created_ms: int
    body: bytes = b""
    """It may be cut; ``body_bytes`` is its whole length."""
    body_bytes: int = 0
    headers_bytes: bytes = msgspec.field(name="headers", default=b"")

    deliver_at = moment("deliver_at_ms", "When it is, or was, due.")
    created = moment("created_ms", "When the broker stored it.")

    @property
    def headers(self) -> dict[str, Any]:
        """Raises RemoteProtocolError if another client wrote no valid ones."""
        return headers_of(self.id, self.headers_bytes)


class MessageInfo(StoredMessage, frozen=True, kw_only=True):
    """A message as the broker has it."""

    topic: str
    groups: list[GroupState]

    @property
    def standing(self) -> str:
        """How it stands in a word, or one for each of several: ``state`` until it is in its topic, and then what its
        ``groups`` say: ``acked``, ``dead``, ``leased, waiting``."""
        return standing(self.state, [one.state for one in self.groups])


class _Groups(msgspec.Struct, frozen=True):
    groups: list[GroupInfo]
    more: bool


class _Messages(msgspec.Struct, frozen=True):
    messages: list[MessageInfo | None]


class GroupRequests(Requests):
    """Groups, and messages one by one."""

    async def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """The groups of a topic, or of all topics, in order of their numbers. Raises UnknownTopic."""
        found: list[GroupInfo] = []
        while True:
            after = found[-1].group_id if found else 0
            answer = await self._ask(GetGroups(topic=topic, after_id=after), _Groups)
            found += answer.groups
            if not answer.more:
                return found

    async def group(self, topic: str, name: str) -> GroupInfo:
        """One group. Raises UnknownTopic, UnknownGroup."""
        found = (await self._ask(GetGroups(topic=topic, group=name), _Groups)).groups
        if not found:
            raise UnknownGroup(f"{topic!r} has no group {name!r}.")
        return found[0]

    async def create_group(
        self,
        topic: str,
        name: str,
        *,
        start: Start = "earliest",
        ephemeral: Delay | None = None,
        ignore_ordering_keys: bool = False,
    ) -> bool:
        """Makes a group before it has a subscriber; False: it is there already, and nothing was changed.

        It begins at ``start``, as ``subscribe`` has it. ``ephemeral``: it ends so long after its last subscriber has
        left. ``ignore_ordering_keys`` as in ``set_group``. Raises UnknownTopic, BadTopicName, TooManyGroups.
        """
        check_name(name, "group")
        request = CreateGroup(
            topic=topic,
            group=name,
            start=start_of_group(start),
            ephemeral_ms=ephemeral_ms(ephemeral),
            ignore_ordering_keys=flag(ignore_ordering_keys, "ignore_ordering_keys"),
        )
        return (await self._answer(request, CreateGroupOk)).created

    async def set_group(self, topic: str, name: str, *, ignore_ordering_keys: bool) -> bool:
        """Changes how a group is given messages; False: it was so already.

        ``ignore_ordering_keys``: messages with an ordering key come as those without, several of one key at a time and
        in any order, also those that wait for another one of their key now. False: in order again; what subscribers
        hold at this moment, or held, comes in any order. Raises UnknownTopic, UnknownGroup.
        """
        ignored = flag(ignore_ordering_keys, "ignore_ordering_keys")
        request = SetGroup(topic=topic, group=name, ignore_ordering_keys=ignored)
        return (await self._answer(request, SetGroupOk)).changed

    async def delete_group(self, topic: str, name: str) -> int:
        """Deletes a group with all that it knows; how many messages it was not done with. Messages are kept for it no
        longer. Raises UnknownTopic, UnknownGroup, and GroupInUse while it has subscribers."""
        return (await self._answer(DeleteGroup(topic=topic, group=name), DeleteGroupOk)).backlog

    async def seek_group(self, topic: str, name: str, *, to: Start) -> int:
        """Lets a group begin anew: at the topic's ``"earliest"`` message, behind its ``"latest"`` one, or at the first
        that was due at a moment or later. Returns how many messages it is not done with then.

        What lies from there on is delivered (again), also what was acked or given up, with higher epochs; what lies
        before is not delivered any more. Subscribers stay. They lose what they hold: their receipts are stale.
        Raises UnknownTopic, UnknownGroup.
        """
        request = SeekGroup(topic=topic, group=name, to=start_of_group(to))
        return (await self._answer(request, SeekGroupOk)).backlog

    @overload
    async def message(self, *, id: int, max_body_bytes: int = ...) -> MessageInfo | None: ...
    @overload
    async def message(self, topic: str, *, key: str, max_body_bytes: int = ...) -> MessageInfo | None: ...
    async def message(
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        key: str | None = None,
        max_body_bytes: int = 16 * 1024 * 1024,
    ) -> MessageInfo | None:
        """One message by its id, or by topic and key, without taking it; None: there is none, or none any more. It
        costs the same however many there are."""
        if (id is None) == (key is None):
            raise BadArgument("The message meant is not clear.", advice="Give id=, or a topic with key=.")
        if key is None:
            found = await self.messages(topic, ids=[one_id(id)], max_body_bytes=max_body_bytes)
        else:
            found = await self.messages(topic, keys=[one_key(key)], max_body_bytes=max_body_bytes)
        return found[0]

    async def messages(
        self,
        topic: str | None = None,
        *,
        ids: Sequence[int] | None = None,
        keys: Sequence[str] | None = None,
        max_body_bytes: int = 16 * 1024 * 1024,
    ) -> list[MessageInfo | None]:
        """Several messages by their ids, or by topic and keys: one for each, or None. Bodies are cut to
        ``max_body_bytes``."""
        if (ids is None) == (keys is None) or (topic is None) != (keys is None):
            raise BadArgument("The messages meant are not clear.", advice="Give ids=, or a topic with keys=.")
        found: list[MessageInfo | None] = []
        wanted: Sequence[Any] = many_ids(ids) if keys is None else many_keys(keys)
        if topic is not None:
            check_name(topic)
        for start in range(0, len(wanted), MAX_MESSAGES_A_REQUEST):
            part = wanted[start : start + MAX_MESSAGES_A_REQUEST]
            which: dict[str, Any] = {"ids": part} if keys is None else {"topic": topic, "keys": part}
            done = 0
            while done < len(part):
                request = GetMessages(**which, max_body_bytes=max_body_bytes, skip=done)
                some = (await self._ask(request, _Messages)).messages
                done += len(some)
                found += some
                if not some:
                    raise RemoteProtocolError("An answer about messages was empty.")
        return found
