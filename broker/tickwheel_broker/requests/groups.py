"""Requests about consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from tickwheel.protocol.bodies.groups import (
    CreateGroup,
    CreateGroupOk,
    DeleteGroup,
    DeleteGroupOk,
    GetGroups,
    SeekGroup,
    SeekGroupOk,
)
from tickwheel.protocol.bodies.requests import encode_map
from tickwheel.protocol.errors import GroupInUse
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.clock import Clock
from tickwheel_broker.delivery import Delivery
from tickwheel_broker.requests.answers import Answers, check_name
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import expect
from timerlog.engine.groups import Groups
from timerlog.engine.topics import Topics
from timerlog.tables.tables import Tables

_LIST_STEP: Final = 256
_ROOM_LEFT_BYTES: Final = 4_096


class GroupRequests:
    """Create, delete, move, show."""

    def __init__(
        self,
        groups: Groups,
        topics: Topics,
        tables: Tables,
        clock: Clock,
        readers: Readers,
        delivery: Delivery,
        publish: Callable[[], None],
        answers: Answers,
        *,
        max_frame_bytes: int,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._tables = tables
        self._clock = clock
        self._readers = readers
        self._delivery = delivery
        self._publish = publish
        self._answers = answers
        self._room_bytes = max_frame_bytes - _ROOM_LEFT_BYTES

    def create(self, caller: Caller, correlation: int, request: CreateGroup) -> None:
        """CREATE_GROUP."""
        check_name(request.group, "group")
        expect(caller, correlation, lambda made: CreateGroupOk(*made))
        made = self._groups.create(
            request.topic, request.group, request.start, request.ephemeral_ms, self._clock.now_ms()
        )
        self._answers.when_durable(caller, correlation, request, CreateGroupOk(*made))

    def delete(self, caller: Caller, correlation: int, request: DeleteGroup) -> None:
        """DELETE_GROUP."""
        subscribers = self._readers.of(self._groups.find(request.topic, request.group))
        if subscribers:
            raise GroupInUse(f"{request.group!r} of {request.topic!r} has {subscribers} subscribers.")
        expect(caller, correlation, DeleteGroupOk)
        backlog = self._groups.delete(request.topic, request.group)
        self._answers.when_durable(caller, correlation, request, DeleteGroupOk(backlog))

    def seek(self, caller: Caller, correlation: int, request: SeekGroup) -> None:
        """SEEK_GROUP: its subscribers stay, and lose what they hold."""
        expect(caller, correlation, SeekGroupOk)
        backlog = self._groups.seek(request.topic, request.group, request.to)
        self._publish()
        self._answers.when_durable(caller, correlation, request, SeekGroupOk(backlog))

    def show(self, caller: Caller, correlation: int, request: GetGroups) -> None:
        """GROUPS: a few at a time, as many as fit into one frame."""
        identity, tables = caller.identity, self._tables
        wanted = None
        if request.topic is not None:
            topic = tables.topics[self._topics.record(request.topic).topic_id]
            names = topic.groups if request.group is None else [request.group]
            wanted = {self._groups.find(request.topic, name) for name in names}

        async def work() -> bytes:
            found: list[dict[str, Any]] = []
            room_bytes = self._room_bytes
            async with self._answers.looking:
                for group_id in sorted(tables.groups if wanted is None else wanted):
                    if group_id <= request.after_id or group_id not in tables.groups:
                        continue
                    entry = self._described(group_id)
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

    def _described(self, group_id: int) -> dict[str, Any]:
        tables = self._tables
        topic = tables.topics[tables.groups[group_id].record.topic_id].record.name
        subscribers = self._delivery.subscribers_of(group_id)
        return self._groups.describe(group_id) | {"topic": topic, "subscribers": subscribers}
