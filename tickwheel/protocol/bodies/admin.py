"""The bodies for topics, prepared messages, dead letters, and looking at messages one by one."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from tickwheel.protocol.bodies.base import U32, Answer, Id, Ids, Keys, Name, Request, TimeMs, check_target
from tickwheel.protocol.bodies.settling import MessageFilter
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST

_RunLength: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_IDS_A_REQUEST)]


class SetTopic(Request, frozen=True):
    """SET_TOPIC: with ``create`` a new topic, otherwise changes of one. Durations in ms, sizes in bytes."""

    topic: Name
    create: bool = False
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    unset: list[Name] = msgspec.field(default_factory=list)
    paused: bool | None = None
    shards: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0


class GetTopic(Request, frozen=True):
    """GET_TOPIC."""

    topic: Name


class DeleteTopic(Request, frozen=True):
    """DELETE_TOPIC: with all its messages and groups."""

    topic: Name


class DeleteTopicOk(Answer, frozen=True):
    """DELETE_TOPIC_OK: how many messages it had."""

    messages: int


class Prepare(Request, frozen=True):
    """PREPARE: messages (the payload of a SEND) that wait for DECIDE. ``check_after_ms``: so long from now it is asked
    for the first time what became of them, instead of after the broker's ``check_after``."""

    topic: Name
    payload: bytes
    check_after_ms: TimeMs | None = None


class PrepareOk(Answer, frozen=True):
    """PREPARE_OK: the ids of the prepared messages."""

    ids: list[int]


class Decide(Request, frozen=True):
    """DECIDE: commits or rolls back prepared messages, by id, or by the topic that they are for and their keys."""

    commit: bool
    ids: Ids | None = None
    topic: Name | None = None
    keys: Keys | None = None

    def __post_init__(self) -> None:
        check_target(self.ids, self.topic, self.keys)


class DecideOk(Answer, frozen=True):
    """DECIDE_OK: a result for each prepared message, and the id of the message that it became (0: none)."""

    results: list[str]
    ids: list[int]


class ReplayDead(Request, frozen=True):
    """REPLAY_DEAD: gives dead letters of ``topic`` (the original one) back to the groups that gave up."""

    topic: Name
    ids: Ids | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10_000


class ReplayDeadOk(Answer, frozen=True):
    """REPLAY_DEAD_OK: how often each result came."""

    results: dict[str, int]


class Browse(MessageFilter, Request, frozen=True):
    """BROWSE: messages of a topic that the filter means, without taking them: in order of their ids, from behind
    ``after_id`` on, or in order of their times and ids, from behind a time and an id on."""

    topic: Name
    after_id: Id | list[Id] = 0
    """A list has a time and an id. It is no tuple, which msgspec misreads beside a number with bounds, and no field of
    its own, because a map of more than 15 fields begins with other bytes."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    max_body_bytes: U32 = 65_536

    def __post_init__(self) -> None:
        if isinstance(self.after_id, list) and len(self.after_id) != 2:
            raise ValueError("Expected a time and an id in `after_id`")


class Purge(Request, frozen=True):
    """PURGE: purges what is done, now; or waits on for the one with number ``run``. Answered when it is done, or after
    ``wait_ms``."""

    dry_run: bool = False
    run: Id = 0
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


class PurgeOk(Answer, frozen=True):
    """PURGE_OK: what the run has done so far, or would do. ``freed_bytes``: of the log's segments, without what moved
    messages take again."""

    run: int
    is_done: bool
    segments: int
    freed_bytes: int
    purged_messages: int
    moved_messages: int
    moved_bytes: int
    damaged_messages: int
    kept_messages: int


class Drop(Request, frozen=True):
    """DROP: forgets messages of the log ``log_id`` (16 hexadecimal digits) that every group was done with before
    ``done_before_ms``. ``runs``: first id and count; none: nothing is dropped, and ``log_id`` does not count."""

    runs: Annotated[list[tuple[Id, _RunLength]], msgspec.Meta(max_length=MAX_IDS_A_REQUEST)]
    log_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")] = "0" * 16
    done_before_ms: TimeMs = 0

    def __post_init__(self) -> None:
        if sum(count for _, count in self.runs) > MAX_IDS_A_REQUEST:
            raise ValueError(f"Expected at most {MAX_IDS_A_REQUEST} ids in `runs`")


class DropOk(Answer, frozen=True):
    """DROP_OK: which log this is and where its directory lies; how many went, how many were gone already, and first id
    and count of those that stay because some group is not done with them."""

    log_id: str
    directory: str
    dropped: int
    gone: int
    kept: list[tuple[int, int]]


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.SET_TOPIC: SetTopic,
    FrameType.GET_TOPIC: GetTopic,
    FrameType.DELETE_TOPIC: DeleteTopic,
    FrameType.PREPARE: Prepare,
    FrameType.DECIDE: Decide,
    FrameType.PURGE: Purge,
    FrameType.DROP: Drop,
    FrameType.REPLAY_DEAD: ReplayDead,
    FrameType.BROWSE: Browse,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.DELETE_TOPIC_OK: DeleteTopicOk,
    FrameType.PREPARE_OK: PrepareOk,
    FrameType.DECIDE_OK: DecideOk,
    FrameType.REPLAY_DEAD_OK: ReplayDeadOk,
    FrameType.PURGE_OK: PurgeOk,
    FrameType.DROP_OK: DropOk,
}
