"""Requests about consumer groups and about single messages; and the groups that are kept, or end by themselves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import trio

from tickwheel.protocol.bodies.groups import (
    CreateGroup,
    CreateGroupOk,
    DeleteGroup,
    DeleteGroupOk,
    GetGroups,
    GetMessages,
    SeekGroup,
    SeekGroupOk,
)
from tickwheel.protocol.bodies.requests import encode_map
from tickwheel.protocol.errors import GroupInUse
from tickwheel_broker import logs
from tickwheel_broker.errors import advice_for
from tickwheel_broker.requests import remembered as remembering
from tickwheel_broker.requests.answers import Caller, check_name, when_durable
from timerlog.errors import DiskFull

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker

SEEN_AGAIN_MS: Final = 3_600_000
"""After a crash the time at which a group was last read is exact to so much."""
_LIST_STEP: Final = 256
_MESSAGES_STEP: Final = 128
_ROOM_LEFT_BYTES: Final = 4_096

_log = logs.get_logger("groups")


class Readers:
    """Which groups have subscribers. The log knows when a group got its first one and lost its last one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store, self._clock = broker.store, broker.clock
        self._subscribers = Counter[int]()
        self._noted_ms = self._opened_ms = broker.clock.now_ms()

    def joined(self, group_id: int) -> None:
        """A group, or the part of one in a shard, got a subscriber."""
        group_id = self._store.main_group(group_id)
        self._subscribers[group_id] += 1
        if self._subscribers[group_id] == 1:
            self._store.readers_changed(group_id, self._clock.now_ms(), has_readers=True)

    def left(self, group_id: int) -> None:
        """A subscriber left, or is gone."""
        group_id = self._store.main_group(group_id)
        self._subscribers[group_id] -= 1
        if not self._subscribers[group_id]:
            del self._subscribers[group_id]
            self._store.readers_changed(group_id, self._clock.now_ms(), has_readers=False)

    def of(self, group_id: int) -> int:
        """How many subscribers a group has in all its shards, also those that are not served yet."""
        return self._subscribers.get(group_id, 0)

    def keep(self, now_ms: int) -> None:
        """Once a second: notes now and then which groups are still read, and ends ephemeral ones."""
        if now_ms - self._noted_ms >= SEEN_AGAIN_MS:
            self._noted_ms = now_ms
            for group_id in list(self._subscribers):
                self._store.readers_changed(group_id, now_ms, has_readers=True)
        try:
            ended = self._store.end_ephemeral(now_ms, self._opened_ms, lambda one: bool(self.of(one)))
        except DiskFull as error:
            _log.error("ephemeral groups cannot be ended: the disk is full", advice=advice_for(error))
            return
        for topic, group in ended:
            _log.info("an ephemeral group has ended", topic=topic, group=group)
        if ended:
            self._broker.commit.mark_dirty()


def create_group(caller: Caller, correlation: int, request: CreateGroup) -> None:
    """CREATE_GROUP."""
    broker = caller.broker
    check_name(request.group, "group")
    remembering.expect(caller, correlation, lambda made: CreateGroupOk(*made))
    made = broker.store.create_group(
        request.topic, request.group, request.start, request.ephemeral_ms, broker.clock.now_ms()
    )
    when_durable(caller, correlation, request, CreateGroupOk(*made))


def delete_group(caller: Caller, correlation: int, request: DeleteGroup) -> None:
    """DELETE_GROUP."""
    broker = caller.broker
    subscribers = broker.readers.of(broker.store.find_group(request.topic, request.group))
    if subscribers:
        raise GroupInUse(f"{request.group!r} of {request.topic!r} has {subscribers} subscribers.")
    remembering.expect(caller, correlation, DeleteGroupOk)
    backlog = broker.store.delete_group(request.topic, request.group)
    when_durable(caller, correlation, request, DeleteGroupOk(backlog))


def seek_group(caller: Caller, correlation: int, request: SeekGroup) -> None:
    """SEEK_GROUP: its subscribers stay, and lose what they hold."""
    broker = caller.broker
    remembering.expect(caller, correlation, SeekGroupOk)
    backlog = broker.store.seek_group(request.topic, request.group, request.to)
    broker.after_change()
    when_durable(caller, correlation, request, SeekGroupOk(backlog))


def list_groups(caller: Caller, correlation: int, request: GetGroups) -> None:
    """GROUPS: a few at a time, as many as fit into one frame."""
    broker, identity = caller.broker, caller.identity
    tables = broker.store.tables
    wanted = None
    if request.topic is not None:
        topic = tables.topics[broker.store.topic(request.topic).topic_id]
        names = topic.groups if request.group is None else [request.group]
        wanted = {broker.store.find_group(request.topic, name) for name in names}

    async def work() -> bytes:
        found: list[dict[str, Any]] = []
        room_bytes = broker.settings.max_frame_bytes - _ROOM_LEFT_BYTES
        async with broker.looking:
            for group_id in sorted(tables.groups if wanted is None else wanted):
                if group_id <= request.after_id or group_id not in tables.groups:
                    continue
                entry = _described(broker, group_id)
                if wanted is None and not identity.sees(entry["topic"]):
                    continue
                room_bytes -= 512 + len(entry["topic"]) + len(entry["name"])
                if room_bytes < 0:
                    return encode_map({"groups": found, "more": True})
                found.append(entry)
                if len(found) % _LIST_STEP == 0:
                    await trio.lowlevel.checkpoint()
        return encode_map({"groups": found, "more": False})

    caller.answer_later(correlation, request, work)


def _described(broker: Broker, group_id: int) -> dict[str, Any]:
    tables = broker.store.tables
    topic = tables.topics[tables.groups[group_id].record.topic_id].record.name
    subscribers = broker.delivery.subscribers_of(group_id)
    return broker.store.describe_group(group_id) | {"topic": topic, "subscribers": subscribers}


def get_messages(caller: Caller, correlation: int, request: GetMessages) -> None:
    """GET_MESSAGES: those that are there, as many as fit into one frame."""
    broker, store = caller.broker, caller.broker.store
    if request.keys is not None and request.topic is not None:
        store.topic(request.topic)
        ids = store.find(request.topic, request.keys)
    else:
        ids = request.ids or []

    async def work() -> bytes:
        found: list[dict[str, Any] | None] = []
        room_bytes = broker.settings.max_frame_bytes - _ROOM_LEFT_BYTES
        async with broker.looking:
            for place, message_id in enumerate(ids[request.skip :]):
                entry = store.message(message_id, broker.clock.now_ms(), request.max_body_bytes)
                if entry is not None:
                    size_bytes = (
                        1024 + len(entry["body"]) + len(entry["headers"]) + 256 * len(entry["groups"])
                    )
                    if found and size_bytes > room_bytes:
                        break
                    room_bytes -= size_bytes
                found.append(entry)
                if place % _MESSAGES_STEP == 0:
                    await trio.lowlevel.checkpoint()
        return encode_map({"messages": found})

    caller.answer_later(correlation, request, work)
