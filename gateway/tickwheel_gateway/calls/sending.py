"""SendMessage: messages are checked, stored by the broker, and answered once they are safe there.

Calls with one message, which is what clients make, are stored together as they arrive together. Those with several,
and with transactions, go alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
import trio
from google.protobuf.message import DecodeError

from tickwheel import Client
from tickwheel.errors import TickwheelError, TransactionRefused
from tickwheel.sharing.joining import Encoded, Joined
from tickwheel_gateway.calls.answers import refusal, tell, tell_all
from tickwheel_gateway.calls.deadlines import InTime
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.calls.together import Single, Together
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.clock import NowMs, wall_ms
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import Recall, encode_recall
from tickwheel_gateway.wire.messages import Limits, Sender, Sent, sent
from tickwheel_gateway.wire.names import topic_of

MAX_PENDING_BYTES: Final = 48 * 1024 * 1024
"""Less than what Tickwheel's client takes before its sends wait: here they are refused instead, and RocketMQ's
clients back off."""
_DUPLICATE: Final = "duplicate"

Stored: TypeAlias = int | Refused
"""The number that the broker has given a message, or why there is none."""


@dataclass(slots=True)
class _Load:
    """Messages of one topic that go together: one of each call."""

    topic: str
    """In Tickwheel."""
    theirs: str
    """As RocketMQ has its name."""
    has_priority: bool
    calls: list[Single] = field(default_factory=list)
    messages: list[Sent] = field(default_factory=list)
    columns: Encoded = field(default_factory=Encoded)

    def add(self, single: Single, message: Sent) -> None:
        """One more."""
        self.calls.append(single)
        self.messages.append(message)
        columns = self.columns
        columns.bodies.append(message.body)
        columns.keys.append(message.key.encode())
        columns.headers.append(msgspec.msgpack.encode(message.headers))
        columns.order_keys.append((message.order_key or "").encode())
        columns.deliver_at_ms.append(message.deliver_at_ms or 0)
        if self.has_priority:
            columns.priorities.append(message.priority or 0)


@dataclass(slots=True)
class _Alone:
    """A call that does not go with others."""

    single: Single
    topic: str
    """In Tickwheel."""
    theirs: str
    """As RocketMQ has its name."""
    messages: list[Sent]


@dataclass(slots=True)
class _Read:
    """What calls ask for that arrived together."""

    loads: dict[tuple[str, bool], _Load] = field(default_factory=dict)
    alone: list[_Alone] = field(default_factory=list)
    size_bytes: int = 0
    """Of their requests."""

    def add(self, single: Single, topic: str, theirs: str, messages: list[Sent]) -> None:
        """One more."""
        message = messages[0]
        if len(messages) > 1 or message.is_transaction:
            self.alone.append(_Alone(single, topic, theirs, messages))
            return
        # To the broker a priority means nothing beside an ordering key; and all that have one go together, so that
        # they keep their order.
        has_priority = message.priority is not None and message.order_key is None
        load = self.loads.get((topic, has_priority))
        if load is None:
            load = self.loads[topic, has_priority] = _Load(topic, theirs, has_priority)
        load.add(single, message)


class Sending:
    """Answers SendMessage."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        now_ms: NowMs = wall_ms,
    ) -> None:
        """``max_pending_bytes``: of requests whose messages are not stored yet. ``now_ms``: the time."""
        self._config = config
        self._registry = registry
        self._max_pending_bytes = max_pending_bytes
        self._now_ms = now_ms
        self._pending_bytes = 0

    async def send(self, client: Client, together: Together) -> None:
        """Answers all calls. Raises what Tickwheel's client raises when it has ended."""
        now_ms = self._now_ms()
        read = self._read(client, together, now_ms)
        self._pending_bytes += read.size_bytes
        try:
            await self._store(client, together, read, now_ms)
        finally:
            self._pending_bytes -= read.size_bytes

    def _read(self, client: Client, together: Together, now_ms: int) -> _Read:
        """What may be stored; the others are answered."""
        limits = Limits(client.max_body_bytes, self._config.max_delay_ms)
        read = _Read()
        for single in together.left:
            size_bytes = len(single.call.request)
            try:
                request = schema.SendMessageRequest.FromString(single.call.request)
                topic, messages = _checked(request, single.caller, limits, now_ms)
                pending_bytes = self._pending_bytes + read.size_bytes
                if pending_bytes and pending_bytes + size_bytes > self._max_pending_bytes:
                    raise Refused(Code.TOO_MANY_REQUESTS, "too many messages are waiting for the broker")
            except DecodeError:
                together.garbage(single)
            except Refused as error:
                together.refuse(single, error)
            else:
                read.size_bytes += size_bytes
                read.add(single, topic, request.messages[0].topic.name, messages)
        return read

    async def _store(self, client: Client, together: Together, read: _Read, now_ms: int) -> None:
        # All are on their way, in their order, before any is waited for.
        under_way = [(load, Joined(client, load.topic, load.columns)) for load in read.loads.values()]
        if len(under_way) == 1 and not read.alone:
            await _answer_load(client, together, *under_way[0], now_ms)
            return
        async with trio.open_nursery() as nursery:
            for load, joined in under_way:
                nursery.start_soon(_answer_load, client, together.part(load.calls), load, joined, now_ms)
            for alone in read.alone:
                nursery.start_soon(self._answer_alone, client, together.part([alone.single]), alone, now_ms)

    async def _answer_alone(self, client: Client, together: Together, alone: _Alone, now_ms: int) -> None:
        asked = Asked(alone.single.caller, client, alone.single.call)
        try:
            with InTime(asked.call, client):
                if len(alone.messages) > 1:
                    stored = await self._store_many(asked, alone.topic, alone.messages)
                else:
                    stored = [await self._prepare(asked, alone.topic, alone.messages[0])]
        except Exception as error:
            together.refuse(alone.single, error)
        else:
            response = _response(alone.theirs, alone.messages, stored, now_ms)
            together.answer(alone.single, response.status.code, response.SerializeToString())

    async def _prepare(self, asked: Asked, topic: str, message: Sent) -> int:
        after_ms = message.check_after_ms
        try:
            prepared = await asked.client.prepare(
                topic,
                message.body,
                key=message.key,
                deliver_at=message.deliver_at_ms,
                priority=message.priority,
                order_key=message.order_key,
                headers=message.headers,
                check_after=None if after_ms is None else timedelta(milliseconds=after_ms),
            )
            message_id = prepared.id
        except TransactionRefused as error:
            if error.details.get("reason") != _DUPLICATE:
                raise
            message_id = error.id or 0
        self._registry.heard(asked.caller).transactions.add(topic)
        return message_id

    async def _store_many(self, asked: Asked, topic: str, messages: Sequence[Sent]) -> list[Stored]:
        """In the order given: what comes after a part that failed is not tried, because messages of one group stay in
        order."""
        stored: list[Stored] = []
        for kind, run in groupby(messages, key=lambda one: (one.is_transaction, one.priority is None)):
            part, is_transaction = list(run), kind[0]
            try:
                if is_transaction:
                    for message in part:
                        stored.append(await self._prepare(asked, topic, message))
                else:
                    stored += await _send_many(asked, topic, part)
            except TickwheelError as error:
                refused = refusal(error, "SendMessage")
                stored += [refused] * (len(messages) - len(stored))
                break
        return stored


async def _send_many(asked: Asked, topic: str, messages: Sequence[Sent]) -> list[Stored]:
    """All of them have a priority, or none has."""
    priorities = [message.priority for message in messages if message.priority is not None]
    has_groups = any(message.order_key is not None for message in messages)
    results = await asked.client.send_many(
        topic,
        [message.body for message in messages],
        keys=[message.key for message in messages],
        deliver_at=[message.deliver_at_ms or 0 for message in messages],
        priority=priorities or None,
        order_keys=[message.order_key for message in messages] if has_groups else None,
        headers=[message.headers for message in messages],
    )
    return [
        refusal(result, "SendMessage") if isinstance(result, TickwheelError) else result.id
        for result in results
    ]


async def _answer_load(client: Client, together: Together, load: _Load, joined: Joined, now_ms: int) -> None:
    results: Sequence[int | TickwheelError] = ()

    async def wait() -> None:
        nonlocal results
        results = await joined.results()

    try:
        await together.in_time(wait, client)
    finally:
        joined.leave()
    for single, message, result in zip(load.calls, load.messages, results, strict=True) if results else ():
        if isinstance(result, TickwheelError):
            together.refuse(single, result)
        else:
            response = _response(load.theirs, [message], [result], now_ms)
            together.answer(single, Code.OK, response.SerializeToString())


def _checked(request: Any, caller: Caller, limits: Limits, now_ms: int) -> tuple[str, list[Sent]]:
    """The topic in Tickwheel, and all messages. Raises Refused, with the rule that comes first."""
    if not request.messages:
        raise Refused(Code.MESSAGE_CORRUPTED, "no message to send")
    name = request.messages[0].topic.name
    topic = topic_of(name)
    sender = Sender(caller.client_id, caller.host)
    messages = []
    for message in request.messages:
        if message.topic.name != name:
            raise Refused(Code.MESSAGE_CORRUPTED, "the messages of a request are of one topic")
        messages.append(sent(message, sender, limits, now_ms))
    return topic, messages


def _response(topic: str, messages: Sequence[Sent], stored: Sequence[Stored], now_ms: int) -> Any:
    """A SendMessageResponse. ``topic``: as RocketMQ has its name."""
    response = schema.SendMessageResponse()
    for message, result in zip(messages, stored, strict=True):
        _fill(response.entries.add(), topic, message, result, now_ms)
    tell_all(response.status, [entry.status.code for entry in response.entries])
    return response


def _fill(entry: Any, topic: str, message: Sent, result: Stored, now_ms: int) -> None:
    """``topic``: as RocketMQ has its name."""
    entry.message_id = message.message_id
    if isinstance(result, Refused):
        tell(entry.status, result.code, result.text)
        return
    tell(entry.status, Code.OK)
    entry.offset = result
    if message.is_transaction:
        entry.transaction_id = message.key
        return
    entry.transaction_id = message.message_id
    if message.deliver_at_ms is not None and message.deliver_at_ms > now_ms:
        entry.recall_handle = encode_recall(Recall(topic, message.deliver_at_ms, result, message.message_id))
