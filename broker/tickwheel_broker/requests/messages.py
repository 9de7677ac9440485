"""Requests that look at messages: those of a topic one after the other, and single ones."""

from __future__ import annotations

from typing import Any, Final

import trio

from tickwheel.protocol.bodies.admin import Browse
from tickwheel.protocol.bodies.groups import GetMessages
from tickwheel.protocol.bodies.requests import encode_map
from tickwheel_broker.clock import Clock
from tickwheel_broker.requests.answers import Answers
from tickwheel_broker.requests.caller import Caller
from timerlog.engine.select import Filter, Select
from timerlog.engine.topics import Topics

_STEP: Final = 128
"""As many messages are looked at at once."""

_ROOM_LEFT_BYTES: Final = 4_096


class MessageRequests:
    """In steps, beside everything else; as many messages as fit into one frame."""

    def __init__(
        self, topics: Topics, select: Select, clock: Clock, answers: Answers, *, max_frame_bytes: int
    ) -> None:
        self._topics = topics
        self._select = select
        self._clock = clock
        self._answers = answers
        self._room_bytes = max_frame_bytes - _ROOM_LEFT_BYTES

    def browse(self, caller: Caller, correlation: int, request: Browse) -> None:
        """BROWSE."""
        topic_id = self._topics.record(request.topic).topic_id

        async def work() -> bytes:
            async with self._answers.looking:
                return encode_map({"messages": await self._browse(topic_id, request)})

        caller.answer_later(correlation, request, work)

    async def _browse(self, topic_id: int, request: Browse) -> list[dict[str, Any]]:
        wanted = Filter(states=None if request.states is None else frozenset(request.states))
        now_ms = self._clock.now_ms()
        room_bytes = self._room_bytes
        found: list[dict[str, Any]] = []
        for ids in self._select.matching(topic_id, wanted, now_ms, request.after_id):
            for start in range(0, len(ids), _STEP):
                for entry in self._select.browse(ids[start : start + _STEP], now_ms, request.max_body_bytes):
                    room_bytes -= 512 + _size(entry, 128)
                    if room_bytes < 0 or len(found) == request.limit:
                        return found
                    found.append(entry)
                await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        return found

    def get(self, caller: Caller, correlation: int, request: GetMessages) -> None:
        """GET_MESSAGES: those that are there."""
        if request.keys is not None and request.topic is not None:
            self._topics.record(request.topic)
            ids = self._select.find(request.topic, request.keys)
        else:
            ids = request.ids or []

        async def work() -> bytes:
            found: list[dict[str, Any] | None] = []
            room_bytes = self._room_bytes
            async with self._answers.looking:
                for place, message_id in enumerate(ids[request.skip :]):
                    entry = self._select.message(message_id, self._clock.now_ms(), request.max_body_bytes)
                    if entry is not None:
                        size_bytes = 1024 + _size(entry, 256)
                        if found and size_bytes > room_bytes:
                            break
                        room_bytes -= size_bytes
                    found.append(entry)
                    if place % _STEP == 0:
                        await trio.lowlevel.checkpoint()
            return encode_map({"messages": found})

        caller.answer_later(correlation, request, work)


def _size(entry: dict[str, Any], group_bytes: int) -> int:
    return len(entry["body"]) + len(entry["headers"]) + group_bytes * len(entry["groups"])
