"""SendMessage: messages are checked, stored by the broker, and answered once they are safe there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, Final, TypeAlias

from tickwheel.errors import TickwheelError, TransactionRefused
from tickwheel_gateway.calls.answers import refusal, tell, tell_all
from tickwheel_gateway.calls.deadlines import InTime
from tickwheel_gateway.calls.service import Asked
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

    async def send(self, asked: Asked, request: Any) -> Any:
        """A SendMessageResponse. Raises Refused, and what Tickwheel's client raises, when nothing was stored."""
        now_ms = self._now_ms()
        topic, messages = self._checked(asked, request, now_ms)
        size_bytes = len(asked.call.request)
        if self._pending_bytes and self._pending_bytes + size_bytes > self._max_pending_bytes:
            raise Refused(Code.TOO_MANY_REQUESTS, "too many messages are waiting for the broker")
        self._pending_bytes += size_bytes
        try:
            with InTime(asked.call, asked.client):
                stored = await self._store(asked, topic, messages)
        finally:
            self._pending_bytes -= size_bytes
        response = schema.SendMessageResponse()
        theirs = request.messages[0].topic.name
        for message, result in zip(messages, stored, strict=True):
            _fill(response.entries.add(), theirs, message, result, now_ms)
        tell_all(response.status, [entry.status.code for entry in response.entries])
        return response

    def _checked(self, asked: Asked, request: Any, now_ms: int) -> tuple[str, list[Sent]]:
        """The topic in Tickwheel, and all messages. Raises Refused, with the rule that comes first."""
        if not request.messages:
            raise Refused(Code.MESSAGE_CORRUPTED, "no message to send")
        name = request.messages[0].topic.name
        topic = topic_of(name)
        sender = Sender(asked.caller.client_id, asked.caller.host)
        limits = Limits(asked.client.max_body_bytes, self._config.max_delay_ms)
        messages = []
        for message in request.messages:
            if message.topic.name != name:
                raise Refused(Code.MESSAGE_CORRUPTED, "the messages of a request are of one topic")
            messages.append(sent(message, sender, limits, now_ms))
        return topic, messages

    async def _store(self, asked: Asked, topic: str, messages: Sequence[Sent]) -> list[Stored]:
        if len(messages) > 1:
            return await self._store_many(asked, topic, messages)
        (message,) = messages
        if message.is_transaction:
            return [await self._prepare(asked, topic, message)]
        result = await asked.client.send(
            topic,
            message.body,
            key=message.key,
            deliver_at=message.deliver_at_ms,
            priority=message.priority,
            order_key=message.order_key,
            headers=message.headers,
        )
        return [result.id]

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
