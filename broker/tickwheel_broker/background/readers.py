"""Which groups have subscribers: it keeps an ephemeral group from its end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from tickwheel_broker import logs
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.errors import advice_for
from timerlog.engine.groups import Groups
from timerlog.errors import DiskFull

SEEN_AGAIN_MS: Final = 3_600_000
"""After a crash the time at which a group was last read is exact to so much."""

_NOTED_A_STEP: Final = 100
"""As many groups are noted in one step of the event loop."""
_STEPS_A_ROUND: Final = 200
"""The rest is left to the round of the next second, so that a round of the broker's housekeeping comes to its end."""

_log = logs.get_logger("groups")


class Readers:
    """Which groups have subscribers. The log knows when a group got its first one and lost its last one."""

    def __init__(self, groups: Groups, clock: Clock) -> None:
        self._groups, self._clock = groups, clock
        self._subscribers = Counter[int]()
        self._noted_ms = self._opened_ms = clock.now_ms()
        self._unnoted = deque[int]()
        """Groups that were read when the hour was over, and that are still to be noted."""

    def joined(self, group_id: int) -> None:
        """A group, or the part of one in a shard, got a subscriber."""
        group_id = self._groups.main(group_id)
        self._subscribers[group_id] += 1
        if self._subscribers[group_id] == 1:
            self._groups.readers_changed(group_id, self._clock.now_ms(), has_readers=True)

    def left(self, group_id: int) -> None:
        """A subscriber left, or is gone."""
        group_id = self._groups.main(group_id)
        self._subscribers[group_id] -= 1
        if not self._subscribers[group_id]:
            del self._subscribers[group_id]
            self._groups.readers_changed(group_id, self._clock.now_ms(), has_readers=False)

    def of(self, group_id: int) -> int:
        """How many subscribers a group has in all its shards, also those that are not served yet."""
        return self._subscribers.get(group_id, 0)

    def keep(self, now_ms: int) -> Iterator[None]:
        """Once a second, in steps of the event loop: notes now and then which groups are still read, and ends ephemeral
        groups. What is left after some hundred steps, the next call goes on with."""
        if now_ms - self._noted_ms >= SEEN_AGAIN_MS:
            self._noted_ms = now_ms
            self._unnoted = deque(self._subscribers)
        yield from islice(chain(self._note(now_ms), self._end_ephemeral(now_ms)), _STEPS_A_ROUND)

    def _note(self, now_ms: int) -> Iterator[None]:
        while self._unnoted:
            for _ in range(min(_NOTED_A_STEP, len(self._unnoted))):
                group_id = self._unnoted.popleft()
                if group_id in self._subscribers:  # else its last subscriber has left since the hour was over
                    self._groups.readers_changed(group_id, now_ms, has_readers=True)
            yield

    def _end_ephemeral(self, now_ms: int) -> Iterator[None]:
        try:
            for topic, group in self._groups.end_ephemeral(
                now_ms, self._opened_ms, lambda group_id: bool(self.of(group_id))
            ):
                _log.info("an ephemeral group has ended", topic=topic, group=group)
                yield
        except DiskFull as error:
            _log.error("ephemeral groups cannot be ended: the disk is full", advice=advice_for(error))
