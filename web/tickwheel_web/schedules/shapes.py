"""What recurring schedules look like."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import Schedule as Found
from tickwheel_web.answers import Answer, answer
from tickwheel_web.bodies import ONE_FORM, TWO_FORMS, Body, shown
from tickwheel_web.shapes import Duration, Id, Moment, Priority, Time, TopicName

Cron = Annotated[
    str, Meta(description="Five fields, or six with seconds first", examples=["0 9 * * MON-FRI"])
]
NEVER_YEAR: Final = 9999
"""The end of a schedule that has none is in it."""
Overlap = Literal["allow", "skip"]
CatchUp = Literal["none", "last", "all"]


class NewSchedule(Body, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A schedule: to which topic, at the times of `cron` in the zone `tz`, or `every` so long; with the message's body
    as `body`, `text` or `base64`, or an empty one. `overlap` skip: not while the message before is not done.
    `catch_up`: what is sent of what was missed while the broker was down. `window`: each message is due somewhere in so
    long after its time."""

    topic: TopicName
    cron: Cron | UnsetType = UNSET
    tz: str = "UTC"
    every: Duration | UnsetType = UNSET
    start: Time = UNSET
    until: Time = UNSET
    headers: dict[str, Any] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    overlap: Overlap = "allow"
    catch_up: CatchUp = "last"
    window: Duration | UnsetType = UNSET


class NextQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How many of the next times, after a moment (`from`) or now."""

    count: Annotated[int, Meta(ge=1, le=1_000)] = 5
    after: Time = msgspec.field(default=UNSET, name="from")


class Rhythm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a schedule would say, as in `NewSchedule`, and how many of its times are wanted, after a moment (`from`) or
    now."""

    cron: Cron | UnsetType = UNSET
    tz: str = "UTC"
    every: Duration | UnsetType = UNSET
    start: Time = UNSET
    until: Time = UNSET
    count: Annotated[int, Meta(ge=1, le=1_000)] = 10
    after: Time = msgspec.field(default=UNSET, name="from")


class PreviewTime(msgspec.Struct, frozen=True):
    """One time, in the zone of the schedule. `repeated`: where this local time comes twice, because clocks are put
    back, which of the two it is."""

    at: Moment
    repeated: Literal["first", "second"] | None


class Preview(msgspec.Struct, frozen=True):
    """The times of a schedule. `skipped`: local times of the cron expression in between that there are not, because
    clocks are put forward; a time of day comes right after the gap, anything else not at all."""

    items: list[PreviewTime]
    skipped: list[str]


def _end(found: Found) -> datetime | None:
    return found.until if found.until.year < NEVER_YEAR else None


@answer(
    Found,
    fields=(
        "name", "topic", "cron", "tz", "every", "start", "until", "headers", "priority", "overlap", "catch_up",
        "window", "paused", "sent", "skipped", "missed", "last", "next", "trouble",
    ),
    nullable=("cron", "every", "window", "trouble"),
    sources={"last": "last_slot"},
    kinds={"topic": TopicName, "overlap": Overlap, "catch_up": CatchUp},
    computed={"until": (Moment | None, _end)},
    has_body=True,
)  # fmt: skip
class Schedule(Answer, frozen=True):
    """A schedule, and how far it is. `skipped`: times that were left out because the message before was not done;
    `missed`: those that passed while the broker was down, and that were not caught up; `trouble`: why what is due
    cannot be sent; `next`: its next times, none while it is paused."""


class Schedules(msgspec.Struct, frozen=True):
    """A part of the schedules; `next` is the `after` of the next part, or null."""

    items: list[Schedule]
    next: str | None


class Times(msgspec.Struct, frozen=True):
    """When a schedule sends its next messages; none while it is paused."""

    items: list[Moment]


class Triggered(msgspec.Struct, frozen=True):
    """The message that was sent beside the rhythm."""

    id: Id


class DeletedSchedule(msgspec.Struct, frozen=True):
    """The schedule that ended."""

    name: str


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    NewSchedule: {
        "oneOf": [{"required": ["cron"]}, {"required": ["every"]}],
        "not": {"anyOf": TWO_FORMS},
    },
    Rhythm: {"oneOf": [{"required": ["cron"]}, {"required": ["every"]}]},
    Schedule: {"oneOf": ONE_FORM},
}
"""Of their schemas, what msgspec cannot say."""


def schedule_of(found: Found) -> Schedule:
    """With its body as its content type says."""
    return Schedule.of(found, **shown(found.body, found.headers))
