"""Requests about consumer groups."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio

from tickwheel.protocol.bodies.groups import (
    CreateGroup,
    CreateGroupOk,
    DeleteGroup,
    DeleteGroupOk,
    GetGroups,
    SeekGroup,
    SeekGroupOk,
    SetGroup,
    SetGroupOk,
)
from tickwheel.protocol.bodies.requests import encode_entry, encode_map
from tickwheel.protocol.errors import GroupInUse
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.documents.endpoints import Endpoints, room_of_state
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.requests.caller import Work
from timerlog.engine.groups import Groups
from timerlog.engine.topics import Topics
from timerlog.tables.tables import Tables

_LIST_STEP: Final = 256
_ROOM_LEFT_BYTES: Final = 4_096


class GroupRequests:
    """Create, delete, move, show."""

    def __init__(
        self,
        *,
        groups: Groups,
        topics: Topics,
        tables: Tables,
        clock: Clock,
        readers: Readers,
        endpoints: Endpoints,
        delivery: Delivery,
        settings: Settings,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._tables = tables
        self._clock = clock
        self._readers = readers
        self._endpoints = endpoints
        self._delivery = delivery
        self._settings = settings

    def create(self, request: CreateGroup, asked: Asked) -> CreateGroupOk:
        """CREATE_GROUP."""
        check_name(request.group, "group")
        asked.expect(lambda made: CreateGroupOk(*made))
        made = self._groups.create(
            request.topic,
            request.group,
            request.start,
            request.ephemeral_ms,
            self._clock.now_ms(),
            ignores_order=request.ignore_ordering_keys,
        )
        return CreateGroupOk(*made)

    def delete(self, request: DeleteGroup, asked: Asked) -> DeleteGroupOk:
        """DELETE_GROUP."""
        subscribers = self._readers.of(self._groups.find(request.topic, request.group))
        if subscribers:
            raise GroupInUse(f"{request.group!r} of {request.topic!r} has {subscribers} subscribers.")
        self._endpoints.check_unused(request.topic, request.group)
        asked.expect(DeleteGroupOk)
        backlog = self._groups.delete(request.topic, request.group)
        return DeleteGroupOk(backlog)

    def seek(self, request: SeekGroup, asked: Asked) -> SeekGroupOk:
        """SEEK_GROUP: its subscribers stay, and lose what they hold."""
        asked.expect(SeekGroupOk)
        backlog = self._groups.seek(request.topic, request.group, request.to)
        return SeekGroupOk(backlog)

    def set(self, request: SetGroup, asked: Asked) -> SetGroupOk:
        """SET_GROUP: its subscribers stay, and keep what they hold."""
        asked.expect(SetGroupOk)
        changed = self._groups.ignore_order(
            request.topic, request.group, ignores_order=request.ignore_ordering_keys
        )
        return SetGroupOk(changed)

    def show(self, request: GetGroups, asked: Asked) -> Work:
        """GROUPS: a few at a time, as many as fit into one frame."""
        identity, tables = asked.caller.identity, self._tables
        wanted = None
        if request.topic is not None:
            topic = tables.topics[self._topics.record(request.topic).topic_id]
            names = topic.groups if request.group is None else [request.group]
            wanted = {self._groups.find(request.topic, name) for name in names}

        async def work() -> bytes:
            found: list[msgspec.Raw] = []
            room_bytes = self._settings.max_frame_bytes - _ROOM_LEFT_BYTES
            for group_id in sorted(tables.groups if wanted is None else wanted):
                if group_id <= request.after_id or group_id not in tables.groups:
                    continue
                entry = self._described(group_id)
                if wanted is None and not identity.sees(entry["topic"]):
                    continue
                room_bytes -= 512 + len(entry["topic"]) + len(entry["name"]) + room_of_state(entry)
                if room_bytes < 0:
                    return encode_map({"groups": found, "more": True})
                found.append(encode_entry(entry))
                if len(found) % _LIST_STEP == 0:
                    await trio.lowlevel.checkpoint()
            return encode_map({"groups": found, "more": False})

        return asked.looking(work)

    def _described(self, group_id: int) -> dict[str, Any]:
        tables = self._tables
        topic = tables.topics[tables.groups[group_id].record.topic_id].record.name
        subscribers = self._delivery.subscribers_of(group_id)
        entry = self._groups.describe(group_id) | {"topic": topic, "subscribers": subscribers}
        self._endpoints.describe_group(topic, entry)
        return entry
