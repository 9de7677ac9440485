"""Bulk scheduling: takes jobs in, beside everything else. What a step is, `timerlog.adopting` says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from broker.errors import from_store
from broker.replying import Caller, check_name, when_durable
from broker.sync import InPlace, SyncRunner
from broker.wake import Bell
from tickwheel.protocol.bulk import AdoptJob, AdoptJobOk, PlanJob, PlanJobOk, ReserveIds, ReserveIdsOk
from timerlog.adopting import AdoptJob as Job
from timerlog.adopting import InThread
from timerlog.errors import StoreError
from timerlog.purge import WaitDurable

if TYPE_CHECKING:
    from broker.core import Broker

STAGING: Final = "staging"
_JOBS_KEPT: Final = 100
_PURGE_S: Final = 0.05


class Adopting:
    """Takes jobs in, one after the other."""

    def __init__(self, broker: Broker, runner: SyncRunner) -> None:
        self._broker = broker
        self._in_place = isinstance(runner, InPlace)
        self._adopter = broker.store.adopter
        self._wanted = Bell()
        self._moved = trio.lowlevel.ParkingLot()
        self._jobs: dict[str, Job] = {}

    async def run(self) -> None:
        """Take jobs in for ever. Raises SyncFailed when the disk fails."""
        while True:
            if self._adopter.is_idle:
                await self._wanted.wait()
            if self._adopter.is_waiting:
                await trio.sleep(_PURGE_S)
                continue
            pause = self._adopter.step(self._broker.clock.now_ms())
            self._moved.unpark_all()
            match pause:
                case WaitDurable():
                    await self._broker.commit.wait_on_disk(pause.position)
                case InThread() if not self._in_place:
                    await trio.to_thread.run_sync(pause.work)
                case InThread():
                    pause.work()
            self._broker.services.timers_changed()
            await trio.lowlevel.checkpoint()

    def directory(self, job: str) -> Path:
        """Where the files of a job are."""
        return Path(self._broker.settings.data_dir).resolve() / STAGING / job

    def begin(self, name: str, max_rejects: int) -> Job:
        """Take a job in, unless that is being done, or was done already."""
        job = self._jobs.get(name)
        if job is None or (job.is_done and job.error is not None):
            job = self._jobs[name] = self._adopter.start(self.directory(name), max_rejects)
            if len(self._jobs) > _JOBS_KEPT:
                del self._jobs[next(iter(self._jobs))]
            self._wanted.ring()
        return job

    async def wait(self, job: Job, wait_ms: int) -> AdoptJobOk:
        """How far a job is, when it is done or after `wait_ms`. Raises what ended it."""
        with trio.move_on_after(wait_ms / 1_000):
            while not job.is_done:
                await self._moved.park()
        if isinstance(job.error, StoreError):
            raise from_store(job.error)
        if job.error is not None:
            raise job.error
        report = job.report
        samples = [(reject.key, reject.topic, reject.earlier_id) for reject in report.samples]
        return AdoptJobOk(job.is_done, report.messages, report.rejected, samples, report.repeated)


def plan_job(caller: Caller, correlation: int, request: PlanJob) -> None:
    """PLAN_JOB."""
    broker = caller.broker
    for name in request.topics:
        check_name(name, "topic")
    plan = broker.store.plan_bulk(request.job, request.topics, broker.clock.now_ms())
    directory = broker.adopting.directory(request.job)
    os.makedirs(directory, mode=0o750, exist_ok=True)
    when_durable(caller, correlation, request, PlanJobOk(msgspec.to_builtins(plan), str(directory)))


def reserve_ids(caller: Caller, correlation: int, request: ReserveIds) -> None:
    """RESERVE_IDS."""
    first_id = caller.broker.store.reserve_ids(request.count)
    when_durable(caller, correlation, request, ReserveIdsOk(first_id))


def adopt_job(caller: Caller, correlation: int, request: AdoptJob) -> None:
    """ADOPT_JOB."""
    adopting = caller.broker.adopting
    job = adopting.begin(request.job, request.max_rejects)

    async def work() -> AdoptJobOk:
        return await adopting.wait(job, request.wait_ms)

    caller.answer_later(correlation, request, work)
