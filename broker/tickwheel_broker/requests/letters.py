"""Requests about dead letters: send them again to the topic that they come from."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

import trio

from tickwheel.protocol.bodies.admin import ReplayDead, ReplayDeadOk
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.remembered import Steps
from timerlog.engine.replay_dead import ReplayDead as Replay
from timerlog.engine.select import Filter, Select
from timerlog.engine.topics import Topics
from timerlog.errors import UnknownTopic
from timerlog.names import dead_topic

_STEP: Final = 64
"""As many letters are replayed at once: each is a record of its own."""


class LetterRequests:
    """In steps, beside everything else; the answer comes after the last one."""

    def __init__(
        self,
        *,
        replay_dead: Replay,
        select: Select,
        topics: Topics,
        clock: Clock,
    ) -> None:
        self._replay_dead = replay_dead
        self._select = select
        self._topics = topics
        self._clock = clock

    def replay(self, request: ReplayDead, asked: Asked) -> ReplayDeadOk | Work:
        """REPLAY_DEAD."""
        dead_id = self._dead_topic_id(request.topic)
        if dead_id is None:
            return ReplayDeadOk({"not_found": len(request.ids)} if request.ids else {})
        return asked.bulk(partial(self._replay_all, dead_id, request, asked.steps()))

    def _dead_topic_id(self, topic: str) -> int | None:
        """None when the topic never had a dead letter. Raises UnknownTopic."""
        try:
            return self._topics.record(dead_topic(topic)).topic_id
        except UnknownTopic:
            self._topics.record(topic)
            return None

    async def _replay_all(self, dead_id: int, request: ReplayDead, steps: Steps) -> ReplayDeadOk:
        async def make_plan() -> list[int]:
            return [] if request.ids is not None else await self._letters(dead_id, request.limit)

        planned = await steps.plan(make_plan)
        ids = planned if request.ids is None else request.ids
        results = list(steps.done)
        while len(results) < len(ids):
            for message_id in ids[len(results) : len(results) + _STEP]:
                replay = partial(
                    self._replay_dead.replay_one, request.topic, message_id, self._clock.now_ms()
                )
                results.append(steps.take(replay))
            await steps.rest()
        return ReplayDeadOk(dict(Counter(results)))

    async def _letters(self, dead_id: int, limit: int) -> list[int]:
        ids: list[int] = []
        for part in self._select.matching(dead_id, Filter(), self._clock.now_ms()):
            ids += part[: limit - len(ids)].tolist()
            if len(ids) >= limit:
                break
            await trio.lowlevel.checkpoint()
        return ids
