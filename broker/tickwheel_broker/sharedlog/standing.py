"""How a node of a cluster stands: what `/readyz`, the metrics and `tickwheel cluster` say of it.

It is told by what stands between the node and its surroundings, so that the node itself reports to none.
"""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from tickwheel_broker.sharedlog.node import Role
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_broker.sharedlog.shared_log import AppendFailed, Read, SharedLog, SharedLogUnavailable, Stored
from timerlog.commitlog.healing import HealingCounts
from timerlog.replication.follower import Follower
from timerlog.replication.record import HEAD_BYTES, Kind, unpack
from timerlog.tables.lateness import Histogram

APPEND_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
LOOK_S: Final = 2.0
"""So often a node asks where the shared log ends."""


@dataclass(slots=True, eq=False)
class Standing:
    """Of one node, as long as its process runs."""

    cluster: str
    node: int
    has_joined: bool = False
    """Whether it may be chosen to own the log."""
    is_drained: bool = False
    """Whether it was told not to be."""
    fences: int = 0
    """How many terms it has begun, or tried to."""
    appends_failed: int = 0
    append_seconds: Histogram = field(default_factory=lambda: Histogram(APPEND_SECONDS))
    healing: HealingCounts = field(default_factory=HealingCounts)
    """Of damaged records."""
    end: int | None = None
    """Where the shared log ended when that was asked last; None: it did not answer."""
    clock_skew_ms: int | None = None
    """How far its clock is ahead of the owner's; None: it is not known, or it owns the log itself."""
    is_off_time: bool = False
    """Whether that is too far for it to be chosen."""
    is_disk_full: bool = False
    """Whether its disk has no room, so that it is chosen only where no other node is."""
    dangers: list[str] = field(default_factory=list)
    """What of the shared log's settings endangers it, in words."""
    gave_up_s: float | None = None
    """When, in trio's time, it let another one be chosen, because nothing was confirmed to it; None: it stands."""
    follower: Follower | None = None
    """While it follows."""
    replicator: Replicator | None = None
    """While it owns the log."""

    @property
    def role(self) -> Role:
        """What the node does."""
        if self.replicator is not None:
            return Role.OWNER
        return Role.FOLLOWER if self.is_warm else Role.STARTING

    is_warm: bool = False
    """Whether it has followed to the end, since it opened its replica."""

    @property
    def listens(self) -> bool:
        """Whether it hears what an owner writes, as it is written."""
        return self.is_warm and self.replicator is None

    @property
    def term(self) -> int:
        """The highest that it has read of; 0: none."""
        if self.replicator is not None:
            return self.replicator.term
        return 0 if self.follower is None else self.follower.reader.state.term

    @property
    def records_behind(self) -> int | None:
        """How many records of the shared log the replica does not have yet; None: it is not known."""
        if self.replicator is not None:
            return 0
        if self.end is None or self.follower is None:
            return None
        return max(0, self.end - 1 - self.follower.offset)

    @property
    def unconfirmed_s(self) -> float | None:
        """Of an owner: how long ago the last record was begun that counts."""
        return None if self.replicator is None else trio.current_time() - self.replicator.confirmed_s

    def as_json(self) -> dict[str, object]:
        """For `/readyz`."""
        found: dict[str, object] = {
            "cluster": self.cluster,
            "node": self.node,
            "role": self.role.value,
            "term": self.term,
            "has_joined": self.has_joined,
            "is_drained": self.is_drained,
            "is_disk_full": self.is_disk_full,
            "is_held_off": self.gave_up_s is not None,
            "records_behind": self.records_behind,
        }
        if self.unconfirmed_s is not None:
            found["unconfirmed_seconds"] = round(self.unconfirmed_s, 3)
        if self.clock_skew_ms is not None:
            found["clock_skew_ms"] = self.clock_skew_ms
            found["is_off_time"] = self.is_off_time
        return found


class CountedLog:
    """A shared log whose appends are counted."""

    def __init__(self, shared: SharedLog, standing: Standing) -> None:
        self._shared, self._standing = shared, standing

    async def append(self, records: list[bytes]) -> list[int | None]:
        """See `SharedLog`."""
        standing, began_s = self._standing, time.perf_counter()
        head = unpack(records[0][:HEAD_BYTES])
        if head is not None and head[0].kind is Kind.FENCE:
            standing.fences += 1
        try:
            return await self._shared.append(records)
        except AppendFailed:
            standing.appends_failed += 1
            raise
        finally:
            standing.append_seconds.observe(time.perf_counter() - began_s)

    async def read(self, offset: int) -> list[Stored]:
        """See `SharedLog`."""
        return await self._shared.read(offset)

    def apart(self) -> AbstractAsyncContextManager[Read]:
        """See `SharedLog`."""
        return self._shared.apart()

    async def end(self) -> int:
        """See `SharedLog`."""
        try:
            self._standing.end = await self._shared.end()
        except SharedLogUnavailable:
            self._standing.end = None
            raise
        return self._standing.end

    async def first(self) -> int:
        """See `SharedLog`."""
        return await self._shared.first()

    async def delete_before(self, offset: int) -> None:
        """See `SharedLog`."""
        await self._shared.delete_before(offset)

    async def look(self) -> None:
        """Ask now and then where it ends, until cancelled."""
        while True:
            with suppress(SharedLogUnavailable):  # who reads says it
                await self.end()
            await trio.sleep(LOOK_S)
