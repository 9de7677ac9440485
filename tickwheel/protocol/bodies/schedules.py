"""The bodies about recurring schedules."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from tickwheel.protocol.bodies.base import Answer, Name, Request, TimeMs
from tickwheel.protocol.frames import FrameType

MAX_TRIGGER_TOKEN: Final = 64
"""Characters."""
MAX_SCHEDULES: Final = 10_000
"""Of a broker."""


class GetSchedules(Request, frozen=True):
    """SCHEDULES: the one of a name, or by name up to ``limit`` of those that come ``after`` a name, and as many as the
    broker likes; with ``count`` next slots each, from ``from_ms`` or now on. With ``fields``: the slots that one would
    have that says this, and what clocks that change make of them."""

    name: Name | None = None
    after: Name = ""
    count: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 5
    from_ms: TimeMs | None = None
    fields: dict[str, Any] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_SCHEDULES)] | None = None


class SetSchedule(Request, frozen=True):
    """SET_SCHEDULE: with ``create`` a new one, otherwise changes of one. ``fields``: as SCHEDULES_OK has them."""

    name: Name
    fields: dict[str, Any]
    create: bool = False


class DeleteSchedule(Request, frozen=True):
    """DELETE_SCHEDULE."""

    name: Name


class DeleteScheduleOk(Answer, frozen=True):
    """DELETE_SCHEDULE_OK."""


class TriggerSchedule(Request, frozen=True):
    """TRIGGER_SCHEDULE: sends its message now; with a ``token``, once however often the request comes."""

    name: Name
    token: Annotated[str, msgspec.Meta(max_length=MAX_TRIGGER_TOKEN)] = ""


class TriggerScheduleOk(Answer, frozen=True):
    """TRIGGER_SCHEDULE_OK: the message's id."""

    id: int


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.SCHEDULES: GetSchedules,
    FrameType.SET_SCHEDULE: SetSchedule,
    FrameType.DELETE_SCHEDULE: DeleteSchedule,
    FrameType.TRIGGER_SCHEDULE: TriggerSchedule,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.DELETE_SCHEDULE_OK: DeleteScheduleOk,
    FrameType.TRIGGER_SCHEDULE_OK: TriggerScheduleOk,
}
