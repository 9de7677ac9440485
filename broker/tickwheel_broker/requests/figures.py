"""Requests for figures: of the broker, of its topics, of the wheel; and queries."""

from __future__ import annotations

from typing import Any, Final

import trio

from tickwheel.protocol.bodies.requests import GetStats, GetTopics, GetWheel, Query, encode_map
from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.clock import Clock
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery import Delivery
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.requests.answers import Answers
from tickwheel_broker.requests.caller import Caller
from timerlog.engine.look import Look
from timerlog.tables.tables import Tables

_TOPICS_STEP: Final = 256


class FigureRequests:
    """Whatever takes longer is done a piece at a time."""

    def __init__(
        self,
        look: Look,
        tables: Tables,
        clock: Clock,
        counters: Counters,
        delivery: Delivery,
        lifetime: Lifetime,
        forecasts: Forecasts,
        queries: Queries,
        answers: Answers,
    ) -> None:
        self._look = look
        self._tables = tables
        self._clock = clock
        self._counters = counters
        self._delivery = delivery
        self._lifetime = lifetime
        self._forecasts = forecasts
        self._queries = queries
        self._answers = answers

    def stats(self, caller: Caller, correlation: int, request: GetStats) -> None:
        """STATS; what it says, `tickwheel.stats.Stats` describes."""
        figures = self._look.stats(self._clock.now_ms()) | {
            "connections": self._counters.connections,
            "subscribers": self._delivery.subscribers,
            "uptime_ms": self._lifetime.uptime_ms,
            "version": self._lifetime.version,
            "refusals": dict(self._counters.refusals),
        }
        self._answers.when_durable(caller, correlation, request, encode_map(figures))

    def topics(self, caller: Caller, correlation: int, request: GetTopics) -> None:
        """TOPICS: a few at a time, for there may be thousands."""
        identity, tables = caller.identity, self._tables

        async def work() -> bytes:
            topics: list[dict[str, Any]] = []
            async with self._answers.looking:
                for topic_id in list(tables.topics):
                    topic = tables.topics.get(topic_id)
                    if topic is not None and identity.sees(topic.record.name):
                        topics.append(self._topic(topic_id))
                    if topic_id % _TOPICS_STEP == 0:
                        await trio.lowlevel.checkpoint()
            return encode_map({"topics": topics})

        caller.answer_later(correlation, request, work)

    def _topic(self, topic_id: int) -> dict[str, Any]:
        """See `tickwheel.stats.TopicStats`."""
        entry = self._look.topic_entry(topic_id)
        for group in entry["groups"]:
            group["subscribers"] = self._delivery.subscribers_of(group["group_id"])
        return entry

    def wheel(self, caller: Caller, correlation: int, request: GetWheel) -> None:
        """WHEEL: a piece at a time, for there may be millions of timers."""

        async def work() -> bytes:
            return encode_map(await self._forecasts.picture(request.horizons))

        caller.answer_later(correlation, request, work)

    def query(self, caller: Caller, correlation: int, request: Query) -> None:
        """QUERY: in a process of its own."""
        caller.start_soon(self._queries.answer, caller.outgoing, correlation, request)
