"""What requests and answers about messages look like, and how the client's objects become answers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import BrowsedMessage, GroupState, HistoryEvent, MessageInfo
from tickwheel_web.answers import Answer, answer
from tickwheel_web.bodies import ONE_FORM, TWO_FORMS, Body, content_of
from tickwheel_web.filters import Bounds, Filter, States
from tickwheel_web.shapes import MAX_PAGE, ONE_TIME, Duration, Id, Priority, Time


class Send(Body, forbid_unknown_fields=True, frozen=True):
    """A message: exactly one of `body` (any JSON), `text` and `base64`; due at `deliver_at`, after `delay`, or now."""

    key: str | UnsetType = UNSET
    headers: dict[str, Any] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    order_key: str | UnsetType = UNSET
    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET


class Change(Body, forbid_unknown_fields=True, frozen=True):
    """A new time (`deliver_at` or `delay`), a new priority, a new body (`body`, `text` or `base64`), new headers."""

    headers: dict[str, Any] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET


class Redelivery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """At once, or at `deliver_at` or after `delay`; to `group`, or to every group that is not done with it. `acked`:
    also to those that are. `keep_attempts`: attempts are not counted from 0 again."""

    group: str | UnsetType = UNSET
    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET
    acked: bool = False
    keep_attempts: bool = False


class SendQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Of a message whose body is the request's: where its other fields are."""

    key: str | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    order_key: str | UnsetType = UNSET
    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET


class CancelQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`stop=1`: a message that was delivered and is not acked is not delivered again."""

    stop: Literal[0, 1] = 0


class BrowseQuery(Bounds, forbid_unknown_fields=True, frozen=True):
    """Which messages, and whether with their bodies."""

    state: States | UnsetType = UNSET
    key: str | UnsetType = UNSET
    bodies: Literal[0, 1] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: Annotated[str, Meta(description="`next` of the part before")] = ""


class ChangeAll(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is to become of all messages that the filter means. `cancel` takes `stop`: also those that were delivered
    are not delivered again. `reschedule` takes `deliver_at` or `delay`, and `priority`. `redeliver` takes a time,
    `acked`: also those that are done, and `keep_attempts`."""

    action: Literal["cancel", "reschedule", "redeliver"]
    filter: Filter
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    stop: bool | UnsetType = UNSET
    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    acked: bool | UnsetType = UNSET
    keep_attempts: bool | UnsetType = UNSET


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a batch: stored, with an id; or refused, with a code and what to do."""

    id: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    differs: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class SentBatch(msgspec.Struct, frozen=True):
    """The result of each message, in order."""

    items: list[Item]
    stored: int
    refused: int


class Changed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of it. `id`: of the message that took its place (`replaced`), with a new body or headers."""

    result: Literal[
        "cancelled", "stopped", "already_cancelled", "rescheduled", "replaced", "redelivered", "waiting"
    ]
    id: Id | UnsetType = UNSET


@answer(GroupState, fields=("group", "state", "epoch", "attempts", "until", "done_at"))
class GroupOfMessage(Answer, frozen=True):
    """How far one group is with a message."""


@answer(
    MessageInfo,
    fields=(
        "id", "topic", "state", "standing", "key", "order_key", "priority", "deliver_at", "created_at", "headers",
        "groups", "body_bytes",
    ),
    nullable=("key", "order_key"),
    kinds={"groups": list[GroupOfMessage]},
    given={"headers": dict[str, Any] | None},
    has_body=True,
)  # fmt: skip
class Message(Answer, frozen=True):
    """A message: its body as `body` (where its content type is JSON), `text` (text) or `base64`; `headers` are null
    where another client wrote what cannot be read. `state`: `scheduled`, `ready` (in its topic), `cancelled`,
    `expired`, `damaged`; `standing`: that, or once it is in its topic how far its groups are: `acked`, `dead`,
    `leased, ready`."""


class StateInGroup(msgspec.Struct, frozen=True):
    """How far one group is with a message of a list."""

    group: str
    state: str
    epoch: int


def _states_in_groups(found: MessageInfo | BrowsedMessage) -> list[StateInGroup]:
    return [
        StateInGroup(each["group"], each["state"], each["epoch"])
        if isinstance(each, dict)
        else StateInGroup(each.group, each.state, each.epoch)
        for each in found.groups
    ]


@answer(
    BrowsedMessage,
    fields=(
        "id", "state", "standing", "key", "order_key", "priority", "deliver_at", "created_at", "headers", "groups",
        "body_bytes",
    ),
    nullable=("key", "order_key"),
    computed={"groups": (list[StateInGroup], _states_in_groups)},
    given={"headers": dict[str, Any] | None},
    has_body=True,
)  # fmt: skip
class MessageRow(Answer, frozen=True):
    """A message in a list, with its body where that was asked for; `headers` as in `Message`."""


class Listed(msgspec.Struct, frozen=True):
    """A part of the messages of a topic; `next` is the `after` of the next part, or null."""

    items: list[MessageRow]
    next: str | None


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """At most so many."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


@answer(
    HistoryEvent,
    fields=("event", "at", "after", "next", "group", "epoch", "error", "level", "computed"),
    nullable=("group", "error"),
    sources={"at": "time"},
)
class Event(Answer, frozen=True):
    """Something that happened to a message at `at`, or later than `after` where the log does not say when. `next`: when
    it is due, its lease ends, or it goes on. `computed`: it is not in the log, but follows from what is."""


class Events(msgspec.Struct, frozen=True):
    """The life of a message, in the order of the broker's log. `missing`: why there may have been more: `purged`,
    `limit`, `time`, `damaged`."""

    id: Id
    topic: str
    items: list[Event]
    missing: list[str]


class ChangedAll(msgspec.Struct, frozen=True):
    """How many messages the filter means, and how many had each result; none without a change."""

    matched: int
    results: dict[str, int]


def message_of(found: MessageInfo) -> Message:
    """With its body."""
    return Message.of(found, **content_of(found))


def listed_of(found: MessageInfo | BrowsedMessage, *, has_body: bool) -> MessageRow:
    """As it stands in a list."""
    return MessageRow.of(found, **content_of(found, has_body=has_body))


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    Send: {"oneOf": ONE_FORM, "not": ONE_TIME},
    Change: {
        "anyOf": [{"required": [name]} for name in Change.__struct_encode_fields__],
        "not": {"anyOf": [ONE_TIME, *TWO_FORMS]},
    },
    Redelivery: {"not": ONE_TIME},
    Message: {"oneOf": ONE_FORM},
    ChangeAll: {"not": ONE_TIME},
}
"""Of their schemas, what msgspec cannot say."""
