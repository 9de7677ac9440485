"""What endpoints and HTTP tasks look like."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import Endpoint as Found
from tickwheel import EndpointAttempt
from tickwheel.protocol.units import format_duration
from tickwheel_web.bodies import TWO_FORMS, Body
from tickwheel_web.shapes import (
    ONE_TIME,
    Duration,
    EndpointState,
    Id,
    Moment,
    Priority,
    Time,
    endpoint_state,
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
    start: Literal["earliest", "latest"] | UnsetType = UNSET
    start_at: Time = UNSET


class ChangedEndpoint(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What is to change of an endpoint; null: the default again, of `secrets` a new one."""

    url: Url | UnsetType | None = UNSET
    allow_urls: _Allowed | UnsetType | None = UNSET
    secrets: _Secrets | UnsetType | None = UNSET
    headers: _Headers | UnsetType | None = UNSET
    format: Format | UnsetType | None = UNSET
    timeout: Duration | UnsetType | None = UNSET
    max_in_flight: _InFlight | UnsetType | None = UNSET
    rate: _Rate | UnsetType | None = UNSET
    retry_delays: _Delays | UnsetType | None = UNSET
    give_up_on: _Statuses | UnsetType | None = UNSET
    may_hold: bool | UnsetType = UNSET


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


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint; `group` is the consumer group from which its messages are taken. `is_shortened`: the token may not
    see its secrets, the values of its headers and the path of its URL."""

    name: str
    topic: str
    group: str
    url: str | None
    allow_urls: list[str]
    secrets: list[str]
    headers: dict[str, str]
    format: Format
    timeout: str
    max_in_flight: int
    rate: float | None
    retry_delays: list[str]
    give_up_on: list[int]
    may_hold: bool
    state: EndpointState
    enabled: bool
    disabled_reason: str | None
    disabled_at: Moment | None
    version: int
    created_at: Moment
    changed_at: Moment
    is_shortened: bool


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


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to an endpoint. `id`: of the message; null: it has been purged since. `attempt`: which one it was,
    from 1; null: none, or it is not known. `outcome`: leased (it is under way, or held), acked, nacked (it was not
    taken, and goes on at `next`), dead (not taken, and given up), returned (it was no attempt), lease_ended (nothing
    was heard of it). `status`, `error`: what was answered, or why nothing was; of acked ones it is not kept. `due_at`:
    when it should have been, null where that is not known; `lateness_ms`: from then to `at`. `is_test`: it is not tried
    again, whatever came of it."""

    id: Id | None
    attempt: int | None
    at: Moment | None
    due_at: Moment | None
    lateness_ms: int | None
    outcome: Literal["leased", "acked", "nacked", "dead", "returned", "lease_ended"]
    settled_at: Moment | None
    status: int | None
    error: str | None
    next: Moment | None
    is_test: bool


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


def attempt_of(found: EndpointAttempt) -> Attempt:
    """As it stands in a list."""
    return Attempt(
        id=str(found.id) if found.id else None,
        attempt=found.number,
        at=found.time,
        due_at=found.due,
        lateness_ms=None if found.lateness is None else round(found.lateness.total_seconds() * 1_000),
        outcome=found.outcome,  # type: ignore[arg-type]
        settled_at=found.settled,
        status=found.status,
        error=found.error or None,
        next=found.next,
        is_test=found.is_test,
    )


def endpoint_of(found: Found) -> Endpoint:
    """As it stands in a list."""
    return Endpoint(
        name=found.name,
        topic=found.topic,
        group=found.group,
        url=found.url or None,
        allow_urls=found.allow_urls,
        secrets=found.secrets,
        headers=found.headers,
        format=found.format,
        timeout=format_duration(found.timeout_ms),
        max_in_flight=found.max_in_flight,
        rate=found.rate_per_s,
        retry_delays=[format_duration(delay_ms) for delay_ms in found.retry_delays_ms],
        give_up_on=found.give_up_on,
        may_hold=found.may_hold,
        state=endpoint_state(found.state),
        enabled=found.enabled,
        disabled_reason=found.disabled_reason or None,
        disabled_at=found.disabled,
        version=found.version,
        created_at=found.created,
        changed_at=found.changed,
        is_shortened=found.is_shortened,
    )
