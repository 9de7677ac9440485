"""The bodies by which a broker is watched from outside."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from tickwheel.protocol.bodies.base import U32, Answer, Id, QueryTimeoutMs, Request
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_HISTORY_EVENTS

MAX_AUDIT_LINES: Final = 1_000


class GetFigures(Request, frozen=True):
    """FIGURES: with those of topics and groups, by number from ``after_topic`` and ``after_group`` on. ``totals_only``:
    without those of each."""

    after_topic: U32 = 0
    after_group: U32 = 0
    totals_only: bool = False


class GetClients(Request, frozen=True):
    """CLIENTS: who is logged in, by number from ``after_id`` on."""

    after_id: Id = 0


class Disconnect(Request, frozen=True):
    """DISCONNECT: closes a connection."""

    id: Id


class DisconnectOk(Answer, frozen=True):
    """DISCONNECT_OK. ``closed``: there was such a connection."""

    closed: bool


class GetAudit(Request, frozen=True):
    """AUDIT: lines of the audit log after the one with a number; without ``after`` the last ones."""

    after: Id | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_AUDIT_LINES)] = 100


class GetEvents(Request, frozen=True):
    """EVENTS: what has happened from a place in the log on. ``start``: the beginning of the log, its end, or a place:
    the position of a record, and how many of its events were told already."""

    start: Literal["earliest", "latest"] | tuple[Id, Id]
    timeout_ms: QueryTimeoutMs
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HISTORY_EVENTS)] = 1_000


class GetAuditOk(Answer, frozen=True):
    """AUDIT_OK. ``lines``: number and JSON of each. ``has_gap``: some may have come in between that are not kept any
    more."""

    lines: list[tuple[int, bytes]]
    has_gap: bool


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.FIGURES: GetFigures,
    FrameType.CLIENTS: GetClients,
    FrameType.DISCONNECT: Disconnect,
    FrameType.AUDIT: GetAudit,
    FrameType.EVENTS: GetEvents,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.DISCONNECT_OK: DisconnectOk,
    FrameType.AUDIT_OK: GetAuditOk,
}
