"""The purge: a task that does a little of it at a time, between everything else.

A step takes about a millisecond. After each, the task sleeps for twice as long as the step took, so that deliveries
keep most of the processor; when the disk is nearly full it only lets others have their turn.
"""

from __future__ import annotations

from typing import Final

import msgspec
import trio

from tickwheel.protocol.bodies.admin import PurgeOk
from tickwheel.protocol.errors import BadRequest
from tickwheel_broker import logs
from tickwheel_broker.background.disk_room import room_of
from tickwheel_broker.background.steps import FULL_S, KEPT, Jobs, StepRunner
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.errors import advice_for, from_store
from tickwheel_broker.services import Services
from timerlog.errors import DamagedLog, DiskFull, StoreError
from timerlog.purge.purger import Job, Purger

IDLE_S: Final = 1.0
REST: Final = 2.0
"""How long to sleep after a step, in units of the time that it took."""

NEARLY_FULL: Final = 4
"""So many times what large requests must leave free."""

_log = logs.get_logger("purge")


class Purging:
    """Runs the purge of a broker's store."""

    def __init__(
        self,
        *,
        purger: Purger,
        clock: Clock,
        services: Services,
        settings: Settings,
        steps: StepRunner,
    ) -> None:
        self._purger = purger
        self._clock = clock
        self._services = services
        """Unless the disk is nearly full, the purge waits like producers while these are behind."""
        self._settings = settings
        self._steps = steps
        self._runs: Jobs[int, Job] = Jobs()
        self._last_run = 0
        self._begun: dict[tuple[int, int], int] = {}

    async def run(self) -> None:
        """Purge until cancelled. Raises SyncFailed when the disk fails."""
        while True:
            if self._purger.is_idle(self._clock.now_ms()):
                with trio.move_on_after(IDLE_S):
                    await self._runs.wanted.wait()
                continue
            try:
                await self._step()
            except (DiskFull, DamagedLog) as error:
                _log.error("purging stopped for now", reason=str(error), advice=advice_for(error))
                await trio.sleep(FULL_S)

    async def _step(self) -> None:
        started = trio.current_time()
        pause = self._purger.step(self._clock.now_ms())
        took_s = trio.current_time() - started
        self._runs.moved()
        await self._steps.carry_out(pause)
        full = self._is_nearly_full()
        if not full:
            await self._services.wait_for_room()
        await trio.sleep(0 if full else REST * took_s)

    def _is_nearly_full(self) -> bool:
        try:
            room = room_of(self._settings)
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
            if len(self._begun) > KEPT:
                del self._begun[next(iter(self._begun))]
        self._runs.add(self._last_run, self._purger.start(dry_run=dry_run))
        return self._last_run

    async def wait(self, run: int, wait_ms: int) -> PurgeOk:
        """How far a run is, when it is done or after `wait_ms`. Raises BadRequest, or what ended it."""
        job = self._runs.find(run)
        if job is None:
            raise BadRequest(f"There is no purge {run}, or no more.")
        await self._runs.wait(job, wait_ms)
        if isinstance(job.error, StoreError):
            raise from_store(job.error)
        return PurgeOk(run=run, is_done=job.is_done, **msgspec.structs.asdict(job.report))
