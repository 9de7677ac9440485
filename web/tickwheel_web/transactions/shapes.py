"""What transactions and prepared messages look like."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import BrowsedMessage
from tickwheel.protocol.headers import shown_headers
from tickwheel.stats import datetime_of
from tickwheel_web.bodies import ONE_FORM, shown
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


class PreparedMessage(msgspec.Struct, frozen=True):
    """A message that waits to be committed or aborted, and when it is to be delivered then. `headers` are null where
    another client wrote what cannot be read."""

    id: Id
    topic: TopicName
    key: str | None
    order_key: str | None
    priority: int
    deliver_at: Moment | None
    created_at: Moment
    headers: dict[str, Any] | None
    body_bytes: int
    body: msgspec.Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


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
    headers = shown_headers(found)
    own = None if headers is None else headers.pop(PREPARED_HEADER, None)
    time_ms = own.get("deliver_at_ms") if isinstance(own, dict) else None
    return PreparedMessage(
        id=str(found.id),
        topic=topic,
        key=found.key or None,
        order_key=found.order_key or None,
        priority=found.priority,
        deliver_at=datetime_of(time_ms) if isinstance(time_ms, int) and time_ms > 0 else None,
        created_at=found.created,
        headers=headers,
        body_bytes=found.body_bytes,
        **shown(found.body, headers or {}),
    )
