"""Tasks that a schedule of the broker sends: which id they have, and when they expire.

A broker sends the same message at each slot, so what differs is filled in when it is delivered: the id, which follows
from schedule and slot, so that a slot that is delivered again is the same task, and an ``expires`` that is counted from
the slot.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID, uuid5

import msgspec

from tickwheel.protocol.limits import MAX_TIME_MS

SCHEDULE_HEADER: Final = "tickwheel-schedule"
"""The broker sets it in what a schedule sends: the schedule's name, and the slot."""

BEAT_HEADER: Final = "tickwheel-beat"
"""The mark of schedules that beat made."""

_NAMESPACE: Final = UUID("6f0b7a1c-5a55-5f3c-9d0e-0d1c1f0a7e2b")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Slot(msgspec.Struct, frozen=True):
    """A time at which a schedule sends a message."""

    name: str
    """Of the schedule."""
    slot_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]

    @property
    def task_id(self) -> str:
        """The id of the task, the same one wherever and however often it is asked for."""
        return str(uuid5(_NAMESPACE, f"{self.name}/{self.slot_ms}"))

    @property
    def time(self) -> datetime:
        """``slot_ms`` as a datetime in UTC."""
        return _EPOCH + timedelta(milliseconds=self.slot_ms)


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What beat notes in the messages of its schedules."""

    app: str
    """The name of the app to which the schedule belongs; no other one changes it."""
    entry: str
    """The name in ``beat_schedule``."""
    expires_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)] | None = None
    """How long after its slot a task expires; None: it does not, or at a fixed time."""


def slot_of(headers: Mapping[str, Any]) -> Slot | None:
    """The slot of a message, from its headers at the broker. None: no schedule sent it."""
    found: Slot | None = _read(headers.get(SCHEDULE_HEADER), Slot)
    return found


def mark_of(headers: Mapping[str, Any]) -> Mark | None:
    """The mark of a schedule or message, from its headers at the broker. None: beat did not make it."""
    found: Mark | None = _read(headers.get(BEAT_HEADER), Mark)
    return found


def fill_in(
    at_broker: Mapping[str, Any], headers: MutableMapping[str, Any], properties: MutableMapping[str, Any]
) -> None:
    """Makes the headers and properties of a task message that beat left at the broker those of the task of its slot;
    any other message stays as it is. ``at_broker``: the message's headers there."""
    mark, slot = mark_of(at_broker), slot_of(at_broker)
    if mark is None or slot is None:
        return
    headers["id"] = headers["root_id"] = properties["correlation_id"] = slot.task_id
    if mark.expires_ms is not None:
        until_ms = min(slot.slot_ms + mark.expires_ms, MAX_TIME_MS)
        headers["expires"] = (_EPOCH + timedelta(milliseconds=until_ms)).isoformat()


def _read(value: Any, kind: type[Any]) -> Any:
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None  # another program's header of this name
