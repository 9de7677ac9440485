"""A small broker in memory, for tests of the client: it keeps messages in a list and follows the protocol."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import ByteStream, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tests.unit.tickwheel.server_frames import DeliverItem, encode_ack_ok, encode_deliver, encode_send_ok
from tickwheel import Client
from tickwheel.protocol.bodies.requests import (
    Answer,
    Cancel,
    CancelOk,
    GetStats,
    GetTopics,
    GetWheel,
    Hello,
    HelloOk,
    OpenTopic,
    OpenTopicOk,
    Ping,
    Pong,
    Reschedule,
    RescheduleOk,
    Subscribe,
    SubscribeOk,
    Unsubscribe,
    UnsubscribeOk,
    encode_body,
    encode_error,
    encode_map,
)
from tickwheel.protocol.bodies.settling import Return, ReturnOk
from tickwheel.protocol.errors import RemoteProtocolError, TickwheelError
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.limits import DEFAULT_PRIORITY
from tickwheel.protocol.machine import (
    AckRequested,
    NotUnderstood,
    Requested,
    SendRequested,
    ServerEvent,
    ServerMachine,
)
from tickwheel.protocol.messages import (
    AckCode,
    AckOk,
    ItemException,
    SendCode,
    SendColumns,
    SendOk,
)

LIMITS = HelloOk(
    protocol=1,
    server="fake/1",
    now_ms=1_700_000_000_000,
    max_frame_bytes=64 * 1024,
    max_body_bytes=16 * 1024,
    max_key_bytes=255,
    max_headers_bytes=1024,
)

STATS = {
    "now_ms": 1,
    "tick_ms": 2,
    "messages": 3,
    "scheduled": 4,
    "ready": 5,
    "cancelled": 6,
    "delivered": 7,
    "acked": 8,
    "leased": 9,
    "topics": 10,
    "groups": 11,
    "connections": 12,
    "subscribers": 13,
    "appended_bytes": 14,
    "durable_bytes": 15,
    "disk_bytes": 16,
    "syncs": 17,
    "uptime_ms": 18,
    "version": "fake",
}


class MemoryStream(ByteStream):
    """One end of a byte stream in memory."""

    def __init__(
        self, sending: MemoryObjectSendStream[bytes], receiving: MemoryObjectReceiveStream[bytes]
    ) -> None:
        self._sending = sending
        self._receiving = receiving
        self._rest = b""

    async def send(self, item: bytes) -> None:
        await self._sending.send(bytes(item))

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = self._rest or await self._receiving.receive()
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def send_eof(self) -> None:
        await self._sending.aclose()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Breaks the stream at once, as a killed process would."""
        self._sending.close()
        self._receiving.close()


def memory_pair() -> tuple[MemoryStream, MemoryStream]:
    """Two ends of one stream."""
    a_sends, b_receives = anyio.create_memory_object_stream[bytes](math.inf)
    b_sends, a_receives = anyio.create_memory_object_stream[bytes](math.inf)
    return MemoryStream(a_sends, a_receives), MemoryStream(b_sends, b_receives)


@dataclass
class Stored:
    """One message of the fake broker."""

    id: int
    topic: str
    body: bytes
    key: bytes
    headers: bytes
    priority: int
    time_ms: int
    relative: bool
    acked: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    holders: dict[str, FakeConnection | None] = field(default_factory=dict)
    cancelled: bool = False


@dataclass
class Held:
    """One subscription of the fake broker."""

    number: int
    topic: str
    group: str
    credit: int
    batch: int
    connection: FakeConnection


class FakeConnection:
    """The server's end of one connection."""

    def __init__(self, server: FakeServer, stream: MemoryStream) -> None:
        self.server = server
        self.stream = stream
        self.machine = ServerMachine(server.limits.max_frame_bytes)
        self.subscriptions: dict[int, Held] = {}

    async def serve(self) -> None:
        try:
            while True:
                data = await self.stream.receive()
                for event in self.machine.receive_data(data):
                    if not await self.handle(event):
                        return
        except RemoteProtocolError as error:
            self.server.protocol_errors.append(error)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.stream.close()
            self.server.connections.remove(self)

    async def handle(self, event: ServerEvent) -> bool:
        """Answers; False ends the connection."""
        server = self.server
        server.events.append(event)
        if server.before is not None and server.before(event) == "break":
            return False
        frame = server.answer(self, event)
        action = server.after(event) if server.after is not None else None
        if action == "break":
            return False
        if frame is not None and action != "silent":
            await self.stream.send(frame)
            await server.pump()
        return True


class FakeServer:
    """``async with FakeServer() as server: Client(dial=server.dial)``.

    ``before`` and ``after`` see each event: ``"break"`` ends the connection before, or after, the request was
    carried out (the answer is lost); ``"silent"`` never answers. ``refuse`` may return the error to answer with.
    """

    def __init__(self, limits: HelloOk = LIMITS) -> None:
        self.limits = limits
        self.connections: list[FakeConnection] = []
        self.events: list[ServerEvent] = []
        self.protocol_errors: list[RemoteProtocolError] = []
        self.messages: list[Stored] = []
        self.before: Callable[[ServerEvent], str | None] | None = None
        self.after: Callable[[ServerEvent], str | None] | None = None
        self.refuse: Callable[[ServerEvent], TickwheelError | None] | None = None
        self.dials = 0
        self.refused_dials = 0
        self.topic_offset = 0
        """Added to the topic ids: a new broker on the same address may number topics differently."""
        self._topics: list[str] = []
        self._groups: list[tuple[str, str]] = []
        self._subscriptions = 0
        self._tasks: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> FakeServer:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def dial(self, address: object) -> ByteStream:
        """What a client gets as ``dial``."""
        await anyio.lowlevel.checkpoint()
        self.dials += 1
        if self.refused_dials:
            self.refused_dials -= 1
            raise ConnectionRefusedError("nobody listens")
        client, server = memory_pair()
        connection = FakeConnection(self, server)
        self.connections.append(connection)
        self._tasks.start_soon(connection.serve)
        return client

    def break_all(self) -> None:
        """Breaks every connection."""
        for connection in self.connections:
            connection.stream.close()

    async def say(self, frame_type: FrameType, body: Answer) -> None:
        """Sends a frame unasked to every client."""
        for connection in self.connections:
            await connection.stream.send(encode_frame(frame_type, 0, encode_body(body)))

    def seen(self, kind: type[Any]) -> list[Any]:
        """Every request of this class (or event of this class) so far."""
        inner = [event.request if isinstance(event, Requested) else event for event in self.events]
        return [event for event in inner if isinstance(event, kind)]

    # Answers -------------------------------------------------------------------------------------

    def answer(self, connection: FakeConnection, event: ServerEvent) -> bytes | None:
        error = self.refuse(event) if self.refuse is not None else None
        if error is not None:
            return encode_frame(FrameType.ERROR, event.correlation, encode_error(error))
        if isinstance(event, NotUnderstood):
            return event.answer()
        if isinstance(event, SendRequested):
            return encode_frame(FrameType.SEND_OK, event.correlation, encode_send_ok(self.store(event)))
        if isinstance(event, AckRequested):
            return encode_frame(FrameType.ACK_OK, event.correlation, encode_ack_ok(self.ack(event)))
        frame_type, payload = self.control(connection, event.request)
        return encode_frame(frame_type, event.correlation, payload)

    def control(self, connection: FakeConnection, request: object) -> tuple[FrameType, bytes]:
        match request:
            case Hello():
                return FrameType.HELLO_OK, encode_body(self.limits)
            case Ping():
                return FrameType.PONG, encode_body(Pong())
            case OpenTopic(topic=topic):
                return FrameType.OPEN_TOPIC_OK, encode_body(OpenTopicOk(topic_id=self.topic_id(topic)))
            case Subscribe():
                return FrameType.SUBSCRIBE_OK, encode_body(self.subscribe(connection, request))
            case Return(subscription=number, ids=ids):
                held = connection.subscriptions[number]
                held.credit = 0
                returned = [m for m in self.messages if m.id in ids]
                for message in returned:
                    message.holders[held.group] = None
                return FrameType.RETURN_OK, encode_body(ReturnOk(returned=len(returned)))
            case Unsubscribe(subscription=number):
                released = self.release(connection.subscriptions.pop(number))
                return FrameType.UNSUBSCRIBE_OK, encode_body(UnsubscribeOk(released=released))
            case Cancel(ids=ids, topic=topic, keys=keys):
                results = [self.cancel(m) for m in self.find(ids, topic, keys)]
                return FrameType.CANCEL_OK, encode_body(CancelOk(results=results))
            case Reschedule(ids=ids, topic=topic, keys=keys):
                results = [self.reschedule(m, request) for m in self.find(ids, topic, keys)]
                return FrameType.RESCHEDULE_OK, encode_body(RescheduleOk(results=results))
            case GetStats():
                return FrameType.STATS_OK, encode_map(STATS)
            case GetTopics():
                return FrameType.TOPICS_OK, encode_map({"topics": [self.topic_map(t) for t in self._topics]})
            case GetWheel():
                levels = [{"level": 0, "slot_ms": 1, "slots_occupied": 2, "timers": 3, "heat": [1, 2]}]
                forecast = [{"label": "1 s", "until_ms": 9, "timers": 3}]
                wheel = {"tick_ms": 1, "now_ms": 2, "levels": levels, "forecast": forecast}
                return FrameType.WHEEL_OK, encode_map(wheel)
        raise AssertionError(request)

    def topic_id(self, topic: str) -> int:
        if topic not in self._topics:
            self._topics.append(topic)
        return self._topics.index(topic) + self.topic_offset

    def topic_map(self, topic: str) -> dict[str, Any]:
        count = sum(m.topic == topic for m in self.messages)
        names = {"name": topic, "topic_id": self.topic_id(topic)}
        return {**names, "messages": count, "scheduled": 0, "ready": count, "groups": []}

    def store(self, event: SendRequested) -> SendOk:
        topic = self._topics[event.topic_id - self.topic_offset]
        first_id, stored = len(self.messages) + 1, 0
        exceptions: list[ItemException] = []
        for index, message in enumerate(_rows(topic, event.columns)):
            twin = next(
                (m for m in self.messages if m.key and (m.topic, m.key) == (topic, message.key)), None
            )
            if twin is not None:
                exceptions.append(ItemException(index, SendCode.DUPLICATE, twin.id))
            elif len(message.body) > self.limits.max_body_bytes:
                exceptions.append(ItemException(index, SendCode.BODY_TOO_LARGE, 0))
            elif message.time_ms < 0:
                exceptions.append(ItemException(index, SendCode.BAD_TIME, 0))
            else:
                message.id = first_id + stored
                stored += 1
                self.messages.append(message)
        return SendOk(first_id, stored, tuple(exceptions))

    def find(self, ids: list[int] | None, topic: str | None, keys: list[str] | None) -> list[Stored | None]:
        by_id = {m.id: m for m in self.messages}
        by_key = {(m.topic, m.key.decode()): m for m in self.messages}
        if ids is not None:
            return [by_id.get(message_id) for message_id in ids]
        return [by_key.get((topic or "", key)) for key in keys or ()]

    def cancel(self, message: Stored | None) -> str:
        if message is None:
            return "not_found"
        if message.epochs:
            return "already_delivered"
        if message.cancelled:
            return "already_cancelled"
        message.cancelled = True
        return "cancelled"

    def reschedule(self, message: Stored | None, request: Reschedule) -> str:
        if message is None:
            return "not_found"
        if message.epochs:
            return "already_delivered"
        message.time_ms = request.deliver_at_ms or request.delay_ms or 0
        message.relative = request.delay_ms is not None
        return "rescheduled"

    # Delivery ------------------------------------------------------------------------------------

    def subscribe(self, connection: FakeConnection, request: Subscribe) -> SubscribeOk:
        self._subscriptions += 1
        held = Held(
            self._subscriptions, request.topic, request.group, request.credit, request.batch, connection
        )
        connection.subscriptions[held.number] = held
        group = (request.topic, request.group)
        if group not in self._groups:
            self._groups.append(group)
        return SubscribeOk(
            subscription=held.number,
            group_id=self._groups.index(group),
            topic_id=self.topic_id(request.topic),
            ack_wait_ms=30_000,
        )

    def release(self, held: Held) -> int:
        taken = [m for m in self.messages if m.holders.get(held.group) is held.connection]
        taken = [m for m in taken if held.group not in m.acked]
        for message in taken:
            message.holders[held.group] = None
        return len(taken)

    def expire_leases(self) -> None:
        """Ends every lease: un-acked messages can be delivered again."""
        for message in self.messages:
            message.holders.clear()

    def ack(self, event: AckRequested) -> AckOk:
        _, group = self._groups[event.columns.group_id]
        by_id = {m.id: m for m in self.messages}
        acked, exceptions = 0, []
        pairs = zip(event.columns.ids, event.columns.epochs, strict=True)
        for index, (message_id, epoch) in enumerate(pairs):
            message = by_id.get(message_id)
            if message is None:
                exceptions.append(ItemException(index, AckCode.NOT_FOUND, message_id))
            elif message.epochs.get(group, 0) != epoch:
                exceptions.append(ItemException(index, AckCode.STALE_RECEIPT, message_id))
            elif group in message.acked:
                exceptions.append(ItemException(index, AckCode.ALREADY_ACKED, message_id))
            else:
                message.acked.add(group)
                acked += 1
        return AckOk(acked, tuple(exceptions))

    async def pump(self) -> None:
        """Delivers what is due (whatever has no time) to whoever has credit."""
        for connection in list(self.connections):
            for held in list(connection.subscriptions.values()):
                while items := self.take(held):
                    payload = encode_deliver(held.number, items)
                    await connection.stream.send(encode_frame(FrameType.DELIVER, 0, payload))

    def take(self, held: Held) -> list[DeliverItem]:
        mine = [m for m in self.messages if m.topic == held.topic and held.group not in m.acked]
        leased = sum(m.holders.get(held.group) is held.connection for m in mine)
        room = max(0, min(held.batch, held.credit - leased))
        due = [m for m in mine if m.holders.get(held.group) is None and not m.time_ms and not m.cancelled]
        for message in due[:room]:
            message.holders[held.group] = held.connection
            message.epochs[held.group] = message.epochs.get(held.group, 0) + 1
        return [
            DeliverItem(
                id=m.id,
                deliver_at_ms=1000 + m.id,
                created_ms=500 + m.id,
                epoch=m.epochs[held.group],
                priority=m.priority,
                key=m.key,
                headers=m.headers,
                body=m.body,
            )
            for m in due[:room]
        ]


def _rows(topic: str, columns: SendColumns) -> list[Stored]:
    count = len(columns.bodies)
    times, priority = columns.deliver_at_ms, columns.priority
    time_list = struct.unpack(f"<{count}q", times) if isinstance(times, bytes) else (times,) * count
    return [
        Stored(
            id=0,
            topic=topic,
            body=bytes(body),
            key=b"" if columns.keys is None else columns.keys[index],
            headers=b"" if columns.headers is None else columns.headers[index],
            priority=priority[index]
            if isinstance(priority, bytes)
            else DEFAULT_PRIORITY
            if priority == 256
            else priority,
            time_ms=time_list[index],
            relative=columns.relative,
        )
        for index, body in enumerate(columns.bodies)
    ]


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[FakeServer, Client]]:
    """A client of it."""
    async with FakeServer() as server, Client(dial=server.dial, **options) as client:
        yield server, client
