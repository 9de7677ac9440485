"""The bodies about recurring schedules."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from tickwheel.protocol.bodies.base import Answer, Name, Request, TimeMs
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_TIME_MS

MAX_TRIGGER_TOKEN: Final = 64
"""Characters."""
MAX_SCHEDULES: Final = 10_000
"""Of a broker."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring schedule as it is kept and told. Moments are epoch ms, durations ms. What a broker lets them be, it
    says itself: a newer broker may allow more."""

    name: str
    topic: str
    cron: str = ""
    tz: str = "UTC"
    every_ms: int = 0
    """In place of ``cron``: a fixed interval, from ``start_ms`` on."""
    start_ms: int = 0
    until_ms: int = MAX_TIME_MS
    body: bytes = b""
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
    priority: int | None = None
    overlap: str = "allow"
    catch_up: str = "last"
    window_ms: int = 0
    paused: bool = False
    last_slot_ms: int = 0
    """All slots up to here are done with; 0: there was none yet."""
    last_id: int = 0
    """The message of the last slot that was sent; 0: there was none yet."""
    sent: int = 0
    skipped: int = 0
    """Slots that were left out because the message of the slot before was not done."""
    missed: int = 0
    """Slots that passed while the broker was down, and that were not caught up."""


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
