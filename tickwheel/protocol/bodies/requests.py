"""The MessagePack bodies, as typed Structs: one for each request and each answer that is not columnar.

Decoding is strict: a wrong type, a value out of range or an unknown field of a request is refused, so that
a typing mistake in a client cannot be taken for a default. Answers may have fields that this version does
not know. Names are not judged here: a bad one has its own error code (``limits.is_valid_name``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tickwheel.protocol.bodies import (
    admin,
    bulk,
    endpoints,
    fetching,
    groups,
    operations,
    schedules,
    settling,
)
from tickwheel.protocol.bodies.base import (
    U32,
    Answer,
    Credit,
    Name,
    Priority,
    QueryTimeoutMs,
    Request,
    Targeted,
    Timed,
    TimeMs,
    check_one_time,
)
from tickwheel.protocol.errors import BadFrame, BadRequest, TickwheelError, error_from_wire, to_wire
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import (
    MAX_HORIZONS,
    MAX_QUERY_PARAMETERS,
    MAX_QUERY_ROWS,
    MAX_SQL_CHARACTERS,
    MAX_TOKEN_CHARS,
    PROTOCOL_VERSION,
)

_Sql: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SQL_CHARACTERS)]
_Horizons: TypeAlias = Annotated[list[TimeMs], msgspec.Meta(min_length=1, max_length=MAX_HORIZONS)]
_Token: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TOKEN_CHARS)]
_Peer: TypeAlias = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[0-9A-Za-z.:%_-]*\Z")]
_RowLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_QUERY_ROWS)]
_Positional: TypeAlias = Annotated[list[Any], msgspec.Meta(max_length=MAX_QUERY_PARAMETERS)]
_Named: TypeAlias = Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_QUERY_PARAMETERS)]


class Hello(Request, frozen=True):
    """HELLO: the first frame of a client. ``token``: to log in with; brokers from before there were any refuse it.
    ``peer``: the address of whom a proxy speaks for."""

    protocol: U32
    client: Name
    token: _Token = ""
    peer: _Peer = ""

    def __repr__(self) -> str:
        return f"Hello(protocol={self.protocol}, client={self.client!r})"  # never the token


class OpenTopic(Request, frozen=True):
    """OPEN_TOPIC: asks for the number of a topic; ``create`` makes it when it does not exist."""

    topic: Name
    create: bool


class Subscribe(Request, frozen=True):
    """SUBSCRIBE: hold at most ``credit`` un-acked messages, at most ``batch`` in one DELIVER."""

    topic: Name
    group: Name
    credit: Credit
    batch: Credit
    start: Literal["earliest", "latest"] | TimeMs = "earliest"  #: of a group that is new
    ephemeral_ms: TimeMs = (
        0  #: of a group that is new: it ends so long after its last subscriber has left; 0: it stays
    )
    shard: Name | None = None  #: a shard's key range, such as ``-80``; None: all
    holds: bool = False  #: it renews its leases, and is to be told by LEASE when another `ack_wait` holds
    attempts: bool = False  #: its DELIVER frames say which attempt of its message each delivery is
    probes: bool = False  #: its client answers PROBE


class Unsubscribe(Request, frozen=True):
    """UNSUBSCRIBE."""

    subscription: U32


class SetCredit(Request, frozen=True):
    """CREDIT: the subscription holds at most ``credit`` un-acked messages from now on."""

    subscription: U32
    credit: Credit


class Cancel(Targeted, frozen=True):
    """CANCEL: either ``ids``, or ``topic`` and ``keys``; ``stop``: also end the redelivery of what was delivered."""

    stop: bool = False


class Reschedule(Timed, frozen=True):
    """RESCHEDULE: the target as in CANCEL; ``deliver_at_ms`` or ``delay_ms``, or ``priority``, or both."""

    priority: Priority | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_time(self.deliver_at_ms, self.delay_ms, needed=self.priority is None)


class Ping(Request, frozen=True):
    """PING. Its payload is empty, as are those of STATS and TOPICS."""


class GetStats(Request, frozen=True):
    """STATS."""


class GetTopics(Request, frozen=True):
    """TOPICS."""


class GetWheel(Request, frozen=True):
    """WHEEL. ``horizons``: until when to count, in ms from now; without them the payload is empty."""

    horizons: _Horizons | None = None


class Query(Request, frozen=True):
    """QUERY: one SELECT over the messages; at most ``limit`` rows come back. ``parameters``: values for ``?`` and
    ``$1``, or for ``$name``. ``stream``: the rows as an IPC stream of Arrow."""

    sql: _Sql
    limit: _RowLimit
    timeout_ms: QueryTimeoutMs
    parameters: _Positional | _Named | None = None
    stream: bool = False


class HelloOk(Answer, frozen=True):
    """HELLO_OK: who the server is, and its limits in bytes."""

    protocol: U32
    server: str
    now_ms: int
    max_frame_bytes: Annotated[int, msgspec.Meta(ge=1024, le=0xFFFF_FFFF)]
    max_body_bytes: U32
    max_key_bytes: U32
    max_headers_bytes: U32
    delay_levels_ms: list[int] = msgspec.field(default_factory=list)
    tells_differences: bool = False  #: bit 6 of a SEND's columns is known
    answers_remembered: int = 0  #: of so many requests with an identity; 0: it knows no identities
    log_position: int = 0  #: up to which the log is durable
    holds: bool = False  #: it knows `only_longer` of EXTEND, and CREDIT
    counts_attempts: bool = False  #: it knows `attempts` of SUBSCRIBE
    timeline: str = (
        ""  #: of the log; another one: what was given out before may be lost. Empty: the broker is older
    )
    probes: bool = False  #: it knows `probes` of SUBSCRIBE and FETCH
    grants: list[str] | UnsetType = (
        UNSET  #: what the client may do; unset: everything, or more than is told, or the broker is older
    )
    is_limited: bool | UnsetType = UNSET  #: there is something that the client may not do
    flight_url: str | UnsetType = UNSET  #: of Arrow Flight; without a host: where this broker is


class Pong(Answer, frozen=True):
    """PONG."""


class GoAway(Answer, frozen=True):
    """GOAWAY: the server is stopping."""

    reason: str


class OpenTopicOk(Answer, frozen=True):
    """OPEN_TOPIC_OK. ``created``: by this request."""

    topic_id: U32
    created: bool = False


class SubscribeOk(Answer, frozen=True):
    """SUBSCRIBE_OK."""

    subscription: U32
    group_id: U32
    topic_id: U32
    ack_wait_ms: int
    created_topic: bool = False
    created_group: bool = False


class UnsubscribeOk(Answer, frozen=True):
    """UNSUBSCRIBE_OK: how many leases were given back."""

    released: int


class SetCreditOk(Answer, frozen=True):
    """CREDIT_OK: what holds now."""

    credit: int


class CancelOk(Answer, frozen=True):
    """CANCEL_OK: one result for each id or key, in order."""

    results: list[str]


class RescheduleOk(Answer, frozen=True):
    """RESCHEDULE_OK: one result for each id or key, in order."""

    results: list[str]


class ErrorBody(Answer, frozen=True):
    """ERROR."""

    code: str
    message: str
    advice: str = ""
    retryable: bool = False
    details: dict[str, Any] = msgspec.field(default_factory=dict)


REQUEST_CLASSES: Final[dict[FrameType, type[Request]]] = {
    FrameType.HELLO: Hello,
    FrameType.PING: Ping,
    FrameType.OPEN_TOPIC: OpenTopic,
    FrameType.SUBSCRIBE: Subscribe,
    FrameType.UNSUBSCRIBE: Unsubscribe,
    FrameType.CREDIT: SetCredit,
    FrameType.CANCEL: Cancel,
    FrameType.RESCHEDULE: Reschedule,
    FrameType.STATS: GetStats,
    FrameType.TOPICS: GetTopics,
    FrameType.WHEEL: GetWheel,
    FrameType.QUERY: Query,
    **settling.REQUESTS,
    **admin.REQUESTS,
    **schedules.REQUESTS,
    **endpoints.REQUESTS,
    **bulk.REQUESTS,
    **groups.REQUESTS,
    **operations.REQUESTS,
    **fetching.REQUESTS,
}
FRAME_TYPE_OF_REQUEST: Final[dict[type[Request], FrameType]] = {c: t for t, c in REQUEST_CLASSES.items()}

ANSWER_CLASSES: Final[dict[FrameType, type[Answer]]] = {
    FrameType.OPEN_TOPIC_OK: OpenTopicOk,
    FrameType.SUBSCRIBE_OK: SubscribeOk,
    FrameType.UNSUBSCRIBE_OK: UnsubscribeOk,
    FrameType.CREDIT_OK: SetCreditOk,
    FrameType.CANCEL_OK: CancelOk,
    FrameType.RESCHEDULE_OK: RescheduleOk,
    **settling.ANSWERS,
    **admin.ANSWERS,
    **schedules.ANSWERS,
    **endpoints.ANSWERS,
    **bulk.ANSWERS,
    **groups.ANSWERS,
    **operations.ANSWERS,
    **fetching.ANSWERS,
}
"""The MessagePack answers; those that are not here are columnar, empty, or a map that only who asked understands."""

_EMPTY: Final = frozenset({Ping, GetStats, GetTopics, Pong})
_PLAIN_WHEEL: Final = GetWheel()
_REQUEST_DECODERS: Final[dict[FrameType, msgspec.msgpack.Decoder[Request]]] = {
    frame_type: msgspec.msgpack.Decoder(cls) for frame_type, cls in REQUEST_CLASSES.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder()
_ERROR_DECODER: Final = msgspec.msgpack.Decoder(ErrorBody)
# Deeply nested values in fields that the Structs do not know end in RecursionError.
DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

T = TypeVar("T")


def hello(client: str, token: str = "", peer: str = "") -> Hello:
    """The HELLO of this version."""
    return Hello(protocol=PROTOCOL_VERSION, client=client, token=token, peer=peer)


def encode_body(body: msgspec.Struct) -> bytes:
    """The payload of a request or an answer."""
    return b"" if type(body) in _EMPTY or body == _PLAIN_WHEEL else _ENCODER.encode(body)


def decode_request(frame_type: FrameType, payload: bytes) -> Request:
    """The typed body of a request.

    Raises BadRequest with what is wrong; KeyError if it is no such request.
    """
    cls = REQUEST_CLASSES[frame_type]
    if cls in _EMPTY:
        if payload:
            raise BadRequest(f"The payload of {frame_type.name} must be empty.")
        return cls()
    if cls is GetWheel and not payload:
        return _PLAIN_WHEEL
    try:
        return _REQUEST_DECODERS[frame_type].decode(payload)
    except DECODE_ERRORS as error:
        raise BadRequest(f"{frame_type.name} was not understood: {error}.") from None


def decode_answer(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    """The typed body of an answer. Raises BadFrame."""
    try:
        return decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise BadFrame(f"An answer was not understood: {error}.") from None


def encode_error(error: TickwheelError) -> bytes:
    """The payload of ERROR."""
    return _ENCODER.encode(to_wire(error))


def decode_error(payload: bytes) -> TickwheelError:
    """The typed exception of an ERROR payload. Raises BadFrame."""
    body = decode_answer(_ERROR_DECODER, payload)
    return error_from_wire(msgspec.structs.asdict(body))


def encode_map(fields: dict[str, Any]) -> bytes:
    """A plain MessagePack map: the headers of a message, and answers that the engine already gives as a
    dict."""
    return _ENCODER.encode(fields)


def encode_entry(fields: dict[str, Any]) -> msgspec.Raw:
    """A part of a long answer: encoded when it is made, so that the whole of it takes no time at the end."""
    return msgspec.Raw(_ENCODER.encode(fields))
