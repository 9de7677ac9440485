"""The bodies about recurring schedules."""

from __future__ import annotations

from typing import Any, Final

from tickwheel.protocol.bodies import Answer, Name, Request
from tickwheel.protocol.frames import FrameType


class GetSchedules(Request, frozen=True):
    """SCHEDULES: all of them, or the one of a name."""

    name: Name | None = None


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
    """TRIGGER_SCHEDULE: sends its message now."""

    name: Name


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
