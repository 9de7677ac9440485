"""Bulk scheduling, as the data pipeline asks for it. For sending from a program there is ``send_many``."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tickwheel.client.checks import listed, text, whole
from tickwheel.client.requests import Requests
from tickwheel.protocol.bodies.bulk import AdoptJob, AdoptJobOk, PlanJob, PlanJobOk, ReserveIds, ReserveIdsOk
from tickwheel.protocol.errors import TooManyRejects

_WAIT_MS: Final = 2_000


class AdoptResult(msgspec.Struct, frozen=True):
    """What became of a job. ``samples``: (key, topic, id of the message that had it before) of some rejected ones;
    ``inside``: how many of the rejected ones have the key of another message of the job; ``repeated``: it had been
    taken in before, and only the counts of messages are known."""

    messages: int
    rejected: int
    samples: list[tuple[str, str, int]]
    repeated: bool
    inside: int = 0


class JobPlan(msgspec.Struct, frozen=True):
    """What a job has to know: ``plan`` is a ``timerlog.bulk.write.Plan`` as a map, ``directory`` is where its files go.
    ``adopted``: it was taken in before, and nothing is left to do."""

    job: str
    plan: dict[str, Any]
    directory: str
    adopted: AdoptResult | None = None


class JobRefused(TooManyRejects):
    """More messages of a job have a key that another one has than were allowed to; none of it was taken in."""

    result: AdoptResult
    """What would have become of it: ``rejected``, ``inside`` and ``samples``."""


class BulkRequests(Requests):
    async def plan_job(self, topics: Sequence[str], *, job: str | None = None) -> JobPlan:
        """Begins a job of bulk scheduling for these topics; those that are not there are made. ``job``: 32 hexadecimal
        digits, by which the broker knows a job that is handed in twice. Raises BadRequest, TooManyTopics, DiskFull."""
        name = uuid.uuid4().hex if job is None else text(job, "job")
        topics = [text(one, "topics") for one in listed(topics, "topics", '["orders"]')]
        found = await self._answer(PlanJob(job=name, topics=list(topics)), PlanJobOk)
        adopted = None if found.adopted is None else AdoptResult(*found.adopted, [], repeated=True)
        plan = {"max_headers_bytes": self._session.limits.max_headers_bytes, **found.plan}
        return JobPlan(name, plan, found.directory, adopted)

    async def reserve_ids(self, count: int) -> int:
        """The first of ``count`` message numbers that no other caller is given; up to 16,777,216 at a time. Raises
        DiskFull, BadRequest."""
        count = whole(count, "count", 1, 1 << 24)
        return (await self._answer(ReserveIds(count=count), ReserveIdsOk)).first_id

    async def adopt_job(self, job: str, *, max_rejects: int = 0) -> AdoptResult:
        """Hands a job in whose files are complete, and returns when all its messages are scheduled; if more than
        ``max_rejects`` have a key that another message has, none of them is. Raises JobRefused (with ``result``),
        BadJob, DiskFull."""
        max_rejects = whole(max_rejects, "max_rejects", 0, 1 << 40)
        found = AdoptJobOk(False, 0, 0, [], False)
        while not found.is_done:
            found = await self._answer(
                AdoptJob(job=job, max_rejects=max_rejects, wait_ms=_WAIT_MS), AdoptJobOk
            )
        result = AdoptResult(found.messages, found.rejected, found.samples, found.repeated, found.inside)
        if found.is_refused:
            error = JobRefused(
                f"{found.rejected:,} messages have a key that another one has; {max_rejects:,} may be rejected."
            )
            error.result = result
            raise error
        return result
