"""What tasks that work in steps have in common: what the engine asks for between two steps, and who waits for a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import trio

from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.errors import advice_for
from tickwheel_broker.group_commit import GroupCommit, InPlace, SyncFailed, SyncRunner
from timerlog.background import InThread, Join, Stage, WaitDurable, WriteBack
from timerlog.errors import DiskFull
from timerlog.purge.drop import DropTicket, FreeTicket

FULL_S: Final = 1.0
"""After so long it is tried again whether there is room on the disk."""

_WRITE_BACK_BYTES: Final = 32 << 20
"""The end of the broker waits for so much of it."""

KEPT: Final = 100
"""So many jobs are remembered, done or not."""

_log = logs.get_logger("purge")

Pause: TypeAlias = WaitDurable | DropTicket | FreeTicket | InThread | Join | Stage | WriteBack | None
"""What a step asks for before the next one; None: only that others have their turn."""


class StepRunner:
    """Does what steps ask for: waits for the disk, and works in threads so that group commit does not wait."""

    def __init__(self, commit: GroupCommit, runner: SyncRunner) -> None:
        """Where `runner` works in place, there may be no threads."""
        self._commit = commit
        self.is_in_place = isinstance(runner, InPlace)
        self._dirty: deque[WriteBack] = deque()
        self._is_dirty = Bell()
        self._nursery: trio.Nursery | None = None
        self._beside_ended = trio.Event()
        self._beside_ended.set()

    async def run(self, take_steps: Callable[[], Awaitable[None]]) -> None:
        """Run a task, and beside it what its steps leave to other threads."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._write_back)
            await take_steps()

    async def carry_out(self, pause: Pause) -> None:
        """Return when the next step may be taken. Raises SyncFailed."""
        match pause:
            case WaitDurable():
                await self._commit.wait_on_disk(pause.position)
            case Stage():
                await self._commit.stage(pause)
            case DropTicket() | FreeTicket():
                await self._give_space_back(pause)
            case InThread(beside=True) if not self.is_in_place:
                assert self._nursery is not None, "steps are taken while it runs"
                self._beside_ended = trio.Event()
                self._nursery.start_soon(self._run_beside, pause.work, self._beside_ended)
            case InThread():
                await self.work(pause.work)
            case Join():
                await self._beside_ended.wait()
            case WriteBack() if not self.is_in_place:
                self._dirty.append(pause)
                self._is_dirty.ring()

    async def work(self, work: Callable[[], None]) -> None:
        """In a thread, if there may be one."""
        if self.is_in_place:
            work()
        else:
            await trio.to_thread.run_sync(work)

    async def _give_space_back(self, ticket: DropTicket | FreeTicket) -> None:
        while True:
            try:
                await self.work(ticket.run)
                return
            except DiskFull as error:
                _log.error(
                    "a purged segment cannot be deleted yet", reason=str(error), advice=advice_for(error)
                )
                await trio.sleep(FULL_S)
            except OSError as error:
                raise SyncFailed(f"deleting a segment failed: {error.strerror or error}") from error

    async def _run_beside(self, work: Callable[[], None], ended: trio.Event) -> None:
        await trio.to_thread.run_sync(work)
        ended.set()

    async def _write_back(self) -> None:
        """One piece after the other, until cancelled: no step waits for it."""
        while True:
            await self._is_dirty.wait()
            while self._dirty:
                dirty = self._dirty.popleft()
                for start in range(dirty.start_bytes, dirty.end_bytes, _WRITE_BACK_BYTES):
                    end = min(start + _WRITE_BACK_BYTES, dirty.end_bytes)
                    await trio.to_thread.run_sync(dirty.region.write_back, start, end)


class _Job(Protocol):
    is_done: bool


K = TypeVar("K")
J = TypeVar("J", bound=_Job)


class Jobs(Generic[K, J]):
    """What was asked for, by name: the newest ones, done or not."""

    def __init__(self) -> None:
        self.wanted = Bell()
        """Rung when there is a new one."""
        self._jobs: dict[K, J] = {}
        self._moved = trio.lowlevel.ParkingLot()

    def find(self, name: K) -> J | None:
        """None: there was none of this name, or it is long ago."""
        return self._jobs.get(name)

    def add(self, name: K, job: J) -> None:
        """There is work."""
        self._jobs[name] = job
        if len(self._jobs) > KEPT:
            del self._jobs[next(iter(self._jobs))]
        self.wanted.ring()

    def moved(self) -> None:
        """A step was taken: those who wait look whether their job is done."""
        self._moved.unpark_all()

    async def wait(self, job: J, wait_ms: int) -> None:
        """Return when a job is done, or after `wait_ms`."""
        with trio.move_on_after(wait_ms / 1_000):
            while not job.is_done:
                await self._moved.park()
