"""Retention: messages that are not acked are kept for as long as their topic says (by default without end), then they
end.

They end as `expired`: no group is given them again, and purging takes them like any message that is done. Age counts
from the time a message was due.
"""

from __future__ import annotations

import trio

from tickwheel_broker import logs
from tickwheel_broker.clock.clock import Alarm, Clock
from tickwheel_broker.errors import advice_for
from tickwheel_broker.rest import Rest
from timerlog.engine.change import Change
from timerlog.engine.select import Filter, Select
from timerlog.errors import DiskFull
from timerlog.tables.tables import Tables

_SHORTEST_S, _LONGEST_S = 1.0, 60.0
_UNACKED = frozenset({"ready", "leased", "waiting"})
_STEP = 4_096

_log = logs.get_logger("retention")


class Retention:
    """Ends what is too old, in all topics."""

    def __init__(
        self,
        *,
        change: Change,
        select: Select,
        tables: Tables,
        clock: Clock,
        rest: Rest,
    ) -> None:
        self._change = change
        self._select = select
        self._tables = tables
        self._clock = clock
        self._rest = rest
        self._alarm: Alarm | None = None
        """While it waits for more than the shortest time."""
        self._topics_changed = False

    def topics_changed(self) -> None:
        """Topics may have another retention: look soon."""
        self._topics_changed = True
        if self._alarm is not None:
            self._alarm.ring()

    async def run(self) -> None:
        """Look again and again: several times within the shortest retention, and after topics were changed; at most
        once a second, unless the clock is set."""
        alarm = self._clock.alarm()
        try:
            while True:
                await self._wait(alarm)
                for topic_id, age_ms in self._retentions().items():
                    try:
                        await self._expire(topic_id, age_ms)
                    except DiskFull as error:
                        _log.error("cannot expire messages: the disk is full", advice=advice_for(error))
        finally:
            alarm.close()

    async def _wait(self, alarm: Alarm) -> None:
        with trio.move_on_after(_SHORTEST_S):
            await alarm.sleep_until(None)  # the clock was set, or a test has moved it
            return
        pause_s = min(_LONGEST_S, min(self._retentions().values(), default=1 << 40) / 10_000)
        if not self._topics_changed:
            self._alarm = alarm
            with trio.move_on_after(max(0.0, pause_s - _SHORTEST_S)):
                await alarm.sleep_until(None)
            self._alarm = None
        self._topics_changed = False

    def _retentions(self) -> dict[int, int]:
        topics = self._tables.topics.values()
        return {
            topic.record.topic_id: topic.record.settings.retention_ms
            for topic in topics
            if topic.record.settings.retention_ms and not topic.record.shards
        }

    async def _expire(self, topic_id: int, age_ms: int) -> None:
        """The topic may be deleted at each checkpoint: then nothing more of it is found, nor expires."""
        topic = self._tables.topics.get(topic_id)
        if topic is None:
            return
        now_ms = self._clock.now_ms()
        until_ms = max(0, now_ms - age_ms)
        expired = 0
        for ids in self._select.matching(topic_id, Filter(states=_UNACKED, due_until_ms=until_ms), now_ms):
            for start in range(0, len(ids), _STEP):
                expired += self._change.expire(ids[start : start + _STEP], until_ms)
                await self._rest()
            await trio.lowlevel.checkpoint()
        if expired:
            _log.info("messages expired", topic=topic.record.name, messages=expired)
