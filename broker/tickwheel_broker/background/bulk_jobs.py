"""Bulk scheduling: takes jobs in, beside everything else. What a step is, `timerlog.bulk.adopt` says.

Who makes a job removes its directory when it comes to nothing. One who was killed cannot: so directories in which
nothing has happened for a day are removed, at the start and each hour.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Final

import trio

from tickwheel.protocol.bodies.bulk import AdoptJobOk
from tickwheel_broker import logs
from tickwheel_broker.background.steps import Jobs, StepRunner
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.errors import from_store
from tickwheel_broker.rest import Rest
from timerlog.bulk.adopt import Adopter
from timerlog.bulk.job import AdoptJob as Job
from timerlog.errors import StoreError, TooManyRejects

STAGING: Final = "staging"
KEEP_S: Final = 24 * 3_600.0
SWEEP_S: Final = 3_600.0
_PURGE_S: Final = 0.05
_JOB_NAME: Final = re.compile(r"[0-9a-f]{32}")

_log = logs.get_logger("adopting")


class BulkJobs:
    """Takes jobs in, one after the other."""

    def __init__(
        self,
        *,
        adopter: Adopter,
        clock: Clock,
        data_dir: str,
        steps: StepRunner,
        rest: Rest,
    ) -> None:
        self._adopter = adopter
        self._clock = clock
        self._data_dir = data_dir
        self._steps = steps
        self._rest = rest
        self._jobs: Jobs[str, Job] = Jobs()

    async def run(self) -> None:
        """Take jobs in until cancelled. Raises SyncFailed when the disk fails."""
        await self._steps.run(self._take_in)

    async def _take_in(self) -> None:
        while True:
            if self._adopter.is_idle:
                await self._jobs.wanted.wait()
            if self._adopter.is_waiting:
                await trio.sleep(_PURGE_S)
                continue
            started_s = time.perf_counter()
            pause = self._adopter.step(self._clock.now_ms())
            if not self._steps.is_in_place:
                self._adopter.took(time.perf_counter() - started_s)
            self._jobs.moved()
            self._tell_of_finished()
            await self._steps.carry_out(pause)
            await self._rest()

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
        """Remove what jobs have left and none is at work on, until cancelled."""
        while True:
            try:
                await self._steps.work(self._sweep_once)
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
        job = self._jobs.find(name)
        return job is not None and not job.is_done

    @property
    def staging(self) -> Path:
        """Where the directories of all jobs are."""
        return Path(self._data_dir).resolve() / STAGING

    def directory(self, job: str) -> Path:
        """Where the files of a job are."""
        return self.staging / job

    def begin(self, name: str, max_rejects: int) -> Job:
        """Take a job in, unless that is being done, or was done already."""
        job = self._jobs.find(name)
        if job is None or (job.is_done and job.error is not None):
            job = self._adopter.start(self.directory(name), max_rejects, bytes.fromhex(name))
            self._jobs.add(name, job)
        return job

    async def wait(self, job: Job, wait_ms: int) -> AdoptJobOk:
        """How far a job is, when it is done or after `wait_ms`. Raises what ended it."""
        await self._jobs.wait(job, wait_ms)
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
