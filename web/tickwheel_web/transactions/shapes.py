"""What transactions and prepared messages look like."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import BrowsedMessage
from tickwheel.stats import datetime_of
from tickwheel_web.answers import Answer, answer
from tickwheel_web.bodies import ONE_FORM, content_of
from tickwheel_web.messages.shapes import Send
from tickwheel_web.shapes import MAX_PAGE, ONE_TIME, Duration, Id, Moment, Priority, Time, TopicName

PREPARED_HEADER: Final = "tickwheel-prepared"
"""The broker's own header of a prepared message: which topic it is for, and when."""


class SendTo(Send, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message, and the topic that it is for."""

    topic: TopicName


class Prepare(SendTo, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message that waits for a decision. `check_after`: those who answer for it are first asked after so long."""

    check_after: Duration | UnsetType = UNSET


class Which(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A message: its `id`, or its `topic` and `key`."""

    id: Id | UnsetType = UNSET
    topic: TopicName | UnsetType = UNSET
    key: str | UnsetType = UNSET


class Move(Which, forbid_unknown_fields=True, frozen=True):
    """A message, and its new time (`deliver_at` or `delay`), new priority, or both."""

    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET


class Acks(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Deliveries of a group, by their receipts."""

    topic: TopicName
    group: str
    receipts: Annotated[list[str], Meta(min_length=1)]


class Transaction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is to happen together or not at all. Of transactions with the same `id`, which counts for one token, only
    the first is committed; the others are answered what it was, whatever is in them."""

    id: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    sends: list[SendTo] = []
    cancels: list[Which] = []
    reschedules: list[Move] = []
    acks: list[Acks] = []


class Committed(msgspec.Struct, frozen=True):
    """The ids of what was sent, in order. `repeated`: it had been committed before, and they are the ids of then."""

    ids: list[Id]
    repeated: bool


class PreparedQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """For which topic."""

    topic: TopicName
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: Annotated[str, Meta(description="`next` of the part before")] = ""


@answer(
    BrowsedMessage,
    fields=(
        "id",
        "topic",
        "key",
        "order_key",
        "priority",
        "deliver_at",
        "created_at",
        "headers",
        "body_bytes",
    ),
    nullable=("key", "order_key"),
    given={"topic": TopicName, "deliver_at": Moment | None, "headers": dict[str, Any] | None},
    has_body=True,
)
class PreparedMessage(Answer, frozen=True):
    """A message that waits to be committed or aborted, and when it is to be delivered then. `headers` are null where
    another client wrote what cannot be read."""


class PreparedMessages(msgspec.Struct, frozen=True):
    """A part of the prepared messages; `next` is the `after` of the next part, or null."""

    items: list[PreparedMessage]
    next: str | None


class PreparedId(msgspec.Struct, frozen=True):
    """A prepared message. `duplicate`: one with its key was there before, and this is its id."""

    id: Id
    duplicate: bool


class Decided(msgspec.Struct, frozen=True):
    """What became of a prepared message; `id`: of the message that it has become."""

    result: Literal["committed", "already_committed", "rolled_back", "already_rolled_back"]
    id: Id | None


_NAMED: Final = {"oneOf": [{"required": ["id"]}, {"required": ["topic", "key"]}]}

SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    SendTo: {"oneOf": ONE_FORM, "not": ONE_TIME},
    Prepare: {"oneOf": ONE_FORM, "not": ONE_TIME},
    Which: _NAMED,
    Move: {
        **_NAMED,
        "anyOf": [{"required": [name]} for name in ("deliver_at", "delay", "priority")],
        "not": ONE_TIME,
    },
    Transaction: {
        "anyOf": [
            {"required": [name], "properties": {name: {"minItems": 1}}}
            for name in ("sends", "cancels", "reschedules", "acks")
        ]
    },
    PreparedMessage: {"oneOf": ONE_FORM},
}
"""Of their schemas, what msgspec cannot say."""


def prepared_of(found: BrowsedMessage, topic: str) -> PreparedMessage:
    """As it stands in a list: as it will be, without the broker's own header."""
    content = content_of(found)
    own = (content["headers"] or {}).pop(PREPARED_HEADER, None)
    time_ms = own.get("deliver_at_ms") if isinstance(own, dict) else None
    due = datetime_of(time_ms) if isinstance(time_ms, int) and time_ms > 0 else None
    return PreparedMessage.of(found, topic=topic, deliver_at=due, **content)
