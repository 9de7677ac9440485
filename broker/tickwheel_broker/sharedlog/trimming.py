"""The owner deletes what is not needed any more from the shared log.

Its own log says how far: a segment goes from there when a TRIM record that all nodes read has said so, and has come to
count. A record of the shared log begins exactly where a segment does, so a new node can begin to read there.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tickwheel_broker.logs import get_logger
from tickwheel_broker.sharedlog.beginning import NoCluster, origin_at
from tickwheel_broker.sharedlog.shared_log import SharedLog, SharedLogUnavailable
from timerlog.commitlog.log import CommitLog
from timerlog.errors import DamagedLog
from timerlog.recovery.checkpoint import Place
from timerlog.replication.places import Places

TRIM_S = 1.0
"""So often it looks whether segments have gone."""

_log = get_logger("cluster")


class Trimming:
    """`run` works until cancelled."""

    def __init__(
        self, shared: SharedLog, log: CommitLog, places: Places, sweep_step: Callable[[], bool]
    ) -> None:
        """``sweep_step``: deletes a file that a bulk job has left behind; whether there was one."""
        self._shared, self._commit_log, self._places = shared, log, places
        self._sweep_step = sweep_step
        self._trimmed = 0

    async def run(self) -> None:
        """A new owner begins with what the one before may not have come to."""
        while True:
            await self.trim()
            while self._sweep_step():
                await trio.lowlevel.checkpoint()
            await trio.sleep(TRIM_S)

    async def trim(self) -> None:
        """Delete what lies before the first segment that is left. If that fails, the next call tries it again."""
        base = self._commit_log.segments[0]
        place = self._places.start_of(base)
        if base <= self._trimmed or place is None:  # where it begins is not known here: the next one will be
            return
        try:
            if not await self._can_begin_at(place):
                self._trimmed = base
                return
            await self._shared.delete_before(place.offset + 1)
        except SharedLogUnavailable as error:
            _log.warning("the shared log could not be trimmed", reason=str(error))
            return
        self._trimmed = base
        self._places.forget_before(base)
        _log.info("trimmed the shared log", first_position=base, first_offset=place.offset + 1)

    async def _can_begin_at(self, place: Place) -> bool:
        """Whether a new node knows there which log it reads: of a log that was there before the cluster, segments do
        not say it themselves. Raises SharedLogUnavailable."""
        try:
            async with self._shared.apart() as read:
                origin = await origin_at(read, place.offset + 1)
        except (NoCluster, DamagedLog):
            return False
        is_there = origin.start is not None and origin.start.end == place.end
        return is_there and origin.genesis.log_number == self._commit_log.log_id
