"""Damaged records of a replica are fetched again from the shared log, and the replica is looked through for them."""

from __future__ import annotations

import trio

from tickwheel_broker.bell import Bell
from tickwheel_broker.logs import get_logger
from tickwheel_broker.sharedlog.beginning import origin_at
from tickwheel_broker.sharedlog.shared_log import SharedLog, SharedLogUnavailable
from timerlog.errors import LogCut, LogFailed
from timerlog.replication.follower import Follower
from timerlog.replication.record import unpack
from timerlog.replication.rule import Reader, State
from timerlog.replication.staged import StagedRecord

SCRUB_STEPS_A_S = 16
"""Each is of 256 KiB: a replica is looked through at 4 MiB a second."""

SCRUB_EVERY_S = 3_600.0
"""So long after it was looked through, it is looked through again."""

RETRY_S = 1.0

_log = get_logger("cluster")


class Heal:
    """Of one replica, while it follows and while it owns the log. `run` works until cancelled."""

    def __init__(self, shared: SharedLog, follower: Follower) -> None:
        self._shared, self._follower = shared, follower
        self._wanted = Bell()
        follower.healing.on_wanted = self._wanted.ring

    async def run(self) -> None:
        """What is wanted is fetched; and what is not looked at otherwise is looked through."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._scrub)
            while True:
                position = self._follower.healing.wanted
                if position is None:
                    await self._wanted.wait()
                    continue
                try:
                    await self._fetch(position)
                except (SharedLogUnavailable, LogFailed) as error:
                    _log.warning(
                        "a damaged record cannot be had again yet", position=position, reason=str(error)
                    )
                    await trio.sleep(RETRY_S)

    async def _fetch(self, position: int) -> None:
        """Read the shared log from a place before the record on until all of it is there. Raises
        SharedLogUnavailable, LogFailed."""
        linked = self._follower.places.linked_with(position)
        first, end, written_bytes = await self._shared.first(), await self._shared.end(), 0
        async with self._shared.apart() as read:
            place = self._follower.places.before(position)
            if place is None or place.offset + 1 < first:  # what stood there is trimmed
                try:
                    place = (await origin_at(read, first)).start
                except LogCut:
                    place = None
            if place is None:  # somebody has deleted what lay before it
                self._settle(position, position + 1)
                return
            reader = Reader(
                self._follower.reader.segment_bytes,
                State(place.term, place.node, place.seq, place.chain, place.end),
            )
            offset = place.offset + 1
            staged = None if linked is None else StagedRecord(linked, position)
            while reader.state.end <= position and offset < end:
                for stored in await read(offset):
                    offset = stored.offset + 1
                    found = unpack(stored.record)
                    if found is None:
                        continue
                    taken = reader.take(*found)
                    for at, data in taken.ranges:
                        written_bytes += self._follower.healing.take(at, data)
                    if staged is not None and (whole := staged.read(*found, taken)) is not None:
                        written_bytes += self._follower.healing.take(position, whole)
        if written_bytes:
            _log.warning("damage of this disk was healed", position=position, bytes=written_bytes)
        start = position if linked is not None else min(place.end, position)
        self._settle(start, position + 1 if linked is not None else max(reader.state.end, position + 1))

    def _settle(self, start: int, end: int) -> None:
        if lost := self._follower.healing.settle(start, end):
            _log.error("records are damaged in the shared log, too", positions=" ".join(map(str, lost)))

    async def _scrub(self) -> None:
        scrub = self._follower.scrub()
        while True:
            if scrub.step():
                await trio.sleep(1 / SCRUB_STEPS_A_S)
            else:
                await trio.sleep(SCRUB_EVERY_S)
                scrub = self._follower.scrub()
