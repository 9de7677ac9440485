"""A consumer of the gateway: its calls, answered by a real broker in simulated time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from tests.support.clients.in_time import InTime, broker_in_time
from tests.support.native.driver import NOW_MS
from tests.support.rocketmq.gateway_call import CALLER, OpenCall, asked, batch, read
from tests.support.rocketmq.waited import waited
from tickwheel import Client
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_gateway.calls.receiving import Receiving
from tickwheel_gateway.calls.settling import Settling
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.acking import Acking
from tickwheel_gateway.delivery.attempts import Attempts
from tickwheel_gateway.delivery.dead_letters import DeadLetters
from tickwheel_gateway.delivery.renewing import Renewing
from tickwheel_gateway.filters.expressions import Filters
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.messages import Limits, Sender, sent
from tickwheel_gateway.wire.names import topic_of

now_ms = TrioClock(NOW_MS).now_ms


class OneBroker:
    """A client of the broker, for every token."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.error: Exception | None = None
        """Instead of the client."""

    @waited
    async def client(self, token: str, address: str = "") -> AsyncIterator[Client]:
        if self.error is not None:
            raise self.error
        yield self._client


class Consumer:
    """What a consumer may ask, of topic `t` and group `g` unless another one is named."""

    def __init__(self, there: InTime, client: Client, config: Config) -> None:
        self.there = there
        self.client = client
        self.registry = Registry()
        self.broker = OneBroker(client)
        self.attempts = Attempts()
        self.renewing = Renewing(config, self.broker, self.registry)
        self.stopping = trio.Event()
        dead_letters = DeadLetters()
        self.receiving = Receiving(
            config=config,
            registry=self.registry,
            filters=Filters(),
            renewing=self.renewing,
            attempts=self.attempts,
            dead_letters=dead_letters,
            stopping=self.stopping,
            now_ms=now_ms,
        )
        self.settling = Settling(
            config=config, acking=Acking(), renewing=self.renewing, dead_letters=dead_letters, now_ms=now_ms
        )

    async def send(
        self, body: bytes = b"x", *, topic: str = "t", message_id: str = "", **fields: Any
    ) -> None:
        """A message as SendMessage stores it. `user_properties`, or what its system properties have."""
        message = schema.Message(body=body, user_properties=fields.pop("user_properties", {}))
        message.system_properties.message_id = message_id or body.decode()
        for name, value in fields.items():
            if name == "keys":
                message.system_properties.keys.extend(value)
            else:
                setattr(message.system_properties, name, value)
        out = sent(message, Sender("producer", "10.0.0.9"), Limits(), now_ms())
        await self.client.send(
            topic_of(topic),
            out.body,
            key=out.key,
            deliver_at=out.deliver_at_ms,
            priority=out.priority,
            order_key=out.order_key,
            headers=out.headers,
        )

    async def receive(self, call: OpenCall | None = None, **wish: Any) -> list[Any]:
        """The messages; raises Refused when the status says none."""
        call = call or OpenCall()
        answers = await self.ask(call, **wish)
        assert answers[-1].HasField("delivery_timestamp")
        assert 0 <= now_ms() - schema.milliseconds(answers[-1].delivery_timestamp) <= 2
        assert answers[0].HasField("status")
        if answers[0].status.code != 20_000:
            assert len(answers) == 2
            raise Refused(answers[0].status.code, answers[0].status.message)
        return [answer.message for answer in answers[1:-1]]

    async def ask(self, call: OpenCall, caller: Caller = CALLER, **wish: Any) -> list[Any]:
        """All answers of a ReceiveMessage. `wait_s`, `invisible_s`, `sql` or `tags`, and fields of the request."""
        request = receive_request(**wish)
        self.registry.heard(caller)
        await self.receiving.receive(asked(self.client, call, caller), request)
        return read(schema.ReceiveMessageResponse, call)

    async def ack(self, *handles: str, topic: str = "t", group: str = "g") -> tuple[int, list[int]]:
        """The code of all, and of each."""
        request = schema.AckMessageRequest()
        request.topic.name, request.group.name = topic, group
        for handle in handles:
            request.entries.add(message_id=f"of {handle}", receipt_handle=handle)
        response = await self.acked(request)
        assert [entry.receipt_handle for entry in response.entries] == list(handles)
        assert [entry.message_id for entry in response.entries] == [f"of {handle}" for handle in handles]
        return response.status.code, [entry.status.code for entry in response.entries]

    async def acked(self, request: Any, call: OpenCall | None = None) -> Any:
        """What AckMessage is answered. Raises Refused when it is no more than a status."""
        call = call or OpenCall()
        call.request = request.SerializeToString()
        await batch(self.client, "AckMessage", self.settling.ack, [call])
        (response,) = read(schema.AckMessageResponse, call)
        if not response.entries:
            raise Refused(Code(response.status.code), response.status.message)
        return response

    async def change(self, handle: str, invisible_s: float, *, topic: str = "t", group: str = "g") -> str:
        """The new handle."""
        request = schema.ChangeInvisibleDurationRequest(receipt_handle=handle)
        request.topic.name, request.group.name = topic, group
        schema.set_milliseconds(request.invisible_duration, round(invisible_s * 1_000))
        response = await self.settling.change(asked(self.client), request)
        assert response.status.code == 20_000
        assert response.receipt_handle != handle
        return str(response.receipt_handle)

    async def forward(self, handle: str, *, topic: str = "t", group: str = "g") -> None:
        request = schema.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
        request.topic.name, request.group.name = topic, group
        response = await self.settling.forward(asked(self.client), request)
        assert response.status.code == 20_000


def receive_request(
    *,
    topic: str = "t",
    group: str = "g",
    wait_s: float | None = 5.0,
    invisible_s: float = 30.0,
    sql: str = "",
    tags: str = "*",
    batch_size: int = 32,
    **fields: Any,
) -> Any:
    """A ReceiveMessageRequest."""
    request = schema.ReceiveMessageRequest(batch_size=batch_size, **fields)
    request.group.name, request.message_queue.topic.name = group, topic
    request.filter_expression.type = 2 if sql else 1
    request.filter_expression.expression = sql or tags
    if wait_s is not None:
        schema.set_milliseconds(request.long_polling_timeout, round(wait_s * 1_000))
    if not request.auto_renew:
        schema.set_milliseconds(request.invisible_duration, round(invisible_s * 1_000))
    return request


@asynccontextmanager
async def consuming(
    directory: Path, config: Config | None = None, **settings: Any
) -> AsyncIterator[Consumer]:
    """`settings`: the broker's."""
    async with (
        broker_in_time(directory, **settings) as there,
        there.client(timeout=120) as client,
        trio.open_nursery() as nursery,
    ):
        consumer = Consumer(there, client, config or Config())
        await client.create_topic("t")
        nursery.start_soon(consumer.receiving.run)
        nursery.start_soon(consumer.renewing.run)
        yield consumer
        nursery.cancel_scope.cancel()


def another(client_id: str) -> Caller:
    """Another client than the usual one."""
    return replace(CALLER, client_id=client_id)


def bodies(messages: Sequence[Any]) -> list[bytes]:
    """What was received."""
    return [message.body for message in messages]


def handle_of(message: Any) -> str:
    """The receipt handle of a message."""
    return str(message.system_properties.receipt_handle)


def handles(messages: Sequence[Any]) -> list[str]:
    """The receipt handles of what was received."""
    return [handle_of(message) for message in messages]


def breaks_after(messages: int) -> OpenCall:
    """A call whose connection breaks when the status and so many messages are written."""
    return OpenCall(takes=messages + 1)


def until(seconds: float) -> OpenCall:
    """A call with a deadline, in seconds from now."""
    return OpenCall(deadline=trio.current_time() + seconds if seconds < math.inf else math.inf)
