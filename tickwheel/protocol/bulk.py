"""The bodies for bulk scheduling: others write messages as files, and the broker takes them in as they are."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from tickwheel.protocol.bodies import Answer, Name, Request
from tickwheel.protocol.frames import FrameType

_Job: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class PlanJob(Request, frozen=True):
    """PLAN_JOB: what a job for these topics has to know. Topics that are not there are made."""

    job: _Job
    topics: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=1_000)]


class PlanJobOk(Answer, frozen=True):
    """PLAN_JOB_OK: the plan (see ``timerlog.bulk.Plan``), and the directory that the job's files go to."""

    plan: dict[str, Any]
    directory: str


class ReserveIds(Request, frozen=True):
    """RESERVE_IDS: message numbers that nobody else is given."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class ReserveIdsOk(Answer, frozen=True):
    """RESERVE_IDS_OK: the first of them."""

    first_id: int


class AdoptJob(Request, frozen=True):
    """ADOPT_JOB: takes a job in, all of it or nothing; answered when it is done, or after ``wait_ms``. Asking again
    changes nothing."""

    job: _Job
    max_rejects: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


class AdoptJobOk(Answer, frozen=True):
    """ADOPT_JOB_OK. ``samples``: key, topic and earlier message of some that were rejected; ``repeated``: the job had
    been taken in before."""

    is_done: bool
    messages: int
    rejected: int
    samples: list[tuple[str, str, int]]
    repeated: bool


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.PLAN_JOB: PlanJob,
    FrameType.RESERVE_IDS: ReserveIds,
    FrameType.ADOPT_JOB: AdoptJob,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.PLAN_JOB_OK: PlanJobOk,
    FrameType.RESERVE_IDS_OK: ReserveIdsOk,
    FrameType.ADOPT_JOB_OK: AdoptJobOk,
}
