"""What endpoints and HTTP tasks look like."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import Endpoint as Found
from tickwheel import EndpointAttempt
from tickwheel_web.answers import Answer, answer
from tickwheel_web.bodies import TWO_FORMS, Body
from tickwheel_web.endpoint_state import EndpointState
from tickwheel_web.shapes import (
    ONE_TIME,
    Duration,
    Id,
    Priority,
    Time,
)

Format = Literal["binary", "structured", "plain"]
Url = Annotated[str, Meta(max_length=2_048, pattern="^https?://", examples=["https://shop.example/hooks"])]
Secret = Annotated[
    str, Meta(pattern="^whsec_[A-Za-z0-9+/]{32,88}={0,2}$", description="24 to 64 bytes as base64")
]
_Allowed = Annotated[
    list[Url],
    Meta(
        min_length=1, max_length=100, description="https://*.example/in/*", examples=[["https://a.example/*"]]
    ),
]
_Secrets = Annotated[list[Secret], Meta(min_length=1, max_length=5)]
_Headers = dict[str, str]
_InFlight = Annotated[int, Meta(ge=1, le=1_000)]
_Rate = Annotated[float, Meta(gt=0, le=1_000_000, description="Requests a second")]
_Delays = Annotated[list[Duration], Meta(max_length=100)]
_Statuses = Annotated[list[Annotated[int, Meta(ge=300, le=599)]], Meta(max_length=100)]
_Description = Annotated[str, Meta(max_length=500, description="What people should know of it")]
Method = Literal["POST", "GET", "PUT", "PATCH", "DELETE", "HEAD"]


class NewEndpoint(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where the messages of a topic go, and how: `url`, or `allow_urls` for messages that are HTTP tasks. Each request
    is signed with all `secrets`; without any a new endpoint gets one, and one that is there keeps its own. `format`:
    CloudEvents in headers, as JSON, or none. `retry_delays`: after each failure the next one. `give_up_on`: statuses
    after which a message is not tried again. `may_hold`: it may answer 202 and settle later. A new one gets what
    becomes due from now on, or begins at the topic's `earliest` message, or at the first that was due at a moment
    (`start_at`) or later."""

    topic: str
    url: Url | UnsetType = UNSET
    allow_urls: _Allowed | UnsetType = UNSET
    secrets: _Secrets | UnsetType = UNSET
    headers: _Headers | UnsetType = UNSET
    format: Format | UnsetType = UNSET
    timeout: Duration | UnsetType = UNSET
    max_in_flight: _InFlight | UnsetType = UNSET
    rate: _Rate | UnsetType = UNSET
    retry_delays: _Delays | UnsetType = UNSET
    give_up_on: _Statuses | UnsetType = UNSET
    may_hold: bool = False
    description: _Description | UnsetType = UNSET
    start: Literal["earliest", "latest"] | UnsetType = UNSET
    start_at: Time = UNSET


ChangedEndpoint: Final = msgspec.defstruct(
    "ChangedEndpoint",
    [
        (name, kind if name == "may_hold" else kind | None, UNSET)
        for name, kind in get_type_hints(NewEndpoint, include_extras=True).items()
        if name not in ("topic", "start", "start_at")
    ],
    namespace={
        "__doc__": "What is to change of an endpoint; null: the default again, of `secrets` a new one."
    },
    module=__name__,
    forbid_unknown_fields=True,
    frozen=True,
    kw_only=True,
)


class ListQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of the endpoints, of one topic or of all."""

    topic: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: Annotated[str, Meta(description="`next` of the part before")] = ""


class DeleteQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`keep_group=1`: what waits for the endpoint waits for one that is made again under its name."""

    confirm: Annotated[str, Meta(description="The name of what is to be deleted, once more")]
    keep_group: Literal[0, 1] = 0


class DisableQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Why."""

    reason: Annotated[str, Meta(max_length=500)] = ""


@answer(
    Found,
    fields=(
        "name", "topic", "group", "url", "allow_urls", "secrets", "headers", "format", "timeout", "max_in_flight",
        "rate", "retry_delays", "give_up_on", "may_hold", "state", "enabled", "disabled_reason", "disabled_at",
        "version", "created_at", "changed_at", "is_shortened", "description",
    ),
    nullable=("url", "disabled_reason", "description"),
    sources={"rate": "rate_per_s"},
    kinds={"state": EndpointState},
)  # fmt: skip
class Endpoint(Answer, frozen=True):
    """An endpoint; `group` is the consumer group from which its messages are taken. `is_shortened`: the token may not
    see its secrets, the values of its headers and the path of its URL."""


class Endpoints(msgspec.Struct, frozen=True):
    """A part of the endpoints; `next` is the `after` of the next part, or null."""

    items: list[Endpoint]
    next: str | None


class DeletedEndpoint(msgspec.Struct, frozen=True):
    """The endpoint that was deleted, and how many messages were not sent to it."""

    name: str
    backlog: int


class TestSent(msgspec.Struct, frozen=True):
    """The id of the test, as that of a message: `attempts` has what becomes of it."""

    __test__ = False  # for pytest it has the name of a test

    id: Id


def _lateness_ms(found: EndpointAttempt) -> int | None:
    return None if found.lateness is None else found.lateness // timedelta(milliseconds=1)


@answer(
    EndpointAttempt,
    fields=(
        "id", "attempt", "at", "due_at", "lateness_ms", "outcome", "settled_at", "status", "error", "next", "is_test",
    ),
    nullable=("id", "error"),
    sources={"attempt": "number", "at": "time"},
    kinds={"outcome": Literal["leased", "acked", "nacked", "dead", "returned", "lease_ended"]},
    computed={"lateness_ms": (int | None, _lateness_ms)},
)  # fmt: skip
class Attempt(Answer, frozen=True):
    """A delivery to an endpoint. `id`: of the message; null: it has been purged since. `attempt`: which one it was,
    from 1; null: none, or it is not known. `outcome`: leased (it is under way, or held), acked, nacked (it was not
    taken, and goes on at `next`), dead (not taken, and given up), returned (it was no attempt), lease_ended (nothing
    was heard of it). `status`, `error`: what was answered, or why nothing was; of acked ones it is not kept. `due_at`:
    when it should have been, null where that is not known; `lateness_ms`: from then to `at`. `is_test`: it is not tried
    again, whatever came of it."""


class Attempts(msgspec.Struct, frozen=True):
    """Deliveries to an endpoint, newest first; `next` is the `after` of the next part, or null. `missing` has `time` or
    `size` if a part of the broker's log was read, as much as may be read for one request: then there may be more
    behind `next` also where there are few items."""

    items: list[Attempt]
    next: str | None
    missing: list[str]


class HttpTask(Body, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One request to a URL that the endpoint of `topic` allows, at `deliver_at`, after `delay`, or now; its body as
    `body` (any JSON), `text` or `base64`, or an empty one."""

    url: Url
    method: Method = "POST"
    headers: _Headers | UnsetType = UNSET
    topic: str = "http-tasks"
    key: str | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    deliver_at: Time = UNSET
    delay: Duration | UnsetType = UNSET


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    NewEndpoint: {
        "oneOf": [{"required": ["url"]}, {"required": ["allow_urls"]}],
        "not": {"required": ["start", "start_at"]},
    },
    HttpTask: {"not": {"anyOf": [ONE_TIME, *TWO_FORMS]}},
}
"""Of their schemas, what msgspec cannot say."""
