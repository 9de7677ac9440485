"""Requests about jobs of bulk scheduling: plan one, reserve ids for it, take it in."""

from __future__ import annotations

import os
from functools import partial

import msgspec

from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, PlanJobOk, ReserveIds, ReserveIdsOk
from tickwheel.protocol.errors import DiskFull
from tickwheel_broker.background.bulk_jobs import BulkJobs
from tickwheel_broker.background.disk_room import room_of
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.topics import maker_of
from timerlog.bulk.plan import Plans
from timerlog.engine.commit import Commit
from timerlog.tables.tables import Tables


class BulkRequests:
    """A job needs them in this order."""

    def __init__(
        self,
        *,
        plans: Plans,
        commit: Commit,
        tables: Tables,
        clock: Clock,
        settings: Settings,
        jobs: BulkJobs,
    ) -> None:
        self._plans = plans
        self._commit = commit
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._jobs = jobs

    def plan(self, request: PlanJob, asked: Asked) -> PlanJobOk:
        """PLAN_JOB."""
        for name in request.topics:
            check_name(name, "topic")
        maker = maker_of(asked.caller.identity, self._settings)
        plan = self._plans.plan(request.job, request.topics, self._clock.now_ms(), maker)
        directory = self._jobs.directory(request.job)
        known = self._commit.committed(bytes.fromhex(request.job))
        if known is None:
            os.makedirs(directory, mode=0o750, exist_ok=True)
            os.utime(directory)  # one from long ago is in use again
        return PlanJobOk(msgspec.to_builtins(plan), str(directory), known[0] if known else None)

    def reserve_ids(self, request: ReserveIds, asked: Asked) -> ReserveIdsOk:
        """RESERVE_IDS. Raises DiskFull, also where there would be too little room left for what is not announced."""
        needed_bytes = request.count * self._tables.messages.dtype.itemsize
        room = room_of(self._settings)
        if room.free_bytes - needed_bytes < room.kept_bytes:
            raise DiskFull(
                f"The rows of {request.count:,} messages take {needed_bytes:,} bytes. Of the disk "
                f"{room.free_bytes:,} are free, and {room.kept_bytes:,} are kept for other messages; then the disk "
                "would be nearly full."
            )
        asked.expect(ReserveIdsOk)
        first_id = self._plans.reserve_ids(request.count)
        return ReserveIdsOk(first_id)

    def adopt(self, request: AdoptJob, asked: Asked) -> Work:
        """ADOPT_JOB."""
        job = self._jobs.begin(request.job, request.max_rejects)
        return partial(self._jobs.wait, job, request.wait_ms)
