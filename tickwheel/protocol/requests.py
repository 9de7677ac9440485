"""The MessagePack bodies, as typed Structs: one for each request and each answer that is not columnar.

Decoding is strict: a wrong type, a value out of range or an unknown field of a request is refused, so that
a typing mistake in a client cannot be taken for a default. Answers may have fields that this version does
not know. Names are not judged here: a bad one has its own error code (``limits.is_valid_name``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from tickwheel.protocol.errors import BadFrame, BadRequest, TickwheelError, error_from_wire, to_wire
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import (
    MAX_CREDIT,
    MAX_IDS_A_REQUEST,
    MAX_QUERY_ROWS,
    MAX_QUERY_TIMEOUT_MS,
    MAX_SQL_CHARACTERS,
    MAX_TIME_MS,
    PROTOCOL_VERSION,
)

# Plain aliases at module level: msgspec resolves the annotations of the Structs below through them.
_U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
_Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
_TimeMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]
_Credit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_CREDIT)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
_Sql: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SQL_CHARACTERS)]
_RowLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_QUERY_ROWS)]
_QueryTimeoutMs: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_QUERY_TIMEOUT_MS)]
_Ids: TypeAlias = Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=MAX_IDS_A_REQUEST)]
_Keys: TypeAlias = Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=MAX_IDS_A_REQUEST)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all requests."""


class Answer(msgspec.Struct, frozen=True):
    """The base of all answers."""


class Hello(Request, frozen=True):
    """HELLO: the first frame of a client."""

    protocol: _U32
    client: _Name


class OpenTopic(Request, frozen=True):
    """OPEN_TOPIC: asks for the number of a topic; ``create`` makes it when it does not exist."""

    topic: _Name
    create: bool


class Subscribe(Request, frozen=True):
    """SUBSCRIBE: hold at most ``credit`` un-acked messages, at most ``batch`` in one DELIVER."""

    topic: _Name
    group: _Name
    credit: _Credit
    batch: _Credit


class Unsubscribe(Request, frozen=True):
    """UNSUBSCRIBE."""

    subscription: _U32


class Cancel(Request, frozen=True):
    """CANCEL: either ``ids``, or ``topic`` and ``keys``."""

    ids: _Ids | None = None
    topic: _Name | None = None
    keys: _Keys | None = None

    def __post_init__(self) -> None:
        _check_target(self.ids, self.topic, self.keys)


class Reschedule(Request, frozen=True):
    """RESCHEDULE: the target as in CANCEL, and either ``deliver_at_ms`` or ``delay_ms``."""

    ids: _Ids | None = None
    topic: _Name | None = None
    keys: _Keys | None = None
    deliver_at_ms: _TimeMs | None = None
    delay_ms: _TimeMs | None = None

    def __post_init__(self) -> None:
        _check_target(self.ids, self.topic, self.keys)
        if (self.deliver_at_ms is None) == (self.delay_ms is None):
            raise ValueError("Expected either `deliver_at_ms` or `delay_ms`")


def _check_target(ids: list[int] | None, topic: str | None, keys: list[str] | None) -> None:
    by_id = ids is not None and topic is None and keys is None
    by_key = ids is None and topic is not None and keys is not None
    if not (by_id or by_key):
        raise ValueError("Expected either `ids`, or `topic` and `keys`")


class Ping(Request, frozen=True):
    """PING. Its payload is empty, as are those of STATS, TOPICS and WHEEL."""


class GetStats(Request, frozen=True):
    """STATS."""


class GetTopics(Request, frozen=True):
    """TOPICS."""


class GetWheel(Request, frozen=True):
    """WHEEL."""


class Query(Request, frozen=True):
    """QUERY: one SELECT over the messages; at most ``limit`` rows come back."""

    sql: _Sql
    limit: _RowLimit
    timeout_ms: _QueryTimeoutMs


class HelloOk(Answer, frozen=True):
    """HELLO_OK: who the server is, and its limits in bytes."""

    protocol: _U32
    server: str
    now_ms: int
    max_frame_bytes: Annotated[int, msgspec.Meta(ge=1024, le=0xFFFF_FFFF)]
    max_body_bytes: _U32
    max_key_bytes: _U32
    max_headers_bytes: _U32


class Pong(Answer, frozen=True):
    """PONG."""


class GoAway(Answer, frozen=True):
    """GOAWAY: the server is stopping."""

    reason: str


class OpenTopicOk(Answer, frozen=True):
    """OPEN_TOPIC_OK."""

    topic_id: _U32


class SubscribeOk(Answer, frozen=True):
    """SUBSCRIBE_OK."""

    subscription: _U32
    group_id: _U32
    topic_id: _U32
    ack_wait_ms: int


class UnsubscribeOk(Answer, frozen=True):
    """UNSUBSCRIBE_OK: how many leases were given back."""

    released: int


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


REQUEST_CLASSES: Final[dict[FrameType, type[Request]]] = {
    FrameType.HELLO: Hello,
    FrameType.PING: Ping,
    FrameType.OPEN_TOPIC: OpenTopic,
    FrameType.SUBSCRIBE: Subscribe,
    FrameType.UNSUBSCRIBE: Unsubscribe,
    FrameType.CANCEL: Cancel,
    FrameType.RESCHEDULE: Reschedule,
    FrameType.STATS: GetStats,
    FrameType.TOPICS: GetTopics,
    FrameType.WHEEL: GetWheel,
    FrameType.QUERY: Query,
}
FRAME_TYPE_OF_REQUEST: Final[dict[type[Request], FrameType]] = {c: t for t, c in REQUEST_CLASSES.items()}

_EMPTY: Final = frozenset({Ping, GetStats, GetTopics, GetWheel, Pong})
_REQUEST_DECODERS: Final[dict[FrameType, msgspec.msgpack.Decoder[Request]]] = {
    frame_type: msgspec.msgpack.Decoder(cls) for frame_type, cls in REQUEST_CLASSES.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder()
_ERROR_DECODER: Final = msgspec.msgpack.Decoder(ErrorBody)
# Deeply nested values in fields that the Structs do not know end in RecursionError.
_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

T = TypeVar("T")


def hello(client: str) -> Hello:
    """The HELLO of this version."""
    return Hello(protocol=PROTOCOL_VERSION, client=client)


def encode_body(body: msgspec.Struct) -> bytes:
    """The payload of a request or an answer."""
    return b"" if type(body) in _EMPTY else _ENCODER.encode(body)


def decode_request(frame_type: FrameType, payload: bytes) -> Request:
    """The typed body of a request.

    Raises BadRequest with what is wrong; KeyError if it is no such request.
    """
    cls = REQUEST_CLASSES[frame_type]
    if cls in _EMPTY:
        if payload:
            raise BadRequest(f"The payload of {frame_type.name} must be empty.")
        return cls()
    try:
        return _REQUEST_DECODERS[frame_type].decode(payload)
    except _DECODE_ERRORS as error:
        raise BadRequest(f"{frame_type.name} was not understood: {error}.") from None


def decode_answer(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    """The typed body of an answer. Raises BadFrame."""
    try:
        return decoder.decode(payload)
    except _DECODE_ERRORS as error:
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
