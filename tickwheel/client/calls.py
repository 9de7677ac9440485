"""Requests on their way: what is to be written, whether it may be written twice, and who waits for the
answer; and the identities by which the broker knows a repetition."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Protocol, TypeVar

import msgspec

from tickwheel.client.results import Item, SendResult, SendResults, check_send_ok
from tickwheel.client.waiting.waits import Event
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.requests import FRAME_TYPE_OF_REQUEST, decode_request, encode_body
from tickwheel.protocol.bodies.settling import ExtendOk, NackOk, ReturnOk
from tickwheel.protocol.errors import BadArgument, BadRequest, SendUncertain, TickwheelError
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.identity import IDENTIFIED, RequestIdentity
from tickwheel.protocol.machine import AnswerBody
from tickwheel.protocol.messages import (
    TOPIC_PRIORITY,
    SendColumns,
    SendOk,
    encode_send,
    pack_column,
    retarget_send,
)

CALL_OVERHEAD_BYTES = 1024
"""What a request counts beside its payload, so that many small ones are bounded too."""

JUDGED_BYTES_MAX = 65_536

_NAMING_IDS = frozenset(
    {
        FrameType.CANCEL,
        FrameType.RESCHEDULE,
        FrameType.REDELIVER,
        FrameType.TRANSACTION,
        FrameType.DECIDE,
        FrameType.REPLAY_DEAD,
    }
)

T = TypeVar("T")

FLIGHT_MESSAGES_MAX = 1024
FLIGHT_BYTES_MAX = 256 * 1024


class Link(Protocol):
    """What a call may ask of the connection that it is about to be written to."""

    def topic_id(self, call: SendCall) -> int | None:
        """The number of the call's topic; None: the call waits until it is known."""

    @property
    def tells_differences(self) -> bool:
        """Whether the server can tell that a duplicate is another message under the same key."""


class Line(Protocol):
    """What carries calls to the broker and lives longer than a connection: the session, as a connection sees it."""

    def submit(self, call: Call) -> None:
        """Puts a call into the outbox at once. Raises ClientClosed."""

    def requeue(self, calls: Sequence[Call]) -> None:
        """Puts calls that waited for something back into the outbox: before those that came after them."""

    def fail(self, call: Call, error: TickwheelError) -> None:
        """Ends a call with an error."""


class Identities:
    """A session: a number of its own, and which of its requests wait for their answers."""

    def __init__(self) -> None:
        self._session = secrets.randbits(64)
        self._last_number = 0
        # In the order of their numbers, so that the first is the lowest.
        self._unanswered: dict[int, None] = {}

    def begin(self) -> int:
        """The number of a request that is made now."""
        self._last_number += 1
        self._unanswered[self._last_number] = None
        return self._last_number

    def end(self, number: int) -> None:
        """The answer is not waited for any more."""
        self._unanswered.pop(number, None)

    def of(self, number: int, since: int | None) -> RequestIdentity:
        """What is written before a request. ``since``: of a repetition, where the log was at the first time."""
        return RequestIdentity(self._session, number, next(iter(self._unanswered)), since)


class Call:
    """One request.

    It survives reconnects until it is answered, fails, or its ``deadline`` (loop time) passes.
    """

    __slots__ = (
        "abandoned",
        "bound",
        "cost_bytes",
        "deadline",
        "done",
        "error",
        "number",
        "repeated",
        "since",
        "written",
    )

    frame_type: FrameType
    done: Event
    """Set at the end, whatever it was; there is one once it was submitted."""

    def __init__(self, cost_bytes: int, deadline: float = math.inf) -> None:
        self.cost_bytes = cost_bytes + CALL_OVERHEAD_BYTES
        self.deadline = deadline
        self.error: TickwheelError | None = None
        self.written = False
        """It is on the current connection, or was when that broke."""
        self.repeated = False
        """It was written to an earlier connection too, so it may have been carried out already."""
        self.bound = False
        """It means nothing on another connection: it ends with the one that it was made for."""
        self.abandoned = False
        """The answer is not waited for any more."""
        self.number = 0
        """In its identity; 0: it has none."""
        self.since = 0
        """Where the broker's log was at the latest when it was written first; 0: it is not known."""

    @property
    def has_identity(self) -> bool:
        """Whether it changes something, and is made again on the next connection if need be."""
        return self.frame_type in IDENTIFIED and not self.bound

    @property
    def is_uncertain(self) -> bool:
        """Whether it changes something, and may have been carried out: it was written at least once."""
        return self.has_identity and (self.written or self.repeated)

    @property
    def repeatable(self) -> bool:
        """Whether it does no harm to carry the request out twice."""
        return True

    def lost(self) -> TickwheelError:
        """Why it fails when its connection broke before the answer, and it is not repeatable."""
        return SendUncertain()

    def refuse_receipts(self) -> bool:
        """The broker's log is of another timeline than the one in which this was made: if all that it says is what
        becomes of receipts, it has their answer now, and true is returned."""
        return False

    @property
    def names_ids(self) -> bool:
        """Whether it changes messages that it names by numbers, which mean something in one timeline."""
        return False

    def payload(self, link: Link) -> bytes | None:
        """What to write now. None: not yet; the call has put itself where it will be found in time."""
        raise NotImplementedError

    def answered(self, body: AnswerBody) -> None:
        """Takes the answer. Raises BadFrame if it does not fit the request."""
        raise NotImplementedError

    def failed(self, error: TickwheelError) -> None:
        """Hears of the error that ended the call."""

    def ended(self) -> None:
        """Hears of the end, whatever it was."""

    def forked(self) -> None:
        """Hears in a child of a fork that it is the parent's."""


def encode_request(request: Request) -> bytes:
    """The payload of a request, judged as the broker judges it, so that it is not sent in vain; what is long, ids for
    the most part, was judged when it was taken. Raises BadArgument."""
    try:
        payload = encode_body(request)
        if len(payload) <= JUDGED_BYTES_MAX:
            decode_request(FRAME_TYPE_OF_REQUEST[type(request)], payload)
    except BadRequest as error:
        raise BadArgument(error.message, advice="Correct the argument that the message names.") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadArgument(f"An argument cannot be sent: {error}.") from None
    return payload


class RequestCall(Call):
    """A request with a MessagePack body."""

    __slots__ = ("_payload", "body", "frame_type")

    def __init__(self, request: Request, deadline: float = math.inf) -> None:
        self._payload = encode_request(request)
        super().__init__(len(self._payload), deadline)
        self.frame_type = FRAME_TYPE_OF_REQUEST[type(request)]
        self.body: AnswerBody | None = None

    def refuse_receipts(self) -> bool:
        if self.frame_type not in (FrameType.NACK, FrameType.EXTEND, FrameType.RETURN):
            return False
        stale = ["stale_receipt"] * len(msgspec.msgpack.decode(self._payload)["ids"])
        if self.frame_type == FrameType.NACK:
            self.body = NackOk(results=stale)
        elif self.frame_type == FrameType.EXTEND:
            self.body = ExtendOk(results=stale, until_ms=0)
        else:
            self.body = ReturnOk(returned=0, results=stale)
        return True

    @property
    def names_ids(self) -> bool:
        if self.frame_type not in _NAMING_IDS:
            return False
        request = msgspec.msgpack.decode(self._payload)
        changes = request.get("changes") or ()
        return bool(request.get("ids") or request.get("acks") or any(one.get("ids") for one in changes))

    def payload(self, link: Link) -> bytes | None:
        return self._payload

    def answered(self, body: AnswerBody) -> None:
        self.body = body


class SendCall(Call):
    """A SEND of one or many messages to one topic."""

    __slots__ = ("answer", "keyed", "topic", "topic_gone")

    frame_type = FrameType.SEND

    def __init__(self, topic: str, *, keyed: bool, cost_bytes: int, deadline: float) -> None:
        super().__init__(cost_bytes, deadline)
        self.topic = topic
        self.keyed = keyed
        self.topic_gone = False
        """The number of its topic was no longer known once."""
        self.answer: SendOk | None = None

    @property
    def repeatable(self) -> bool:
        return self.keyed


class BulkSend(SendCall):
    """One frame of a ``send_many``: encoded when it is made, so that the user's lists are not held on to."""

    __slots__ = ("_count", "_payload", "auto_key", "indexes")

    def __init__(
        self, *, topic: str, columns: SendColumns, indexes: Sequence[int], auto_key: bool, deadline: float
    ) -> None:
        payload = encode_send(0, columns)
        keyed = columns.keys is not None and all(columns.keys)
        super().__init__(topic, keyed=keyed, cost_bytes=len(payload), deadline=deadline)
        self._payload = payload
        self._count = len(columns.bodies)
        self.indexes = indexes
        self.auto_key = auto_key

    def payload(self, link: Link) -> bytes | None:
        topic_id = link.topic_id(self)
        if topic_id is None:
            return None
        self._payload = retarget_send(self._payload, topic_id, tell_differences=link.tells_differences)
        return self._payload

    def answered(self, body: AnswerBody) -> None:
        assert isinstance(body, SendOk)
        check_send_ok(body, self._count)
        self.answer = body

    def ended(self) -> None:
        # The results may outlive this call's frame by far, when it is one of many.
        self._payload = b""


class FlightKey(msgspec.Struct, frozen=True, gc=False):
    """Single sends share a frame when they agree on these."""

    topic: str
    relative: bool
    keyed: bool
    ordered: bool
    has_priority: bool


@dataclass(slots=True)
class Encoded:
    """Messages by column, as they stand in a frame."""

    bodies: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    order_keys: list[bytes] = field(default_factory=list)
    """Empty where there is none."""
    deliver_at_ms: list[int] = field(default_factory=list)
    """0: at once."""
    priorities: list[int] = field(default_factory=list)
    """No column: those of the topic."""

    def chosen(self, indexes: Sequence[int]) -> Encoded:
        """Some of them."""

        def of(column: list[T]) -> list[T]:
            return [column[index] for index in indexes] if column else column

        return Encoded(
            of(self.bodies),
            of(self.keys),
            of(self.headers),
            of(self.order_keys),
            of(self.deliver_at_ms),
            of(self.priorities),
        )

    def part(self, start: int, stop: int) -> Encoded:
        """Some of them that follow each other."""
        part = slice(start, stop)
        return Encoded(
            self.bodies[part],
            self.keys[part],
            self.headers[part],
            self.order_keys[part],
            self.deliver_at_ms[part],
            self.priorities[part],
        )


class SendFlight(SendCall):
    """Single sends that share one frame. It is open to more of them until it is written."""

    __slots__ = (
        "_auto_keys",
        "_bodies",
        "_count",
        "_given_up",
        "_headers",
        "_kept",
        "_keys",
        "_order_keys",
        "_payload",
        "_priorities",
        "_size_bytes",
        "_times_ms",
        "key",
        "open",
        "results",
    )

    def __init__(self, key: FlightKey, deadline: float) -> None:
        super().__init__(key.topic, keyed=key.keyed, cost_bytes=0, deadline=deadline)
        self.key = key
        self.open = True
        self.results: SendResults | None = None
        self._count = 0
        self._bodies: list[bytes] = []
        self._keys: list[bytes] = []
        self._headers: list[bytes] = []
        self._order_keys: list[bytes] = []
        self._times_ms: list[int] = []
        self._priorities: list[int] = []
        self._auto_keys: set[int] = set()
        self._given_up: set[int] = set()
        self._kept: Sequence[int] = ()
        self._payload: bytes | None = None
        self._size_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether a message of this size may still join."""
        return (
            self.open
            and len(self._bodies) < FLIGHT_MESSAGES_MAX
            and self._size_bytes + size_bytes <= FLIGHT_BYTES_MAX
        )

    def room_for(self, sizes: Sequence[int], start: int) -> int:
        """How many messages of these sizes fit, from one on; one at least, for which there is room."""
        left = min(len(sizes) - start, FLIGHT_MESSAGES_MAX - len(self._bodies))
        room_bytes = FLIGHT_BYTES_MAX - self._size_bytes
        if left > 1 and sum(sizes[start : start + left]) > room_bytes:
            ends = accumulate(sizes[start : start + left])
            left = sum(1 for _ in takewhile(lambda end: end <= room_bytes, ends))
        return max(1, left)

    def add(
        self,
        body: bytes,
        key: bytes,
        headers: bytes,
        order_key: bytes,
        time_ms: int,
        priority: int,
        *,
        auto_key: bool,
    ) -> int:
        """Adds a message and returns its index."""
        index = self._count
        self._count += 1
        self._bodies.append(body)
        self._keys.append(key)
        self._headers.append(headers)
        self._order_keys.append(order_key)
        self._times_ms.append(time_ms)
        self._priorities.append(priority)
        if auto_key:
            self._auto_keys.add(index)
        self._size_bytes += len(body) + len(key) + len(headers) + len(order_key)
        return index

    def add_all(self, messages: Encoded, size_bytes: int) -> int:
        """Adds several messages, which have so many bytes in all. Returns the index of the first."""
        index = self._count
        self._bodies += messages.bodies
        self._keys += messages.keys
        self._headers += messages.headers
        self._order_keys += messages.order_keys
        self._times_ms += messages.deliver_at_ms
        self._priorities += messages.priorities or [0] * len(messages.bodies)
        self._size_bytes += size_bytes
        self._count += len(messages.bodies)
        return index

    def goes_alone(self) -> None:
        """Its only message is written by something else than ``payload``, in the same bytes."""
        self.open, self._kept = False, range(1)

    def give_up(self, *indexes: int) -> None:
        """These messages are not waited for any more: they are left out, if the frame was not made yet."""
        self._given_up.update(indexes)
        self.abandoned = len(self._given_up) == self._count

    def payload(self, link: Link) -> bytes | None:
        topic_id = link.topic_id(self)
        if topic_id is None:
            return None
        if self._payload is None:
            self._payload = encode_send(topic_id, self._close(), tell_differences=link.tells_differences)
        else:
            self._payload = retarget_send(self._payload, topic_id, tell_differences=link.tells_differences)
        return self._payload

    def _close(self) -> SendColumns:
        self.open = False
        self._kept = range(self._count)
        if self._given_up:
            self._kept = [index for index in range(self._count) if index not in self._given_up]
            self._bodies = [self._bodies[i] for i in self._kept]
            self._keys = [self._keys[i] for i in self._kept]
            self._headers = [self._headers[i] for i in self._kept]
            self._order_keys = [self._order_keys[i] for i in self._kept]
            self._times_ms = [self._times_ms[i] for i in self._kept]
            self._priorities = [self._priorities[i] for i in self._kept]
        return SendColumns(
            bodies=self._bodies,
            deliver_at_ms=pack_column("q", self._times_ms) if any(self._times_ms) else 0,
            relative=self.key.relative,
            priority=bytes(self._priorities) if self.key.has_priority else TOPIC_PRIORITY,
            keys=self._keys if self.keyed else None,
            headers=self._headers if any(self._headers) else None,
            order_keys=self._order_keys if self.key.ordered else None,
        )

    def answered(self, body: AnswerBody) -> None:
        assert isinstance(body, SendOk)
        check_send_ok(body, len(self._kept))
        self.answer = body
        self.results = SendResults(self._count)
        self.results.add_answer(self._kept, body, auto_key=False)

    def ended(self) -> None:
        self.open = False

    def ids(self, index: int, count: int) -> Sequence[int | TickwheelError]:
        """The id of each of these messages, or why it has none."""
        if self.error is not None:
            return [self.error.copy()] * count
        assert self.answer is not None
        assert self.results is not None
        if not self.answer.exceptions and not self._given_up:
            first_id = self.answer.first_id + index
            return range(first_id, first_id + count)
        items = self.results[index : index + count]
        return [item if isinstance(item, TickwheelError) else item.id for item in items]

    def result(self, index: int) -> Item:
        """The result of one message. Raises the error of the whole frame, if it failed."""
        if self.error is not None:
            raise self.error.copy()
        assert self.results is not None
        item = self.results[index]
        if index in self._auto_keys and not isinstance(item, TickwheelError) and item.duplicate:
            return item._replace(duplicate=False)
        return item

    def stored(self, index: int) -> SendResult:
        """The same of a message that is waited for by itself. Raises its error."""
        item = self.result(index)
        if isinstance(item, TickwheelError):
            raise item
        return item
