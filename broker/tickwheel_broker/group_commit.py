"""Group commit: many replies, deliveries and answers wait for one fdatasync.

While one sync is on the disk, new sends and acks gather; the next sync covers them all. So the number of
syncs adapts itself to the disk and the load without a setting. A failed sync is final: it is reported,
everything stops, and nothing is ever tried again, because the kernel may have thrown the unwritten pages
away.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Protocol

import outcome
import trio

from tickwheel_broker.bell import Bell
from timerlog.commitlog.durability import SyncTicket
from timerlog.commitlog.log import CommitLog
from timerlog.tables.lateness import Histogram

LAZY_SYNC_S = 0.01
"""Ticks and the like, for which no reply waits, are synced this late at most; until then they share a sync with others.
"""

SHARED_SYNC_S = 0.001
"""Acks whose sync would keep a delivery waiting share its sync; they wait for it so long at most."""

SYNC_SECONDS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
COMMIT_REPLIES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

Sink = Callable[[bytes], None]
Durability = Literal["always", "interval", "os"]


class SyncFailed(Exception):
    """The disk refused to make data durable; the process must end."""


class Syncing(Protocol):
    """What of the engine is made durable."""

    log: CommitLog

    def begin_sync(self) -> SyncTicket | None:
        """Says what to sync; None when nothing is new."""

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Takes note that `ticket.run` returned; the durable position."""

    def hand_over(self) -> int:
        """Hands what is staged to the operating system; the position reached."""


class Recipient(Protocol):
    """Whom a frame is told to: it takes its place in the queue at once, and leaves later."""

    def hold(self, frame: bytes) -> None:
        """A frame waits for the disk."""

    def let_go(self, frame: bytes) -> None:
        """It is durable what the frame tells of."""


class SyncRunner(Protocol):
    """Runs a blocking sync without blocking the event loop. A simulation runs it in place instead."""

    async def run(self, work: Callable[[], None]) -> None:
        """Run `work` to its end, also when cancelled meanwhile; its exception is raised here."""


class SyncThread:
    """One thread for one disk, for as long as the `with` block. Half the latency of `trio.to_thread`, which
    does more for each call."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._work: queue.SimpleQueue[tuple[Callable[[], None], trio.lowlevel.Task] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._serve, name="tickwheel-sync", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], None]) -> None:
        """See `SyncRunner`."""
        self._work.put((work, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def __enter__(self) -> SyncThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, task = item
            result = outcome.capture(work)
            self._token.run_sync_soon(trio.lowlevel.reschedule, task, result)


class InPlace:
    """Runs the sync in the event loop: for simulations, where no thread may exist."""

    async def run(self, work: Callable[[], None]) -> None:
        """See `SyncRunner`."""
        await trio.lowlevel.checkpoint()
        work()


class Committer(Protocol):
    """Where a group commit becomes durable: on this machine's disk, or on several machines."""

    @property
    def is_current(self) -> bool:
        """Whether what is durable may be told at once; otherwise `settle` comes first."""

    async def commit(self, ticket: SyncTicket) -> float:
        """Return once the ticket is durable: how many seconds that took. Raises SyncFailed."""

    async def settle(self) -> None:
        """Return once no commit is under way any more, also none that was cancelled, and what is durable may be told.
        Raises SyncFailed."""


class DiskCommitter:
    """Durable is what the disk has."""

    is_current = True

    def __init__(self, runner: SyncRunner) -> None:
        self._runner = runner

    async def commit(self, ticket: SyncTicket) -> float:
        """See `Committer`."""
        took_s = 0.0

        def sync() -> None:
            """Timed where it runs: what it takes to come there is not the disk's."""
            nonlocal took_s
            began_s = time.perf_counter()
            ticket.run()
            took_s = time.perf_counter() - began_s

        try:
            await self._runner.run(sync)
        except OSError as error:
            raise SyncFailed(f"the disk did not take the log: {error.strerror or error}") from error
        return took_s

    async def settle(self) -> None:
        """See `Committer`: a sync runs to its end, also when it is cancelled."""


class SyncFigures:
    """What the group commit counts for who watches it."""

    def __init__(self) -> None:
        self.seconds = Histogram(SYNC_SECONDS)
        """How long each took."""
        self.replies = Histogram(COMMIT_REPLIES)
        """How many replies each sync released."""
        self.released = 0
        """How many replies went out after they had waited."""
        self.began_s: float | None = None
        """Since when, in trio's time, one is under way."""


class GroupCommit:
    """Holds replies back until what they promise is on disk."""

    def __init__(
        self,
        store: Syncing,
        committer: Committer,
        on_durable: Callable[[], None],
        *,
        durability: Durability = "always",
        sync_interval_s: float = 1.0,
        is_about_to_deliver: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_durable` is called when the position up to which replies may go has moved. `is_about_to_deliver`:
        whether something may be delivered before a sync that begins now has ended.

        With the default that is the position on the disk. `interval` and `os` let replies go as soon as the
        operating system has the data: a killed process loses nothing then, a power loss loses what was not
        synced yet (at most `sync_interval_s`, or whatever the system had not written).
        """
        self._store = store
        self._committer = committer
        self._durability = durability
        self._sync_interval_s = sync_interval_s
        self._handed_over = 0
        self._on_durable = on_durable
        self._waiting: deque[tuple[int, Sink, bytes]] = deque()
        self.figures = SyncFigures()
        self._dirty = Bell()
        self._urgent = Bell()
        self._is_about_to_deliver = is_about_to_deliver
        self._has_patience = False
        self._is_hurried = False

    def mark_dirty(self) -> None:
        """Something was staged for which no reply waits: ticks."""
        self._dirty.ring()

    def be_patient(self) -> None:
        """A task was woken that will append something in this turn of the loop: it shares the next sync."""
        self._has_patience = True

    def when_durable(self, position: int, sink: Sink, reply: bytes, *, is_hurried: bool = True) -> None:
        """Call `sink(reply)` once the log is durable up to `position`; at once if it is already. What is not
        `is_hurried` lets a delivery go first, up to `SHARED_SYNC_S`, and shares its sync."""
        if (
            position <= max(self._store.log.durable_position, self._handed_over)
            and self._committer.is_current
        ):
            sink(reply)
            return
        waiting = self._waiting
        if waiting and waiting[-1][0] > position:
            position = waiting[-1][0]
        waiting.append((position, sink, reply))
        self._is_hurried |= is_hurried
        self._urgent.ring()
        self._dirty.ring()

    def tell(self, outgoing: Recipient, frame: bytes) -> None:
        """Queue a frame that tells of the state as it is now: it leaves once all of that is durable, and behind what
        was told before."""
        outgoing.hold(frame)
        self.when_durable(self._store.log.telling_position, outgoing.let_go, frame)

    async def wait_durable(self, position: int) -> None:
        """Return once the log is durable up to `position`."""
        done = trio.Event()
        self.when_durable(position, lambda _: done.set(), b"")
        await done.wait()

    async def wait_on_disk(self, position: int) -> None:
        """Return once the log is on the disk up to `position`, also where replies do not wait for that."""
        self.mark_dirty()
        if self._durability == "always":
            await self.wait_durable(position)
            return
        while self._store.log.durable_position < position:
            await self.sync_once()

    async def run(self) -> None:
        """Sync until cancelled. Raises SyncFailed when the disk fails."""
        if self._durability == "always":
            await self._sync_before_replying()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reply_at_once)
            if self._durability == "interval":
                nursery.start_soon(self._sync_regularly)

    async def _reply_at_once(self) -> None:
        while True:
            await self._dirty.wait()
            self._handed_over = self._store.hand_over()
            self._release(self._handed_over)
            self._on_durable()

    async def _sync_regularly(self) -> None:
        while True:
            await trio.sleep(self._sync_interval_s)
            await self.sync_once()

    async def _sync_before_replying(self) -> None:
        while True:
            await self._dirty.wait()
            if not self._waiting:
                self._urgent.silence()  # it was for replies that have left
                with trio.move_on_after(LAZY_SYNC_S):
                    await self._urgent.wait()
            if self._waiting and not self._is_hurried:
                await self._wait_for_delivery()
            if self._has_patience:
                self._has_patience = False
                await trio.lowlevel.checkpoint()
            await self.sync_once()

    async def _wait_for_delivery(self) -> None:
        """A sync of acks alone that began now would keep a delivery waiting: they share the one that it needs."""
        with trio.move_on_after(SHARED_SYNC_S):
            while self._is_about_to_deliver() and not self._is_hurried:
                await self._dirty.wait()

    async def sync_once(self) -> None:
        """Make everything staged durable and release the replies that waited for it. Raises SyncFailed."""
        store = self._store
        self._is_hurried = False
        ticket = store.begin_sync()
        if ticket is None:
            # Nothing that matters was appended: what little lies behind the durable position needs no sync.
            position = store.log.appended_position  # what comes meanwhile is for the next one
            await self._committer.settle()
            self._release(position)
            return
        self.figures.began_s = trio.current_time()
        self.figures.seconds.observe(await self._committer.commit(ticket))
        self.figures.began_s = None
        self.figures.replies.observe(self._release(store.finish_sync(ticket)))
        self._on_durable()

    def _release(self, durable_position: int) -> int:
        """How many replies went out."""
        waiting, before = self._waiting, self.figures.released
        while waiting and waiting[0][0] <= durable_position:
            _, sink, reply = waiting.popleft()
            sink(reply)
            self.figures.released += 1
        return self.figures.released - before

    @property
    def waiting(self) -> int:
        """How many replies wait for the disk."""
        return len(self._waiting)
