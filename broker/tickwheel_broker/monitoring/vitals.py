"""Whether the broker is alive, and whether it can serve: what a service manager and a load balancer ask.

*Alive* is a broker whose event loop turns and whose parts move whatever they have to do. One that is not is ended by
its service manager and started again. *Ready* is one that takes sends as well; a full disk makes it unready, but to
start it again would not help.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from tickwheel_broker.background.housekeeping import Housekeeping
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.counters import Counters
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.services import Services
from timerlog.commitlog.log import CommitLog
from timerlog.services.enqueue_get import EnqueueGet
from timerlog.wheel.wheel import TimerWheel

STALL_S: Final = 10.0
"""A part that has something to do, and has done nothing of it for so long, hangs."""

LOOK_S: Final = 1.0
FULL_S: Final = 10.0
"""For so long after the last time that the disk had no room it counts as full."""

SLOW_SYNC_S: Final = 10.0
DISK_S: Final = 5.0
"""For so long what was seen of the disk is said again."""
DISK_PATIENCE_S: Final = 1.0
_LEAST_FREE_BYTES: Final = 1 << 20


class Reason(NamedTuple):
    """Why a broker is not ready."""

    code: str
    text: str


class Disk(NamedTuple):
    """The file system of the data directory."""

    size_bytes: int
    free_bytes: int
    is_read_only: bool


def look_at_disk(directory: str) -> Disk:
    """What the system says of it. Raises OSError."""
    found = os.statvfs(directory)
    is_read_only = bool(found.f_flag & os.ST_RDONLY)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, is_read_only)


class _Part(NamedTuple):
    """A part of the broker: it hangs if it has work, and `progress` stays what it was."""

    name: str
    has_work: bool
    progress: object


class DiskSight:
    """In a thread: a disk that does not answer must not stop the broker. Until it has, no other thread waits for it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._turn = trio.CapacityLimiter(1)
        self._looked_s = -DISK_S
        self._seen: Disk | None = None

    async def look(self) -> Disk | None:
        """As it is now, or was a few seconds ago, for those who ask often; None: it did not answer."""
        now_s = trio.current_time()
        if now_s - self._looked_s >= DISK_S:
            self._looked_s = now_s
            self._seen = await self.look_now()
        return self._seen

    async def look_now(self) -> Disk | None:
        """As it is now; None: it does not answer within a moment."""
        with trio.move_on_after(DISK_PATIENCE_S), suppress(OSError):
            return await trio.to_thread.run_sync(
                look_at_disk, self._directory, abandon_on_cancel=True, limiter=self._turn
            )
        return None


class Vitals:
    """Looks at the parts of a broker once a second."""

    def __init__(
        self,
        *,
        enqueue_get: EnqueueGet,
        wheel: TimerWheel,
        log: CommitLog,
        clock: Clock,
        services: Services,
        commit: GroupCommit,
        counters: Counters,
        lifetime: Lifetime,
        housekeeping: Housekeeping,
    ) -> None:
        self._enqueue_get = enqueue_get
        self._wheel = wheel
        self._log = log
        self._clock = clock
        self._services = services
        self._commit = commit
        self._counters = counters
        self._lifetime = lifetime
        self._housekeeping = housekeeping
        self._moved: dict[str, tuple[object, float]] = {}
        self._looked_s: float = trio.current_time()
        self._full_count = self.count_full()
        self._full_s = -FULL_S
        self.has_ended = False
        """Whether the engine's services have ended; for a broker that stops this is as it should be."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await trio.sleep(LOOK_S)

    def look(self) -> None:
        """Take note of what has moved."""
        now_s = trio.current_time()
        # A process that was stopped itself has not given its parts the time to move.
        was_away = now_s - self._looked_s > STALL_S / 2
        self._looked_s = now_s
        for part in self._parts():
            seen = self._moved.get(part.name)
            if was_away or not part.has_work or seen is None or seen[0] != part.progress:
                self._moved[part.name] = part.progress, now_s
        full_count = self.count_full()
        if full_count != self._full_count:
            self._full_count, self._full_s = full_count, now_s

    @property
    def hanging(self) -> list[str]:
        """The names of parts that have not moved for too long."""
        now_s = trio.current_time()
        return [name for name, (_, moved_s) in self._moved.items() if now_s - moved_s > STALL_S]

    @property
    def is_alive(self) -> bool:
        """Whether everything moves that should; a broker that stops in good order counts as alive."""
        return self._lifetime.is_draining or not (self.has_ended or self.hanging)

    @property
    def is_confirmed(self) -> bool:
        """Whether this broker may answer: in a cluster one that was replaced may not know it."""
        return self._commit.is_current

    def reasons(self, disk: Disk | None) -> list[Reason]:
        """Why the broker is not ready; empty if it is. `disk`: None if it could not be looked at."""
        return list(self._reasons(disk))

    def _reasons(self, disk: Disk | None) -> Iterator[Reason]:
        self.look()
        if self._lifetime.is_draining:
            yield Reason("draining", "the broker is stopping")
        elif self.has_ended:
            yield Reason("ended", "the broker's services have ended")
        if not self.is_confirmed:
            yield Reason("unconfirmed", "the cluster has not confirmed that this node owns the log")
        if self.hanging:
            yield Reason("hanging", f"no progress for {STALL_S:g} s: {', '.join(self.hanging)}")
        began_s = self._commit.figures.began_s
        if began_s is not None and trio.current_time() - began_s > SLOW_SYNC_S:
            yield Reason("disk_slow", f"the disk has not answered for {SLOW_SYNC_S:g} s")
        if disk is None:
            yield Reason("disk_unreadable", "the data directory's file system does not answer")
        elif disk.is_read_only:
            yield Reason("disk_read_only", "the data directory's file system is read-only")
        is_full = trio.current_time() - self._full_s < FULL_S
        if is_full or (disk is not None and disk.free_bytes < _LEAST_FREE_BYTES):
            yield Reason("disk_full", "there is no room for new messages")

    def count_full(self) -> int:
        """How often the disk had no room for something, which was refused or put off."""
        return self._services.full_disks + self._counters.refusals["disk_full"]

    def _parts(self) -> Iterator[_Part]:
        services, wheel = self._services, self._wheel
        # Who tries again and again on a full disk does not hang.
        tries = services.full_disks
        for name, queue in (
            ("EnqueuePut", services.pending),
            ("DequeueGetMessage", services.due),
            ("DequeuePutMessage", services.ready),
        ):
            yield _Part(name, bool(queue.batches), (queue.passed, tries))
        yield _Part("EnqueueGet", self._enqueue_get.has_more, (self._enqueue_get.taken_id, tries))
        is_due = wheel.oldest_due_ms(self._clock.now_ms()) is not None
        yield _Part("DequeueGet", is_due, (wheel.tick_ms, wheel.pending, tries))
        figures = self._commit.figures
        yield _Part(
            "group commit",
            self._commit.waiting > 0 and figures.began_s is None,
            (figures.released, self._log.syncs),
        )
        yield _Part("housekeeping", True, self._housekeeping.rounds)
