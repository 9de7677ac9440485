"""Requests that look at messages: those of a topic that a filter means one after the other, single ones, and what has
happened to one."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from tickwheel.protocol.bodies.admin import Browse
from tickwheel.protocol.bodies.groups import GetHistory, GetMessages
from tickwheel.protocol.bodies.requests import encode_entry, encode_map
from tickwheel.protocol.bodies.settling import MessageFilter
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.net.turns import Turn, Turns
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.caller import Work
from timerlog.engine.select import Filter, Select
from timerlog.engine.topics import Topics
from timerlog.layout import UInt64Array

_STEP: Final = 64
_STEP_BYTES: Final = 256 << 10
"""As many messages are looked at at once, or fewer if their bodies may be large."""

_ROOM_LEFT_BYTES: Final = 4_096
_ANSWER_BYTES: Final = 4 << 20
"""GET_MESSAGES answers with as much, or with one message: the client asks for the rest, and others go on meanwhile."""

_BOUNDS: Final = tuple(f"{of}_{end}_ms" for of in ("due", "created", "done") for end in ("from", "until"))


class MessageRequests:
    """In steps, beside everything else; as many messages as fit into one frame."""

    def __init__(
        self,
        *,
        topics: Topics,
        select: Select,
        clock: Clock,
        settings: Settings,
        queries: Queries,
        turns: Turns,
    ) -> None:
        self._topics = topics
        self._select = select
        self._clock = clock
        self._settings = settings
        self._queries = queries
        self._turns = turns

    def browse(self, request: Browse, asked: Asked) -> Work:
        """BROWSE."""
        topic_id = self._topics.record(request.topic).topic_id

        async def work() -> bytes:
            return encode_map({"messages": await self._browse(topic_id, request)})

        return asked.looking(work)

    async def _browse(self, topic_id: int, request: Browse) -> list[msgspec.Raw]:
        wanted = filter_of(request)
        now_ms = self._clock.now_ms()
        room_bytes = self._settings.max_frame_bytes - _ROOM_LEFT_BYTES
        found: list[msgspec.Raw] = []
        step, turn = max(1, min(_STEP, _STEP_BYTES // max(1, request.max_body_bytes))), Turn(self._turns)
        after = request.after_id
        if isinstance(after, list):
            place = after[0], after[1]
            parts = iter([await self._soonest(topic_id, wanted, now_ms, place, request.limit)])
        else:
            parts = self._select.matching(topic_id, wanted, now_ms, after)
        for ids in parts:
            for start in range(0, len(ids), step):
                for entry in self._select.browse(ids[start : start + step], now_ms, request.max_body_bytes):
                    room_bytes -= 512 + _size(entry, 128)
                    if room_bytes < 0 or len(found) == request.limit:
                        return found
                    found.append(encode_entry(entry))
                if turn.is_over:
                    await turn.yield_()
            await turn.yield_()
        return found

    async def _soonest(
        self, topic_id: int, wanted: Filter, now_ms: int, after: tuple[int, int], limit: int
    ) -> UInt64Array:
        """All of the topic is looked at, and never more kept of it than is asked for."""
        best, turn = np.zeros(0, np.uint64), Turn(self._turns)
        for ids in self._select.matching(topic_id, wanted, now_ms):
            best = self._select.soonest(np.concatenate([best, ids]), after, limit)
            if turn.is_over:
                await turn.yield_()
        await turn.yield_()
        return best

    def get(self, request: GetMessages, asked: Asked) -> Work:
        """GET_MESSAGES: those that are there."""
        if request.keys is not None and request.topic is not None:
            self._topics.record(request.topic)
            ids = self._select.find(request.topic, request.keys)
        else:
            ids = request.ids or []

        async def work() -> bytes:
            found: list[msgspec.Raw | None] = []
            turn = Turn(self._turns)
            room_bytes = min(self._settings.max_frame_bytes - _ROOM_LEFT_BYTES, _ANSWER_BYTES)
            for message_id in ids[request.skip :]:
                entry = self._select.message(message_id, self._clock.now_ms(), request.max_body_bytes)
                if entry is not None:
                    size_bytes = 1024 + _size(entry, 256)
                    if found and size_bytes > room_bytes:
                        break
                    room_bytes -= size_bytes
                found.append(None if entry is None else encode_entry(entry))
                if turn.is_over:
                    await turn.yield_()
            return encode_map({"messages": found})

        return asked.looking(work)

    def history(self, request: GetHistory, asked: Asked) -> bytes | None:
        """HISTORY: in a process of its own, if there is such a message."""
        message_id = request.id or 0
        if request.topic is not None and request.key is not None:
            self._topics.record(request.topic)
            (message_id,) = self._select.find(request.topic, [request.key])
        if self._select.topic_of(message_id) is None:
            return encode_map({"history": None})
        caller, request = asked.caller, msgspec.structs.replace(request, id=message_id, topic=None, key=None)
        caller.start_soon(self._queries.answer, caller.outgoing, asked.correlation, request)
        return None


def _size(entry: dict[str, Any], group_bytes: int) -> int:
    return len(entry["body"]) + len(entry["headers"]) + group_bytes * len(entry["groups"])


def filter_of(wanted: MessageFilter) -> Filter:
    """What the engine looks for, for a request that names no message."""
    given = {name: getattr(wanted, name) for name in _BOUNDS}
    return Filter(
        states=None if wanted.states is None else frozenset(wanted.states),
        priority_min=wanted.priority_min,
        priority_max=wanted.priority_max,
        epoch_min=wanted.epoch_min,
        group=wanted.group,
        **{name: bound for name, bound in given.items() if bound is not None},
    )
