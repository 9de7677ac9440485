"""SendMessage: messages are checked, stored by the broker, and answered once they are safe there.

Calls with one message, which is what clients make, are stored together as they arrive together. Those with several,
and with transactions, go alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import trio
from google.protobuf.message import DecodeError

from tickwheel import Client
from tickwheel.client.times import AT_ONCE
from tickwheel.errors import TickwheelError, TransactionRefused
from tickwheel.sharing.joining import Encoded, Joined
from tickwheel_gateway.calls.answers import check_count, refusal, tell, tell_all
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
from tickwheel_gateway.wire.many import Sends
from tickwheel_gateway.wire.messages import Limits, Sender, Sent, sent
from tickwheel_gateway.wire.names import topic_of

MAX_PENDING_BYTES: Final = 48 * 1024 * 1024
"""Less than what Tickwheel's client takes before its sends wait: here they are refused instead, and RocketMQ's
clients back off."""
_DUPLICATE: Final = "duplicate"

Stored: TypeAlias = int | Refused
"""The number that the broker has given a message, or why there is none."""


class _Load(Protocol):
    """Messages of one topic that go together: one of each call."""

    topic: str
    """In Tickwheel."""
    calls: list[Single]
    columns: Encoded

    def answers(self, places: Sequence[int], ids: Sequence[int], now_ms: int) -> list[bytes]:
        """What is answered to those that were stored."""


@dataclass(slots=True)
class _Usual:
    """Some of what the C code has read."""

    topic: str
    calls: list[Single]
    columns: Encoded
    sends: Sends
    places: Sequence[int]
    """In ``sends``."""

    def answers(self, places: Sequence[int], ids: Sequence[int], now_ms: int) -> list[bytes]:
        """See `_Load`."""
        return self.sends.answers([self.places[place] for place in places], ids, now_ms)


@dataclass(slots=True)
class _Unusual:
    """What was read one by one."""

    topic: str
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

    def answers(self, places: Sequence[int], ids: Sequence[int], now_ms: int) -> list[bytes]:
        """See `_Load`."""
        return [
            bytes(_response(self.theirs, [self.messages[place]], [stored], now_ms).SerializeToString())
            for place, stored in zip(places, ids, strict=True)
        ]


@dataclass(slots=True)
class _Alone:
    """A call that does not go with others."""

    single: Single
    topic: str
    """In Tickwheel."""
    theirs: str
    """As RocketMQ has its name."""
    messages: list[Sent]


class _Read:
    """What calls ask for that arrived together. Of the messages that keep an order, those of a later call are never in
    an earlier load."""

    def __init__(self) -> None:
        self.loads: list[_Load] = []
        self.alone: list[_Alone] = []
        self.size_bytes = 0
        """Of their requests."""

    def add(self, single: Single, topic: str, theirs: str, messages: list[Sent]) -> None:
        """One more, after all that are there."""
        message = messages[0]
        if len(messages) > 1 or message.is_transaction:
            self.alone.append(_Alone(single, topic, theirs, messages))
            return
        # To the broker a priority means nothing beside an ordering key.
        has_priority = message.priority is not None and message.order_key is None
        load = self.loads[-1] if self.loads else None
        if (
            not isinstance(load, _Unusual)
            or load.topic != topic
            or load.has_priority != has_priority
            or load.theirs != theirs
        ):
            load = _Unusual(topic, theirs, has_priority)
            self.loads.append(load)
        load.add(single, message)

    def add_usual(self, calls: Sequence[Single], sends: Sends, start: int) -> None:
        """Some more that follow each other in ``sends``. Raises Refused, with none added, for a topic that may not
        be."""
        stop = start + len(calls)
        names, priorities = sends.topics(start, stop), sends.priorities(start, stop)
        kinds = [
            (name, priority >= 0 and not order_key)
            for name, priority, order_key in zip(
                names, priorities, sends.order_keys(start, stop), strict=True
            )
        ]
        topics = {name: topic_of(name.decode()) for name in dict.fromkeys(names)}
        columns = Encoded(
            sends.bodies(start, stop),
            sends.keys(start, stop),
            sends.headers(start, stop),
            sends.order_keys(start, stop),
            sends.deliver_at_ms(start, stop),
            priorities,
        )
        self.size_bytes += sum(len(single.call.request) for single in calls)
        for kind in dict.fromkeys(kinds):
            places = [place for place, one in enumerate(kinds) if one == kind]
            chosen = columns.chosen(places) if len(places) < len(calls) else columns
            if not kind[1]:
                chosen.priorities = []
            self.loads.append(
                _Usual(
                    topics[kind[0]],
                    [calls[place] for place in places],
                    chosen,
                    sends,
                    [start + place for place in places],
                )
            )


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
        for caller, group in groupby(together.left, key=lambda single: single.caller):
            calls = list(group)
            if (
                self._pending_bytes + sum(len(single.call.request) for single in calls)
                > self._max_pending_bytes
            ):
                self._read_singly(together, calls, read, limits, now_ms)
                continue
            sender = Sender(caller.client_id, caller.host)
            sends = Sends([single.call.request for single in calls], sender, limits, now_ms)
            stop = 0
            for is_usual, run in groupby(sends.are_usual):
                start, stop = stop, stop + len(list(run))
                part = calls[start:stop]
                if is_usual:
                    with suppress(Refused):  # which of them is, is found out below
                        read.add_usual(part, sends, start)
                        continue
                self._read_singly(together, part, read, limits, now_ms)
        return read

    def _read_singly(
        self, together: Together, calls: Sequence[Single], read: _Read, limits: Limits, now_ms: int
    ) -> None:
        for single in calls:
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

    async def _store(self, client: Client, together: Together, read: _Read, now_ms: int) -> None:
        # All are on their way, in their order, before any is waited for.
        under_way = [(load, Joined(client, load.topic, load.columns)) for load in read.loads]
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
                deliver_at=message.deliver_at_ms or None,
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
        deliver_at=[message.deliver_at_ms or AT_ONCE for message in messages],
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
    if isinstance(results, range):
        together.answer_all(Code.OK, load.calls, load.answers(range(len(results)), results, now_ms))
        return
    stored: list[int] = []
    for place, result in enumerate(results):
        if isinstance(result, TickwheelError):
            together.refuse(load.calls[place], result)
        else:
            stored.append(place)
    if stored:
        ids = [result for result in results if isinstance(result, int)]
        calls = [load.calls[place] for place in stored]
        together.answer_all(Code.OK, calls, load.answers(stored, ids, now_ms))


def _checked(request: Any, caller: Caller, limits: Limits, now_ms: int) -> tuple[str, list[Sent]]:
    """The topic in Tickwheel, and all messages. Raises Refused, with the rule that comes first."""
    if not request.messages:
        raise Refused(Code.MESSAGE_CORRUPTED, "no message to send")
    check_count(len(request.messages), "messages")
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
