"""The bodies for bulk scheduling: others write messages as files, and the broker takes them in as they are."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from tickwheel.protocol.bodies.base import Answer, Name, Request
from tickwheel.protocol.frames import FrameType

MAX_RESERVED_IDS: Final = 1 << 24
"""The most message numbers in one RESERVE_IDS: each is a row of the broker's table, on the disk from then on."""

_Job: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class PlanJob(Request, frozen=True):
    """PLAN_JOB: what a job for these topics has to know. Topics that are not there are made."""

    job: _Job
    topics: Annotated[list[Name], msgspec.Meta(max_length=1_000)]


class PlanJobOk(Answer, frozen=True):
    """PLAN_JOB_OK: the plan (see ``timerlog.bulk.write.Plan``), and the directory that the job's files go to.
    ``adopted``: the job was taken in already, with so many messages stored and rejected; then there is no directory."""

    plan: dict[str, Any]
    directory: str
    adopted: tuple[int, int] | None = None


class ReserveIds(Request, frozen=True):
    """RESERVE_IDS: message numbers that are given out once."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_RESERVED_IDS)]


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
    been taken in before. ``inside``: how many of the rejected have the key of another message of the job.
    ``is_refused``: more were rejected than may be, so nothing was taken in."""

    is_done: bool
    messages: int
    rejected: int
    samples: list[tuple[str, str, int]]
    repeated: bool
    inside: int = 0
    is_refused: bool = False


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
