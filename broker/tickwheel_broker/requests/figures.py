"""Requests for figures: of the broker, of its topics, of the wheel; queries, and what happens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import trio

from tickwheel.protocol.bodies.operations import GetEvents, GetFigures
from tickwheel.protocol.bodies.requests import GetStats, GetTopics, GetWheel, Query, encode_entry, encode_map
from tickwheel.protocol.errors import BadRequest
from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.documents.endpoints import Endpoints, room_of_state
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.monitoring.figures import Figures
from tickwheel_broker.monitoring.vitals import Disk, DiskSight
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.caller import Work
from timerlog.engine.look import Look
from timerlog.tables.tables import Tables

_TOPICS_STEP: Final = 16
"""Between two breaks: some tenths of a millisecond of work, for which deliveries wait. Dashboards ask each second."""
_FILES_STEP: Final = 64
"""The same where files are asked for their sizes."""
_FIGURES_BYTES: Final = 16_384
"""More than the broker's own figures take."""
_ENTRY_BYTES: Final = 768
"""More than those of a topic or a group take, without names."""


class FigureRequests:
    """Whatever takes longer is done a piece at a time."""

    def __init__(
        self,
        *,
        look: Look,
        tables: Tables,
        clock: Clock,
        settings: Settings,
        counters: Counters,
        delivery: Delivery,
        lifetime: Lifetime,
        forecasts: Forecasts,
        queries: Queries,
        figures: Figures,
        disk: DiskSight,
        endpoints: Endpoints,
    ) -> None:
        self._look = look
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._counters = counters
        self._delivery = delivery
        self._lifetime = lifetime
        self._forecasts = forecasts
        self._queries = queries
        self._figures = figures
        self._disk = disk
        self._endpoints = endpoints

    def stats(self, request: GetStats, asked: Asked) -> Work:
        """STATS; what it says, `tickwheel.stats.Stats` describes. It waits for no turn: monitors ask for it."""

        async def work() -> bytes:
            disk_bytes = 0
            for number, size_bytes in enumerate(self._look.disk_sizes(), 1):
                disk_bytes += size_bytes
                if number % _FILES_STEP == 0:
                    await trio.lowlevel.checkpoint()
            figures = self._look.stats(self._clock.now_ms(), disk_bytes) | {
                "connections": self._counters.connections,
                "subscribers": self._delivery.subscribers,
                "uptime_ms": self._lifetime.uptime_ms,
                "version": self._lifetime.version,
                "refusals": dict(self._counters.refusals),
            }
            return encode_map(figures)

        return work

    def figures(self, request: GetFigures, asked: Asked) -> Work:
        """FIGURES: as many topics, and then groups, as fit into one frame."""
        tables = self._tables

        async def work() -> bytes:
            answer: dict[str, Any] = {"now_ms": self._clock.now_ms(), "started_ms": self._lifetime.started_ms}
            if not (request.after_topic or request.after_group):
                answer |= self._of_the_broker(await self._disk.look())
            if request.totals_only:
                return encode_map(answer | {"topics": [], "groups": [], "more": False})
            topics: list[msgspec.Raw] = []
            groups: list[msgspec.Raw] = []
            answer |= {"topics": topics, "groups": groups, "more": True}
            room_bytes = self._settings.max_frame_bytes - _FIGURES_BYTES
            for number, topic_id in enumerate(_after(tables.topics, request.after_topic)):
                if topic_id in tables.topics:
                    entry = self._figures.topic(topic_id)
                    room_bytes -= _ENTRY_BYTES + len(entry["name"]) + len(entry["shard_of"])
                    if room_bytes < 0:
                        return encode_map(answer)
                    topics.append(encode_entry(entry))
                if number % _TOPICS_STEP == 0:
                    await trio.lowlevel.checkpoint()
            for number, group_id in enumerate(_after(tables.groups, request.after_group)):
                group = tables.groups.get(group_id)
                if group is not None:
                    entry = self._figures.group(group_id) | {
                        "topic_id": group.record.topic_id,
                        "subscribers": self._delivery.subscribers_of(group_id),
                    }
                    topic = tables.topics[group.record.topic_id].record.name
                    self._endpoints.describe_group(topic, entry)
                    room_bytes -= _ENTRY_BYTES + len(entry["name"]) + room_of_state(entry)
                    if room_bytes < 0:
                        return encode_map(answer)
                    groups.append(encode_entry(entry))
                if number % _TOPICS_STEP == 0:
                    await trio.lowlevel.checkpoint()
            return encode_map(answer | {"more": False})

        return asked.looking(work)

    def _of_the_broker(self, disk: Disk | None) -> dict[str, Any]:
        numbers = list(self._figures.numbers())
        of_disk = (
            {} if disk is None else {"disk_size_bytes": disk.size_bytes, "disk_free_bytes": disk.free_bytes}
        )
        return {
            "totals": self._look.totals(),
            "counters": {one.name: one.value for one in numbers if one.is_counter},
            "gauges": {one.name: one.value for one in numbers if not one.is_counter} | of_disk,
            "histograms": {
                one.name: {
                    "bounds": [bound / one.per_unit for bound in one.values.bounds],
                    "counts": one.values.counts.tolist(),
                    "sum": one.values.sum / one.per_unit,
                }
                for one in self._figures.distributions()
            },
        }

    def topics(self, request: GetTopics, asked: Asked) -> Work:
        """TOPICS: a few at a time, for there may be thousands."""
        identity, tables = asked.caller.identity, self._tables

        async def work() -> bytes:
            topics: list[msgspec.Raw] = []
            for topic_id in list(tables.topics):
                topic = tables.topics.get(topic_id)
                if topic is not None and identity.sees(topic.record.name):
                    topics.append(encode_entry(self._topic(topic_id)))
                if topic_id % _TOPICS_STEP == 0:
                    await trio.lowlevel.checkpoint()
            return encode_map({"topics": topics})

        return asked.looking(work)

    def _topic(self, topic_id: int) -> dict[str, Any]:
        """See `tickwheel.stats.TopicStats`."""
        entry = self._look.topic_entry(topic_id)
        name = self._tables.topics[topic_id].record.name
        for group in entry["groups"]:
            group["subscribers"] = self._delivery.subscribers_of(group["group_id"])
            self._endpoints.describe_group(name, group)
        return entry

    def wheel(self, request: GetWheel, asked: Asked) -> Work:
        """WHEEL: a piece at a time, for there may be millions of timers."""

        async def work() -> bytes:
            return encode_map(await self._forecasts.picture(request.horizons))

        return work

    def query(self, request: Query, asked: Asked) -> None:
        """QUERY: in a process of its own."""
        asked.caller.start_soon(self._queries.answer, asked.caller.outgoing, asked.correlation, request)

    def events(self, request: GetEvents, asked: Asked) -> bytes | None:
        """EVENTS: in a process of its own, if there is something new."""
        end, place = self._queries.end, request.start
        if isinstance(place, str):
            place = self._queries.told(0 if place == "earliest" else end)
        known, has_gap = self._queries.place(*place)
        if known.position > end or known.position % 8:
            raise BadRequest(f"The log has no place {place[0]}: it ends at {end}.")
        if known.position == end:
            told = self._queries.told(end)
            return encode_map({"events": [], "next": told, "more": False, "has_gap": has_gap})
        caller, request = asked.caller, msgspec.structs.replace(request, start=place)
        caller.start_soon(self._queries.answer, caller.outgoing, asked.correlation, request)
        return None


def _after(numbers: Iterable[int], number: int) -> list[int]:
    """Those above a number, in order."""
    return sorted(one for one in numbers if one > number)
