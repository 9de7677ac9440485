"""Requests of who makes a job of bulk scheduling: plan it, reserve ids for it, have it taken in."""

from __future__ import annotations

import os

import msgspec

from tickwheel.protocol.bodies.bulk import AdoptJob, AdoptJobOk, PlanJob, PlanJobOk, ReserveIds, ReserveIdsOk
from tickwheel.protocol.errors import DiskFull
from tickwheel_broker.background.bulk_jobs import BulkJobs
from tickwheel_broker.background.disk_room import room_of
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.requests.answers import Answers, check_name
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import expect
from timerlog.bulk.plan import Plans
from timerlog.engine.commit import Commit
from timerlog.tables.tables import Tables


class BulkRequests:
    """In this order."""

    def __init__(
        self,
        plans: Plans,
        commit: Commit,
        tables: Tables,
        clock: Clock,
        settings: Settings,
        jobs: BulkJobs,
        answers: Answers,
    ) -> None:
        self._plans = plans
        self._commit = commit
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._jobs = jobs
        self._answers = answers

    def plan(self, caller: Caller, correlation: int, request: PlanJob) -> None:
        """PLAN_JOB."""
        for name in request.topics:
            check_name(name, "topic")
        plan = self._plans.plan(request.job, request.topics, self._clock.now_ms())
        directory = self._jobs.directory(request.job)
        known = self._commit.committed(bytes.fromhex(request.job))
        if known is None:
            os.makedirs(directory, mode=0o750, exist_ok=True)
            os.utime(directory)  # one from long ago is in use again
        answer = PlanJobOk(msgspec.to_builtins(plan), str(directory), known[0] if known else None)
        self._answers.when_durable(caller, correlation, request, answer)

    def reserve_ids(self, caller: Caller, correlation: int, request: ReserveIds) -> None:
        """RESERVE_IDS. Raises DiskFull, also where there would be too little room left for what is not announced."""
        needed_bytes = request.count * self._tables.messages.dtype.itemsize
        room = room_of(self._settings)
        if room.free_bytes - needed_bytes < room.kept_bytes:
            raise DiskFull(
                f"The rows of {request.count:,} messages take {needed_bytes:,} bytes. Of the disk "
                f"{room.free_bytes:,} are free, and {room.kept_bytes:,} are kept for other messages; then the disk "
                "would be nearly full."
            )
        expect(caller, correlation, ReserveIdsOk)
        first_id = self._plans.reserve_ids(request.count)
        self._answers.when_durable(caller, correlation, request, ReserveIdsOk(first_id))

    def adopt(self, caller: Caller, correlation: int, request: AdoptJob) -> None:
        """ADOPT_JOB."""
        job = self._jobs.begin(request.job, request.max_rejects)

        async def work() -> AdoptJobOk:
            return await self._jobs.wait(job, request.wait_ms)

        caller.answer_later(correlation, request, work)
