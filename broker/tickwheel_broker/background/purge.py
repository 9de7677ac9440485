"""The purge: a task that does a little of it at a time, between everything else, and the requests that ask for one.

A step takes about a millisecond. After each, the task sleeps for twice as long as the step took, so that deliveries
keep most of the processor; when the disk is nearly full it only lets others have their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import trio

from tickwheel.protocol.bodies.admin import Purge, PurgeOk
from tickwheel.protocol.errors import BadRequest
from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.errors import advice_for, from_store
from tickwheel_broker.group_commit import InPlace, SyncFailed, SyncRunner
from tickwheel_broker.net.disk_room import room_of
from tickwheel_broker.requests.answers import Caller
from timerlog.background import WaitDurable
from timerlog.errors import DamagedLog, DiskFull, StoreError
from timerlog.purge.purger import DropTicket, FreeTicket, Job

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker

IDLE_S: Final = 1.0
FULL_S: Final = 1.0
REST: Final = 2.0
"""How long to sleep after a step, in units of the time that it took."""

NEARLY_FULL: Final = 4
"""So many times what large requests must leave free."""

_RUNS_KEPT: Final = 100

_log = logs.get_logger("purge")


class Purging:
    """Runs the purge of a broker's store."""

    def __init__(self, broker: Broker, runner: SyncRunner) -> None:
        self._broker = broker
        self._in_place = isinstance(runner, InPlace)
        self._purger = broker.store.purger
        self._wanted = Bell()
        self._moved = trio.lowlevel.ParkingLot()
        self._runs: dict[int, Job] = {}
        self._last_run = 0
        self._begun: dict[tuple[int, int], int] = {}

    async def run(self) -> None:
        """Purge for ever. Raises SyncFailed when the disk fails."""
        while True:
            if self._purger.is_idle(self._broker.clock.now_ms()):
                with trio.move_on_after(IDLE_S):
                    await self._wanted.wait()
                continue
            try:
                await self._step()
            except (DiskFull, DamagedLog) as error:
                _log.error("purging stopped for now", reason=str(error), advice=advice_for(error))
                await trio.sleep(FULL_S)

    async def _step(self) -> None:
        started = trio.current_time()
        pause = self._purger.step(self._broker.clock.now_ms())
        took_s = trio.current_time() - started
        self._moved.unpark_all()
        match pause:
            case WaitDurable():
                await self._broker.commit.wait_on_disk(pause.position)
            case DropTicket() | FreeTicket():
                await self._carry_out(pause)
        full = self._is_nearly_full()
        if not full:
            await self._broker.services.wait_for_room()
        await trio.sleep(0 if full else REST * took_s)

    async def _carry_out(self, ticket: DropTicket | FreeTicket) -> None:
        """In a thread of its own: it waits for the disk, and group commit must not wait for it."""
        while True:
            try:
                if self._in_place:
                    ticket.run()
                else:
                    await trio.to_thread.run_sync(ticket.run)
                return
            except DiskFull as error:
                _log.error(
                    "a purged segment cannot be deleted yet", reason=str(error), advice=advice_for(error)
                )
                await trio.sleep(FULL_S)
            except OSError as error:
                raise SyncFailed(f"deleting a segment failed: {error.strerror or error}") from error

    def _is_nearly_full(self) -> bool:
        try:
            room = room_of(self._broker.settings)
        except OSError:
            return False
        return room.free_bytes < NEARLY_FULL * room.kept_bytes

    # -- on request --

    def begin(self, *, dry_run: bool, name: tuple[int, int] | None = None) -> int:
        """Start a run; its number. `name`: of the request that asks, which may ask again when its answer was lost;
        runs end with the process, and so does what is known of who asked."""
        if name in self._begun:
            return self._begun[name]
        self._last_run += 1
        if name is not None:
            self._begun[name] = self._last_run
        self._runs[self._last_run] = self._purger.start(dry_run=dry_run)
        if len(self._runs) > _RUNS_KEPT:
            del self._runs[next(iter(self._runs))]
        if len(self._begun) > _RUNS_KEPT:
            del self._begun[next(iter(self._begun))]
        self._wanted.ring()
        return self._last_run

    async def wait(self, run: int, wait_ms: int) -> PurgeOk:
        """How far a run is, when it is done or after `wait_ms`. Raises BadRequest, or what ended it."""
        job = self._runs.get(run)
        if job is None:
            raise BadRequest(f"There is no purge {run}, or no more.")
        with trio.move_on_after(wait_ms / 1_000):
            while not job.is_done:
                await self._moved.park()
        if isinstance(job.error, StoreError):
            raise from_store(job.error)
        return PurgeOk(run=run, is_done=job.is_done, **msgspec.structs.asdict(job.report))


def purge(caller: Caller, correlation: int, request: Purge) -> None:
    """PURGE: starts a run, or waits for one."""
    purging = caller.broker.purging
    answering = caller.answerings.get(correlation)
    name = None if answering is None else answering.name[:2]
    run = request.run or purging.begin(dry_run=request.dry_run, name=name)

    async def work() -> PurgeOk:
        return await purging.wait(run, request.wait_ms)

    caller.answer_later(correlation, request, work)
