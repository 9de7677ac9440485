"""What requests and answers about deliveries look like, and how fetched messages become answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import Fetched, Message, ReceiptResult
from tickwheel.protocol.receipts import Receipt, encode_receipt
from tickwheel_web.answers import Answer, answer
from tickwheel_web.bodies import ONE_FORM, content_of
from tickwheel_web.shapes import MAX_BATCH, MAX_PAGE, Duration, Id, Moment, Time, encode

MAX_RECEIVED: Final = 1_000
MAX_WAIT: Final = timedelta(seconds=60)
LEASES: Final = timedelta(seconds=1), timedelta(hours=1)
"""Of a stream: the shortest and the longest."""

ReceiptText = Annotated[str, Meta(description="`receipt` of a delivery")]


class Receive(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Up to `max` messages; if none is ready, those that get ready first within `wait` (up to 60s). `lease`: how long
    they are held, by default as the topic says."""

    max: Annotated[int, Meta(ge=1, le=MAX_RECEIVED)] = 1
    wait: Duration = "0s"
    lease: Duration | UnsetType = UNSET


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`credit`: how many deliveries are unsettled at most. `lease`: how long they are held when the stream breaks."""

    credit: Annotated[int, Meta(ge=1, le=MAX_RECEIVED)] = 10
    lease: Duration = "60s"


class LettersQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`created`: when they were given up, the upper bound exclusive."""

    created_from: Time = UNSET
    created_until: Time = UNSET
    bodies: Literal[0, 1] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: Annotated[str, Meta(description="`next` of the part before")] = ""


class Replay(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Those with these `ids`, or all, up to `limit`."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_BATCH)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


class Nack(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Given back, to be delivered again after `delay`, by default the backoff of its attempt. `error` says why.
    `give_up`: it becomes a dead letter at once. `uncounted`: this delivery was no attempt."""

    receipt: ReceiptText
    delay: Duration | UnsetType = UNSET
    error: str = ""
    give_up: bool = False
    uncounted: bool = False


class Extend(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Held for so long from now on."""

    receipt: ReceiptText
    by: Duration


class Settle(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What becomes of deliveries; each receipt once, up to 10,000 together."""

    ack: list[ReceiptText] = []
    nack: list[Nack] = []
    extend: list[Extend] = []


class Settled(msgspec.Struct, frozen=True):
    """The result of each receipt, in the order of the request: `acked`, `nacked`, `dead`, `extended`, or why it does
    not count."""

    ack: list[ReceiptResult]
    nack: list[ReceiptResult]
    extend: list[ReceiptResult]


@answer(
    Message,
    fields=(
        "receipt", "id", "topic", "key", "order_key", "priority", "deliver_at", "created_at", "attempt", "headers",
    ),
    computed={
        "key": (str | None, lambda found: _text(found.key)),
        "order_key": (str | None, lambda found: _text(found.order_key)),
    },
    given={"receipt": str, "attempt": int, "headers": dict[str, Any] | None},
    has_body=True,
)  # fmt: skip
class Delivery(Answer, frozen=True):
    """A message that was delivered, and its `receipt`. `attempt`: 1 at the first time; `headers` are null where another
    client wrote what cannot be read. The body is `body` (where its content type is JSON), `text` (text) or `base64`."""


class Received(msgspec.Struct, frozen=True):
    """The messages; none where none got ready in time."""

    items: list[Delivery]


class Failure(msgspec.Struct, frozen=True):
    """One attempt that failed."""

    attempt: int
    at: Moment
    error: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that a group gave up: `id` is that of the letter, `original` the one that it has, or had, in its topic.
    `attempts`, the last `error` and the last ten failures are those of the group. `headers` are null where another
    client wrote what cannot be read. The body comes with `bodies`."""

    id: Id
    original: Id | None
    group: str | None
    attempts: int | None
    error: str
    failures: list[Failure]
    key: str | None
    order_key: str | None
    priority: int
    deliver_at: Moment | None
    dead_at: Moment
    headers: dict[str, Any] | None
    body_bytes: int
    body: msgspec.Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class DeadLetters(msgspec.Struct, frozen=True):
    """A part of the dead letters; `next` is the `after` of the next part, or null."""

    items: list[DeadLetter]
    next: str | None


class Replayed(msgspec.Struct, frozen=True):
    """How many letters had each result: `replayed`, `sent_again` (the original was purged), `not_dead` (its group has
    it again, or is done with it), `ended` (it was cancelled or has expired), `not_found`."""

    results: dict[str, int]


class Dropped(msgspec.Struct, frozen=True):
    """How many letters there were, and how many had each result."""

    matched: int
    results: dict[str, int]


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {Delivery: {"oneOf": ONE_FORM}}
"""Of their schemas, what msgspec cannot say."""


def encoded_deliveries(fetched: Fetched, group: str) -> Iterator[bytes]:
    """Each message as JSON. None of them fails for what another client wrote: it must be possible to settle it."""
    for message, attempt in zip(fetched, fetched.attempts, strict=True):
        receipt = Receipt(fetched.group_id, message.id, message.epoch)
        told = encode_receipt(fetched.topic, group, receipt)
        delivery = Delivery.of(message, receipt=told, attempt=attempt, **content_of(message))
        try:
            yield encode(delivery).removesuffix(b"\n")
        except (TypeError, ValueError, RecursionError):
            yield encode(msgspec.structs.replace(delivery, headers=None)).removesuffix(b"\n")


def _text(given: str | None) -> str | None:
    """Bytes that are no text are no JSON, either."""
    return None if given is None else given.encode(errors="replace").decode()
