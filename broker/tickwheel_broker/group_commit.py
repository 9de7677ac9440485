"""Group commit: many replies, deliveries and answers wait for one fdatasync.

While one sync is on the disk, new sends and acks gather; the next sync covers them all. So the number of
syncs adapts itself to the disk and the load without a setting. A reply that comes alone need not wait for the
task that does this: its sync begins where it is asked for. A failed sync is final: it is reported,
everything stops, and nothing is ever tried again, because the kernel may have thrown the unwritten pages
away.
"""

from __future__ import annotations

import contextvars
import errno
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

import outcome
import trio

from tickwheel_broker.bell import Bell
from tickwheel_native import sync_thread
from timerlog.background import Stage
from timerlog.commitlog.durability import SyncTicket
from timerlog.commitlog.log import CommitLog
from timerlog.errors import TooManyOpenFiles
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


SyncEnded: TypeAlias = Callable[[outcome.Outcome[float]], None]
"""Hears how many seconds a sync took, or why it failed. Raises nothing."""


class SyncRunner(Protocol):
    """Syncs files without blocking the event loop. A simulation does it in place instead."""

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> None:
        """Begin to sync the files of the ticket, when the last sync has ended. `ended` is called in the event loop as
        soon as that is done, or has failed with an OSError."""


class SyncThread:
    """One thread for one disk, for as long as the `with` block, which ends no sooner than a sync that is under way.
    It is not one of Python's: neither its beginning nor its end waits for the interpreter's lock."""

    def __init__(self) -> None:
        """Raises TooManyOpenFiles, and OSError if there is no thread left."""
        self._told = _eventfd()
        try:
            self._thread = sync_thread.start(self._told)
        except OSError:
            os.close(self._told)
            raise
        self._ended: SyncEnded | None = None
        self._kept: object = None
        trio.lowlevel.spawn_system_task(self._listen)

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> None:
        """See `SyncRunner`."""
        assert self._told >= 0, "the thread has not been stopped"
        assert self._ended is None, "one sync at a time"
        self._ended = ended  # first: it may end before the next line has
        self._kept = sync_thread.begin(self._thread, [file.fileno() for file in ticket.files])

    def __enter__(self) -> SyncThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sync_thread.stop(self._thread)
        trio.lowlevel.notify_closing(self._told)
        os.close(self._told)
        self._told = -1
        if self._ended is not None:  # it has ended by now, and who waits for that does not stop waiting
            self._tell_end()
        sync_thread.free(self._thread)

    async def _listen(self) -> None:
        with suppress(trio.ClosedResourceError):
            while self._told >= 0:
                await trio.lowlevel.wait_readable(self._told)
                if self._told >= 0:  # it may have been closed in the same turn
                    self._tell()

    def _tell(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._told)
        self._tell_end()

    def _tell_end(self) -> None:
        ended, self._ended = self._ended, None
        assert ended is not None, "it ends once"
        ended(outcome.capture(lambda: sync_thread.ended(self._thread) / 1e9))


def _eventfd() -> int:
    try:
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles(f"no descriptor is left for syncs: {error.strerror}") from error
        raise


class InPlace:
    """Syncs in the event loop: for simulations, where no thread may exist."""

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> None:
        """See `SyncRunner`."""
        trio.lowlevel.spawn_system_task(self._carry, ticket.run, ended, context=contextvars.copy_context())

    async def _carry(self, work: Callable[[], None], ended: SyncEnded) -> None:
        began_s = time.perf_counter()
        result = await outcome.acapture(self.run, work)
        ended(result if isinstance(result, outcome.Error) else outcome.Value(time.perf_counter() - began_s))

    async def run(self, work: Callable[[], None]) -> None:
        """Return when it is done."""
        await trio.lowlevel.checkpoint()
        work()


class Committer(Protocol):
    """Where a group commit becomes durable: on this machine's disk, or on several machines."""

    begins_at_once: bool
    """Whether `begin` begins it; otherwise that is done, and goes on, only while its end is waited for."""

    @property
    def is_current(self) -> bool:
        """Whether what is durable may be told at once; otherwise `settle` comes first."""

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> Callable[[], Awaitable[None]]:
        """Make the ticket durable, one at a time. `ended` hears first how many seconds that took, or why it failed
        (SyncFailed); then the function that is returned returns, which waits for it. Where nothing begins at once, it
        is to be called once."""

    async def stage(self, stage: Stage) -> None:
        """Return once all machines that follow the log have the files of a job, or none of them, beside what is
        committed meanwhile. Raises SyncFailed."""

    async def settle(self) -> None:
        """Return once no commit is under way any more, also none that was cancelled, and what is durable may be told.
        Raises SyncFailed."""


class DiskCommitter:
    """Durable is what the disk has."""

    begins_at_once = True
    is_current = True

    def __init__(self, runner: SyncRunner) -> None:
        self._runner = runner

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> Callable[[], Awaitable[None]]:
        """See `Committer`. Who is cancelled waits nevertheless."""
        has_ended = trio.Event()

        def end(result: outcome.Outcome[float]) -> None:
            ended(outcome.Error(_explained(result.error)) if isinstance(result, outcome.Error) else result)
            has_ended.set()

        async def wait() -> None:
            with trio.CancelScope(shield=True):
                await has_ended.wait()

        self._runner.begin(ticket, end)
        return wait

    async def stage(self, stage: Stage) -> None:
        """See `Committer`: nobody follows."""

    async def settle(self) -> None:
        """See `Committer`: a sync runs to its end, also when it is cancelled."""


def _explained(error: BaseException) -> BaseException:
    if not isinstance(error, OSError):
        return error
    failed = SyncFailed(f"the disk did not take the log: {error.strerror or error}")
    failed.__cause__ = error
    return failed


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
        *,
        store: Syncing,
        committer: Committer,
        on_durable: Callable[[], None],
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
        self._is_running = False
        self._ticket: SyncTicket | None = None
        self._pending: Callable[[], Awaitable[None]] | None = None
        """The sync that is under way, and the end of it."""
        self._failure: BaseException | None = None
        self._released_last = 0
        """How many replies the last sync released."""

    @property
    def is_current(self) -> bool:
        """Whether what is durable may be told at once, see `Committer`: otherwise nobody is answered."""
        return self._committer.is_current

    def mark_dirty(self) -> None:
        """Something was staged for which no reply waits: ticks."""
        self._dirty.ring()

    def be_patient(self) -> None:
        """A task was woken that will append something in this turn of the loop: it shares the next sync."""
        self._has_patience = True

    def when_durable(
        self, position: int, sink: Sink, reply: bytes, *, is_hurried: bool = True, is_last: bool = False
    ) -> None:
        """Call `sink(reply)` once the log is durable up to `position`; at once if it is already. What is not
        `is_hurried` lets a delivery go first, up to `SHARED_SYNC_S`, and shares its sync. `is_last`: who asks has
        nothing more to append now, so its sync may begin if no others are expected."""
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
        if is_last and len(waiting) == 1 and self._expects_no_others and self._begins_here():
            return
        self._is_hurried |= is_hurried
        self._urgent.ring()
        self._dirty.ring()

    @property
    def _expects_no_others(self) -> bool:
        """Where the last sync was for several replies, the next one waits for this turn of the loop to end."""
        return (
            self._is_running
            and self._released_last <= 1
            and self._committer.begins_at_once
            and self._pending is None
            and self._failure is None
            and not self._has_patience
        )

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

    async def stage(self, stage: Stage) -> None:
        """See `Committer`."""
        await self._committer.stage(stage)

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
        self._is_running = True
        try:
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
        finally:
            self._is_running = False
            await self._wait_for_pending()

    async def _wait_for_delivery(self) -> None:
        """A sync of acks alone that began now would keep a delivery waiting: they share the one that it needs."""
        with trio.move_on_after(SHARED_SYNC_S):
            while self._is_about_to_deliver() and not self._is_hurried:
                await self._dirty.wait()

    async def sync_once(self) -> None:
        """Make everything staged durable and release the replies that waited for it. Raises SyncFailed."""
        await self._wait_for_pending()
        self._is_hurried = False
        if (pending := self._begin()) is not None:
            await self._wait(pending)
            return
        # Nothing that matters was appended: what little lies behind the durable position needs no sync.
        position = self._store.log.appended_position  # what comes meanwhile is for the next one
        await self._committer.settle()
        self._release(position)

    async def _wait_for_pending(self) -> None:
        """Until none is under way. Raises SyncFailed."""
        while self._pending is not None:
            await self._wait(self._pending)
        self._check()

    async def _wait(self, pending: Callable[[], Awaitable[None]]) -> None:
        try:
            await pending()
        finally:
            if self._pending is pending:  # it was cancelled, which only several machines allow
                self._pending = self.figures.began_s = None
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        """It is final: the task ends with it, whoever met it."""
        self._failure = error
        self._urgent.ring()
        self._dirty.ring()

    def _begins_here(self) -> bool:
        """Begins a sync that the task need not know of, but where it fails."""
        try:
            return self._begin() is not None
        except Exception:
            return False

    def _begin(self) -> Callable[[], Awaitable[None]] | None:
        """Begins to make everything staged durable; None when there is nothing. The log does not say twice what is to
        be synced: a sync that could not be begun is a failed one."""
        try:
            ticket = self._store.begin_sync()
            if ticket is None:
                return None
            self._ticket = ticket
            pending = self._pending = self._committer.begin(ticket, self._ended)
        except BaseException as error:
            self._fail(error)
            raise
        self.figures.began_s = trio.current_time()
        return pending

    def _ended(self, result: outcome.Outcome[float]) -> None:
        """In the loop, at once: a reply does not wait for the task to have its turn."""
        self._pending = self.figures.began_s = None
        try:
            self._finish(result.unwrap())
        except BaseException as error:
            self._fail(error)

    def _finish(self, took_s: float) -> None:
        assert self._ticket is not None
        self.figures.seconds.observe(took_s)
        self._released_last = self._release(self._store.finish_sync(self._ticket))
        self.figures.replies.observe(self._released_last)
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
