"""The two ends of a connection as state machines, without I/O.

Rule 1: bytes go in by ``receive_data``, events come out of the iterator that it returns, in the order of
the stream. Rule 2: bytes to be sent come out of the other methods; what to do with them is the caller's
business.

How the bytes are cut makes no difference: fed one by one they yield the events that they yield at once.
Whatever the bytes are, the iterator yields events or raises RemoteProtocolError, and nothing else; after
that the stream cannot be understood any more and the machine refuses to go on::

    machine = ClientMachine()
    stream.write(machine.hello("example"))
    for event in machine.receive_data(stream.read()):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.bodies.requests import (
    ANSWER_CLASSES,
    REQUEST_CLASSES,
    GoAway,
    Hello,
    HelloOk,
    Pong,
    decode_answer,
    decode_error,
    decode_request,
    encode_body,
    encode_error,
    hello,
)
from tickwheel.protocol.bodies.settling import LeaseTime, Revoke
from tickwheel.protocol.errors import (
    BadCrc,
    BadFrame,
    BadHandshake,
    BadRequest,
    FrameTooLarge,
    RemoteProtocolError,
    TickwheelError,
    UnknownFrame,
    UnsupportedProtocol,
)
from tickwheel.protocol.frames import (
    ANSWER_OF,
    HAS_IDENTITY,
    IS_REPEATED,
    Buffer,
    Frame,
    FrameReader,
    FrameType,
    encode_frame,
)
from tickwheel.protocol.identity import RequestIdentity, split_identity
from tickwheel.protocol.limits import LARGEST_DELIVERY_BYTES, MAX_HANDSHAKE_BYTES, PROTOCOL_VERSION
from tickwheel.protocol.messages import (
    AckColumns,
    AckOk,
    Delivery,
    FetchOk,
    SendColumns,
    SendOk,
    decode_ack,
    decode_ack_ok,
    decode_deliver,
    decode_fetch_ok,
    decode_send,
    decode_send_ok,
)

# What the client hears ----------------------------------------------------------------------------

AnswerBody: TypeAlias = Answer | SendOk | AckOk | FetchOk | bytes
"""The body of an answer. That of STATS, TOPICS and WHEEL stays bytes: only who asked knows its Struct."""


class Connected(msgspec.Struct, frozen=True):
    """The handshake is done."""

    hello: HelloOk


class Answered(msgspec.Struct, frozen=True):
    """The request of this correlation was carried out."""

    correlation: int
    body: AnswerBody


class Refused(msgspec.Struct, frozen=True):
    """The request of this correlation was refused; correlation 0: the connection as a whole."""

    correlation: int
    error: TickwheelError


class Delivered(msgspec.Struct, frozen=True):
    """Messages for a subscription."""

    delivery: Delivery


class GoingAway(msgspec.Struct, frozen=True):
    """The server is stopping."""

    reason: str


class Revoked(msgspec.Struct, frozen=True):
    """Messages that a subscription holds are no longer its own: they were stopped, or called back."""

    revoke: Revoke


class LeaseTold(msgspec.Struct, frozen=True):
    """Another topic setting holds: how long leases last from now on."""

    lease: LeaseTime


class Probed(msgspec.Struct, frozen=True):
    """The server asks for a sign of life: any frame is one."""


ClientEvent: TypeAlias = Connected | Answered | Refused | Delivered | GoingAway | Revoked | LeaseTold | Probed

Event = TypeVar("Event")


def _msgpack(cls: type[Answer]) -> Callable[[bytes], AnswerBody]:
    decoder = msgspec.msgpack.Decoder(cls)
    return lambda payload: decode_answer(decoder, payload)


def _raw(payload: bytes) -> bytes:
    return payload


def _pong(payload: bytes) -> Pong:
    if payload:
        raise BadFrame("The payload of PONG must be empty.")
    return Pong()


_DECODE_ANSWER: Final[dict[FrameType, Callable[[bytes], AnswerBody]]] = {
    **dict.fromkeys(ANSWER_OF.values(), _raw),
    **{frame_type: _msgpack(cls) for frame_type, cls in ANSWER_CLASSES.items()},
    FrameType.PONG: _pong,
    FrameType.SEND_OK: decode_send_ok,
    FrameType.ACK_OK: decode_ack_ok,
    FrameType.FETCH_OK: decode_fetch_ok,
}
_HELLO_OK: Final = msgspec.msgpack.Decoder(HelloOk)
_REVOKE: Final = msgspec.msgpack.Decoder(Revoke)
_LEASE: Final = msgspec.msgpack.Decoder(LeaseTime)
_GOAWAY: Final = msgspec.msgpack.Decoder(GoAway)


class _Machine(Generic[Event]):
    """What both ends share: the buffer, and the refusal to go on after an error."""

    def __init__(self, max_frame_bytes: int, known_flags: int = 0) -> None:
        self._reader = FrameReader(max_frame_bytes, known_flags)
        self._error: RemoteProtocolError | None = None

    def receive_data(self, data: Buffer) -> Iterator[Event]:
        """Feeds received bytes.

        The iterator must be used up; it raises RemoteProtocolError where the stream breaks.
        """
        self._reader.feed(data)
        return self._events()

    def _events(self) -> Iterator[Event]:
        if self._error is not None:
            raise self._error
        try:
            while (frame := self._reader.next_frame()) is not None:
                yield self._event(frame)
        except RemoteProtocolError as error:
            self._error = error
            raise

    def _event(self, frame: Frame) -> Event:
        raise NotImplementedError


class ClientMachine(_Machine[ClientEvent]):
    """The client's end of one connection."""

    def __init__(self) -> None:
        super().__init__(MAX_HANDSHAKE_BYTES)
        self._expected: dict[int, FrameType] = {}
        self._last_correlation = 0
        self._connected = False

    @property
    def outstanding(self) -> int:
        """Requests that were made and not answered."""
        return len(self._expected)

    def hello(self, client: str, token: str = "", peer: str = "") -> bytes:
        """The first bytes to send. ``client`` is a name for the broker's log; ``peer``: for whom a proxy speaks."""
        return self.request(FrameType.HELLO, encode_body(hello(client, token, peer)))[1]

    def request(
        self, frame_type: FrameType, payload: Buffer, identity: RequestIdentity | None = None
    ) -> tuple[int, bytes]:
        """``(correlation, frame)`` of a new request."""
        correlation = self.expect(frame_type)
        if identity is None:
            return correlation, encode_frame(frame_type, correlation, payload)
        pieces = (identity.encode(), payload)
        return correlation, encode_frame(frame_type, correlation, pieces, identity.flags)

    def expect(self, frame_type: FrameType) -> int:
        """The correlation of a new request, whose frame is made elsewhere."""
        correlation = self._free_correlation()
        self._expected[correlation] = ANSWER_OF[frame_type]
        return correlation

    def withdraw(self, correlation: int) -> None:
        """A request that was not written after all, or whose answer was read elsewhere."""
        self._expected.pop(correlation, None)

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte that comes begins a frame."""
        return not self._reader.buffered_bytes

    def _free_correlation(self) -> int:
        correlation = self._last_correlation
        while True:
            correlation = correlation % 0xFFFF_FFFF + 1
            if correlation not in self._expected:
                self._last_correlation = correlation
                return correlation

    def _events(self) -> Iterator[ClientEvent]:
        try:
            yield from super()._events()
        except (BadCrc, BadFrame, FrameTooLarge) as error:
            if self._connected:
                raise
            self._error = BadHandshake("What is at this address does not answer as a Tickwheel broker.")
            raise self._error from error

    def _event(self, frame: Frame) -> ClientEvent:
        if not self._connected:
            return self._handshake(frame)
        if frame.correlation:
            return self._answer(frame)
        if frame.type == FrameType.DELIVER:
            return Delivered(decode_deliver(frame.payload))
        if frame.type == FrameType.REVOKE:
            return Revoked(decode_answer(_REVOKE, frame.payload))
        if frame.type == FrameType.LEASE:
            return LeaseTold(decode_answer(_LEASE, frame.payload))
        if frame.type == FrameType.PROBE:
            return Probed()
        if frame.type == FrameType.GOAWAY:
            return GoingAway(decode_answer(_GOAWAY, frame.payload).reason)
        if frame.type == FrameType.ERROR:
            return Refused(0, decode_error(frame.payload))
        raise BadFrame(f"The server sent a frame of type {frame.type} unasked.")

    def _handshake(self, frame: Frame) -> ClientEvent:
        if frame.type == FrameType.ERROR:
            self._expected.pop(frame.correlation, None)
            return Refused(frame.correlation, decode_error(frame.payload))
        if (
            self._expected.pop(frame.correlation, None) != FrameType.HELLO_OK
            or frame.type != FrameType.HELLO_OK
        ):
            raise BadHandshake(f"The server answered HELLO with a frame of type {frame.type}.")
        answer = decode_answer(_HELLO_OK, frame.payload)
        if answer.protocol != PROTOCOL_VERSION:
            raise UnsupportedProtocol(
                f"The server speaks version {answer.protocol} of the protocol, we speak {PROTOCOL_VERSION}."
            )
        self._connected = True
        # What was stored under larger limits than today's must still get through.
        self._reader.max_frame_bytes = max(answer.max_frame_bytes, LARGEST_DELIVERY_BYTES)
        return Connected(answer)

    def _answer(self, frame: Frame) -> ClientEvent:
        expected = self._expected.pop(frame.correlation, None)
        if expected is None:
            raise BadFrame(f"The server answered request {frame.correlation}, which is not open.")
        if frame.type == FrameType.ERROR:
            return Refused(frame.correlation, decode_error(frame.payload))
        if frame.type != expected:
            raise BadFrame(f"The server answered with type {frame.type} where {expected.name} was due.")
        return Answered(frame.correlation, _DECODE_ANSWER[expected](frame.payload))


# What the server hears ----------------------------------------------------------------------------


class Requested(msgspec.Struct, frozen=True):
    """A request with a MessagePack body (or with none)."""

    correlation: int
    request: Request
    identity: RequestIdentity | None = None


class SendRequested(msgspec.Struct, frozen=True):
    """A SEND, by column."""

    correlation: int
    topic_id: int
    columns: SendColumns


class AckRequested(msgspec.Struct, frozen=True):
    """An ACK, by column."""

    correlation: int
    columns: AckColumns


class NotUnderstood(msgspec.Struct, frozen=True):
    """A request to be answered with this error; the connection is kept."""

    correlation: int
    error: TickwheelError

    def answer(self) -> bytes:
        """The ERROR frame."""
        return encode_frame(FrameType.ERROR, self.correlation, encode_error(self.error))


ServerEvent: TypeAlias = Requested | SendRequested | AckRequested | NotUnderstood


class ServerMachine(_Machine[ServerEvent]):
    """The server's end of one connection.

    A server that cuts frames itself (in C, say) uses ``frame_received`` alone; the handshake is then still
    checked.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(min(max_frame_bytes, MAX_HANDSHAKE_BYTES), HAS_IDENTITY | IS_REPEATED)
        self._max_frame_bytes = max_frame_bytes
        self._greeted = False

    def _event(self, frame: Frame) -> ServerEvent:
        return self.frame_received(frame.type, frame.correlation, frame.payload, frame.flags)

    def frame_received(
        self, frame_type: int, correlation: int, payload: Buffer, flags: int = 0
    ) -> ServerEvent:
        """The event of one whole frame whose checksum was right; ``flags`` are the three bytes behind its type.

        Raises BadHandshake or UnsupportedProtocol when the first frame is not a proper HELLO.
        """
        payload = bytes(payload)
        if not self._greeted:
            return self._handshake(frame_type, correlation, payload)
        try:
            return _server_event(frame_type, correlation, payload, flags)
        except (BadFrame, BadRequest, UnknownFrame) as error:
            return NotUnderstood(correlation, error)

    def _handshake(self, frame_type: int, correlation: int, payload: bytes) -> Requested:
        if frame_type != FrameType.HELLO:
            raise BadHandshake(f"The first frame has type {frame_type} and is not a HELLO.")
        try:
            request = decode_request(FrameType.HELLO, payload)
        except BadRequest as error:
            raise BadHandshake(error.message) from None
        if not isinstance(request, Hello) or request.protocol != PROTOCOL_VERSION:
            raise UnsupportedProtocol(f"This broker speaks version {PROTOCOL_VERSION} of the protocol only.")
        self._greeted = True
        self._reader.max_frame_bytes = self._max_frame_bytes
        return Requested(correlation, request)


def _server_event(frame_type: int, correlation: int, payload: bytes, flags: int) -> ServerEvent:
    if flags and frame_type in (FrameType.SEND, FrameType.ACK, FrameType.HELLO):
        raise BadFrame("A frame has flags that its type does not have.")
    if frame_type == FrameType.SEND:
        return SendRequested(correlation, *decode_send(payload))
    if frame_type == FrameType.ACK:
        return AckRequested(correlation, decode_ack(payload))
    if frame_type == FrameType.HELLO:
        raise BadRequest("HELLO was sent twice.")
    try:
        known = FrameType(frame_type)
    except ValueError:
        raise UnknownFrame(f"There is no request of type {frame_type}.") from None
    if known not in REQUEST_CLASSES:
        raise UnknownFrame(f"{known.name} is not a request.")
    identity, rest = split_identity(known, flags, payload)
    return Requested(correlation, decode_request(known, bytes(rest)), identity)
