"""The bodies about endpoints: the URLs to which `tickwheel push` carries a topic's messages."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from tickwheel.protocol.bodies.base import Answer, Id, Name, QueryTimeoutMs, Request, TimeMs
from tickwheel.protocol.endpoint_states import MAX_REASON_CHARS, EndpointState, ToldState
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_ATTEMPTS

GROUP_PREFIX: Final = "push."
MAX_ENDPOINT_NAME_CHARS: Final = 128 - len(GROUP_PREFIX)
MAX_ENDPOINTS: Final = 1_000
MAX_ENDPOINT_BYTES: Final = 16_384
"""A whole endpoint as the broker keeps it."""
MAX_STATES: Final = 100
"""Of endpoints, in one request."""
MAX_RATE_PER_S: Final = 1_000_000
MAX_DESCRIPTION_CHARS: Final = 500

DEFAULT_RETRY_DELAYS_MS: Final = tuple(
    seconds * 1_000 for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
"""5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h: those of Standard Webhooks."""

_DAY_MS: Final = 86_400_000
_Status: TypeAlias = Annotated[int, msgspec.Meta(ge=300, le=599)]
_RetryDelay: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=365 * _DAY_MS)]
_Url: TypeAlias = Annotated[str, msgspec.Meta(max_length=2_048)]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint as it is kept and told: where a topic's messages go, and how. Times are epoch ms, lengths ms."""

    name: str
    topic: str
    url: _Url = ""
    """Empty: each message names its own URL, which one of ``allow_urls`` has to match."""
    allow_urls: Annotated[list[_Url], msgspec.Meta(max_length=100)] = []
    secrets: Annotated[list[str], msgspec.Meta(max_length=5)] = []
    """``whsec_…``; each request is signed with every one of them."""
    headers: dict[str, str] = {}
    format: Literal["binary", "structured", "plain"] = "binary"
    """CloudEvents in the headers, as JSON in the body, or none."""
    timeout_ms: Annotated[int, msgspec.Meta(ge=1_000, le=300_000)] = 15_000
    max_in_flight: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8
    """Requests at a time; without ``url``, to each host."""
    rate_per_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_RATE_PER_S)] | None = None
    retry_delays_ms: Annotated[list[_RetryDelay], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=lambda: list(DEFAULT_RETRY_DELAYS_MS)
    )
    give_up_on: Annotated[list[_Status], msgspec.Meta(max_length=100)] = []
    """Statuses after which a message is not tried again."""
    may_hold: bool = False
    """It may answer 202 with ``tickwheel-lease``, and settle later."""
    enabled: bool = True
    disabled_reason: str = ""
    disabled_ms: int = 0
    version: int = 1
    """One more with each change."""
    created_ms: int = 0
    changed_ms: int = 0
    has_tests: bool = False
    """It was tested: `tickwheel push` is to look for tests."""
    is_shortened: bool = False
    """Secrets, values of headers and the path of ``url`` are left out: the token may not see them."""
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARS)] = ""
    """What people should know of it: what it is for, whom to call."""


class SeenEndpoint(Endpoint, frozen=True, kw_only=True):
    """As it is told, with what becomes of its messages now."""

    state: EndpointState = EndpointState(name="delivering")


class GetEndpoints(Request, frozen=True):
    """ENDPOINTS: the one of a name, or by name as many as the broker likes of those that come ``after`` a name, of a
    topic or of all; none if all are as they were when ``revision`` was told."""

    name: Name | None = None
    topic: Name | None = None
    after: Name = ""
    revision: Id = 0


class SetEndpoint(Request, frozen=True):
    """SET_ENDPOINT: changes one, or makes it where there is none; its group begins at ``start`` then. ``fields``: as
    ENDPOINTS_OK has them. ``expected_version``: refused if it has another one by now; 0: if there is one."""

    name: Name
    fields: dict[str, Any]
    start: Literal["earliest", "latest"] | TimeMs = "latest"
    expected_version: Id | None = None


class EnableEndpoint(Request, frozen=True):
    """ENABLE_ENDPOINT: on, or off for a ``reason``."""

    name: Name
    enabled: bool
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)] = ""
    expected_version: Id | None = None


class DeleteEndpoint(Request, frozen=True):
    """DELETE_ENDPOINT: with its group, unless ``keep_group``."""

    name: Name
    keep_group: bool = False
    expected_version: Id | None = None


class TestEndpoint(Request, frozen=True):
    """TEST_ENDPOINT: a message that only this endpoint gets, also one that is disabled."""

    __test__ = False  # for pytest it has the name of a test

    name: Name


class TestEndpointOk(Answer, frozen=True):
    """TEST_ENDPOINT_OK: the message's id."""

    __test__ = False

    id: int


class TellEndpoints(Request, frozen=True):
    """TELL_ENDPOINTS: what `tickwheel push` makes of endpoints; the broker knows it until the connection ends."""

    states: Annotated[list[ToldState], msgspec.Meta(max_length=MAX_STATES)]


class TellEndpointsOk(Answer, frozen=True):
    """TELL_ENDPOINTS_OK."""


class GetAttempts(Request, frozen=True):
    """ATTEMPTS: the last deliveries to an endpoint, newest first; ``before``: only what lies before a place in the log,
    as an answer has named it."""

    name: Name
    timeout_ms: QueryTimeoutMs
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] = 100
    before: tuple[Id, Id] | None = None


class DeleteEndpointOk(Answer, frozen=True):
    """DELETE_ENDPOINT_OK: how many messages its group was not done with."""

    backlog: int


REQUESTS: Final[dict[FrameType, type[Request]]] = {
    FrameType.ENDPOINTS: GetEndpoints,
    FrameType.SET_ENDPOINT: SetEndpoint,
    FrameType.ENABLE_ENDPOINT: EnableEndpoint,
    FrameType.DELETE_ENDPOINT: DeleteEndpoint,
    FrameType.TEST_ENDPOINT: TestEndpoint,
    FrameType.ATTEMPTS: GetAttempts,
    FrameType.TELL_ENDPOINTS: TellEndpoints,
}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {
    FrameType.DELETE_ENDPOINT_OK: DeleteEndpointOk,
    FrameType.TEST_ENDPOINT_OK: TestEndpointOk,
    FrameType.TELL_ENDPOINTS_OK: TellEndpointsOk,
}
