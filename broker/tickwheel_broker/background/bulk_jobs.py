"""Bulk scheduling: takes jobs in, beside everything else. What a step is, `timerlog.bulk.adopt` says.

Who makes a job removes its directory when it comes to nothing. One who was killed cannot: so directories in which
nothing has happened for a day are removed, at the start and each hour.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from tickwheel.protocol.bodies.bulk import AdoptJob, AdoptJobOk, PlanJob, PlanJobOk, ReserveIds, ReserveIdsOk
from tickwheel.protocol.errors import DiskFull
from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.errors import from_store
from tickwheel_broker.group_commit import InPlace, SyncRunner
from tickwheel_broker.net.disk_room import room_of
from tickwheel_broker.requests import remembered as remembering
from tickwheel_broker.requests.answers import Caller, check_name, when_durable
from timerlog.background import InThread, Join, WaitDurable, WriteBack
from timerlog.bulk.job import AdoptJob as Job
from timerlog.bulk.job import Pause
from timerlog.errors import StoreError, TooManyRejects

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker

STAGING: Final = "staging"
KEEP_S: Final = 24 * 3_600.0
SWEEP_S: Final = 3_600.0
_JOBS_KEPT: Final = 100
_PURGE_S: Final = 0.05
#: Whoever ends the broker waits for so much of it.
_WRITE_BACK_BYTES: Final = 32 << 20
_JOB_NAME: Final = re.compile(r"[0-9a-f]{32}")

_log = logs.get_logger("adopting")


class Adopting:
    """Takes jobs in, one after the other."""

    def __init__(self, broker: Broker, runner: SyncRunner) -> None:
        self._broker = broker
        self._in_place = isinstance(runner, InPlace)
        self._adopter = broker.store.adopter
        self._wanted = Bell()
        self._moved = trio.lowlevel.ParkingLot()
        self._jobs: dict[str, Job] = {}
        self._dirty: deque[WriteBack] = deque()
        self._is_dirty = Bell()
        self._beside_ended = trio.Event()
        self._beside_ended.set()

    async def run(self) -> None:
        """Take jobs in for ever. Raises SyncFailed when the disk fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_back)
            await self._take_in(nursery)

    async def _take_in(self, nursery: trio.Nursery) -> None:
        while True:
            if self._adopter.is_idle:
                await self._wanted.wait()
            if self._adopter.is_waiting:
                await trio.sleep(_PURGE_S)
                continue
            started_s = time.perf_counter()
            pause = self._adopter.step(self._broker.clock.now_ms())
            if not self._in_place:
                self._adopter.took(time.perf_counter() - started_s)
            self._moved.unpark_all()
            self._tell_of_finished()
            await self._carry_out(pause, nursery)
            self._broker.services.timers_changed()
            await trio.lowlevel.checkpoint()

    async def _carry_out(self, pause: Pause, nursery: trio.Nursery) -> None:
        match pause:
            case WaitDurable():
                await self._broker.commit.wait_on_disk(pause.position)
            case InThread() if self._in_place:
                pause.work()
            case InThread(beside=True):
                self._beside_ended = trio.Event()
                nursery.start_soon(self._run_beside, pause.work, self._beside_ended)
            case InThread():
                await trio.to_thread.run_sync(pause.work)
            case Join():
                await self._beside_ended.wait()
            case WriteBack() if not self._in_place:
                self._dirty.append(pause)
                self._is_dirty.ring()

    async def _run_beside(self, work: Callable[[], None], ended: trio.Event) -> None:
        await trio.to_thread.run_sync(work)
        ended.set()

    async def _write_back(self) -> None:
        """One piece after the other, for ever: nobody waits for it."""
        while True:
            await self._is_dirty.wait()
            while self._dirty:
                dirty = self._dirty.popleft()
                for start in range(dirty.start_bytes, dirty.end_bytes, _WRITE_BACK_BYTES):
                    end = min(start + _WRITE_BACK_BYTES, dirty.end_bytes)
                    await trio.to_thread.run_sync(dirty.region.write_back, start, end)

    def _tell_of_finished(self) -> None:
        job = self._adopter.take_finished()
        if job is None:
            return
        report = job.report
        if job.error is not None:
            code = getattr(job.error, "code", "internal")
            _log.warning("a job was not taken in", job=job.directory.name, code=code, reason=str(job.error))
        else:
            _log.info(
                "a job was taken in" if not report.repeated else "a job had been taken in before",
                job=job.directory.name, messages=report.messages, rejected=report.rejected,
            )  # fmt: skip
        if job.left_behind is not None:
            _log.error(
                "a job that was taken in left files behind",
                directory=str(job.directory), reason=str(job.left_behind), advice=f"They go after {KEEP_S:.0f} s.",
            )  # fmt: skip

    async def sweep(self) -> None:
        """Remove what jobs have left that nobody works on any more, for ever."""
        while True:
            try:
                if self._in_place:
                    self._sweep_once()
                else:
                    await trio.to_thread.run_sync(self._sweep_once)
            except OSError as error:
                _log.error("what jobs have left cannot be removed", reason=str(error))
            await trio.sleep(SWEEP_S)

    def _sweep_once(self) -> None:
        # The file system's times are those of the machine, whatever the broker's own clock says.
        before_s = time.time() - KEEP_S
        for directory in old_jobs(self.staging, before_s):
            if self._is_wanted(directory.name):
                continue
            try:
                shutil.rmtree(directory)
            except OSError as error:
                _log.error("a job's files cannot be removed", directory=str(directory), reason=str(error))
            else:
                _log.info("a job that nobody finished was removed", directory=str(directory))

    def _is_wanted(self, name: str) -> bool:
        job = self._jobs.get(name)
        return job is not None and not job.is_done

    @property
    def staging(self) -> Path:
        """Where the directories of all jobs are."""
        return Path(self._broker.settings.data_dir).resolve() / STAGING

    def directory(self, job: str) -> Path:
        """Where the files of a job are."""
        return self.staging / job

    def begin(self, name: str, max_rejects: int) -> Job:
        """Take a job in, unless that is being done, or was done already."""
        job = self._jobs.get(name)
        if job is None or (job.is_done and job.error is not None):
            job = self._jobs[name] = self._adopter.start(
                self.directory(name), max_rejects, bytes.fromhex(name)
            )
            if len(self._jobs) > _JOBS_KEPT:
                del self._jobs[next(iter(self._jobs))]
            self._wanted.ring()
        return job

    async def wait(self, job: Job, wait_ms: int) -> AdoptJobOk:
        """How far a job is, when it is done or after `wait_ms`. Raises what ended it."""
        with trio.move_on_after(wait_ms / 1_000):
            while not job.is_done:
                await self._moved.park()
        is_refused = isinstance(job.error, TooManyRejects)
        if isinstance(job.error, StoreError) and not is_refused:
            raise from_store(job.error)
        if job.error is not None and not is_refused:
            raise job.error
        report = job.report
        return AdoptJobOk(
            is_done=job.is_done,
            messages=0 if is_refused else report.messages,
            rejected=report.rejected,
            samples=[(reject.key, reject.topic, reject.earlier_id) for reject in report.samples],
            repeated=report.repeated,
            inside=report.inside,
            is_refused=is_refused,
        )


def old_jobs(staging: Path, before_s: float) -> list[Path]:
    """The directories of jobs in which nothing was written since. Raises `OSError`."""
    if not staging.is_dir():
        return []
    jobs = [one for one in staging.iterdir() if _JOB_NAME.fullmatch(one.name) and one.is_dir()]
    return sorted(one for one in jobs if _newest_s(one) < before_s)


def _newest_s(directory: Path) -> float:
    """When a directory or a file in it was changed last; now, for one that goes away meanwhile."""
    try:
        return max(one.lstat().st_mtime for one in (directory, *directory.iterdir()))
    except FileNotFoundError:
        return time.time()


def plan_job(caller: Caller, correlation: int, request: PlanJob) -> None:
    """PLAN_JOB."""
    broker = caller.broker
    for name in request.topics:
        check_name(name, "topic")
    plan = broker.store.plan_bulk(request.job, request.topics, broker.clock.now_ms())
    directory = broker.adopting.directory(request.job)
    known = broker.store.committed(bytes.fromhex(request.job))
    if known is None:
        os.makedirs(directory, mode=0o750, exist_ok=True)
        os.utime(directory)  # one from long ago is in use again
    answer = PlanJobOk(msgspec.to_builtins(plan), str(directory), known[0] if known else None)
    when_durable(caller, correlation, request, answer)


def reserve_ids(caller: Caller, correlation: int, request: ReserveIds) -> None:
    """RESERVE_IDS. Raises DiskFull, also where there would be too little room left for what is not announced."""
    store = caller.broker.store
    needed_bytes = request.count * store.tables.messages.dtype.itemsize
    room = room_of(caller.broker.settings)
    if room.free_bytes - needed_bytes < room.kept_bytes:
        raise DiskFull(
            f"The rows of {request.count:,} messages take {needed_bytes:,} bytes. Of the disk {room.free_bytes:,} are "
            f"free, and {room.kept_bytes:,} are kept for other messages; then the disk would be nearly full."
        )
    remembering.expect(caller, correlation, ReserveIdsOk)
    first_id = store.reserve_ids(request.count)
    when_durable(caller, correlation, request, ReserveIdsOk(first_id))


def adopt_job(caller: Caller, correlation: int, request: AdoptJob) -> None:
    """ADOPT_JOB."""
    adopting = caller.broker.adopting
    job = adopting.begin(request.job, request.max_rejects)

    async def work() -> AdoptJobOk:
        return await adopting.wait(job, request.wait_ms)

    caller.answer_later(correlation, request, work)
