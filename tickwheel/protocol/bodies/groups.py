"""The bodies about consumer groups, and about messages that are named one by one."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from tickwheel.protocol.bodies.base import (
    U32,
    Answer,
    Id,
    Name,
    QueryTimeoutMs,
    Request,
    TimeMs,
    check_target,
)
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_HISTORY_EVENTS

MAX_MESSAGES_A_REQUEST: Final = 1_000
_SOME: Final = msgspec.Meta(min_length=1, max_length=MAX_MESSAGES_A_REQUEST)
_Ids: TypeAlias = Annotated[list[Id], _SOME]
_Keys: TypeAlias = Annotated[list[Name], _SOME]


class GetGroups(Request, frozen=True):
    """GROUPS: those of a topic, or of all, by number from ``after_id`` on; with ``group`` that one only."""

    topic: Name | None = None
    group: Name | None = None
    after_id: U32 = 0


class CreateGroup(Request, frozen=True):
    """CREATE_GROUP: to create one that is there succeeds and changes nothing."""

    topic: Name
    group: Name
    start: Literal["earliest", "latest"] | TimeMs = "earliest"
    ephemeral_ms: TimeMs = 0
    ignore_ordering_keys: bool = False


class CreateGroupOk(Answer, frozen=True):
    """CREATE_GROUP_OK."""

    group_id: int
    created: bool


class DeleteGroup(Request, frozen=True):
    """DELETE_GROUP."""

    topic: Name
    group: Name


class DeleteGroupOk(Answer, frozen=True):
    """DELETE_GROUP_OK: how many messages it was not done with."""

    backlog: int


class SeekGroup(Request, frozen=True):
    """SEEK_GROUP: the group begins anew where a new one with this ``start`` would."""

    topic: Name
    group: Name
    to: Literal["earliest", "latest"] | TimeMs


class SeekGroupOk(Answer, frozen=True):
    """SEEK_GROUP_OK: how many messages it is not done with now."""

    backlog: int


class SetGroup(Request, frozen=True):
    """SET_GROUP: how the group is given messages from now on."""

    topic: Name
    group: Name
    ignore_ordering_keys: bool = False


class SetGroupOk(Answer, frozen=True):
    """SET_GROUP_OK. ``changed``: it was not so before."""

    changed: bool


class GetMessages(Request, frozen=True):
    """GET_MESSAGES: by ``ids``, or by ``topic`` and ``keys``; bodies are cut to ``max_body_bytes``."""

    ids: _Ids | None = None
    topic: Name | None = None
    keys: _Keys | None = None
    max_body_bytes: U32 = 16 * 1024 * 1024
    skip: Id = 0  #: how many of them are not wanted any more

    def __post_init__(self) -> None:
        check_target(self.ids, self.topic, self.keys)


class GetHistory(Request, frozen=True):
    """HISTORY: what has happened to one message, by ``id``, or by ``topic`` and ``key``; at most ``limit`` events that
    the log has."""

    timeout_ms: QueryTimeoutMs
    id: Id | None = None
    topic: Name | None = None
    key: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HISTORY_EVENTS)] = 1_000

    def __post_init__(self) -> None:
        check_target(
            None if self.id is None else [self.id], self.topic, None if self.key is None else [self.key]
        )


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.GROUPS: GetGroups,
    FrameType.CREATE_GROUP: CreateGroup,
    FrameType.DELETE_GROUP: DeleteGroup,
    FrameType.SEEK_GROUP: SeekGroup,
    FrameType.SET_GROUP: SetGroup,
    FrameType.GET_MESSAGES: GetMessages,
    FrameType.HISTORY: GetHistory,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.CREATE_GROUP_OK: CreateGroupOk,
    FrameType.DELETE_GROUP_OK: DeleteGroupOk,
    FrameType.SEEK_GROUP_OK: SeekGroupOk,
    FrameType.SET_GROUP_OK: SetGroupOk,
}
