"""What a producer of RocketMQ may do is what its token may do at the broker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.rocketmq.gateway_call import OpenCall, asked, batch, read
from tests.support.rocketmq.gateway_sending import message, transaction
from tickwheel import Client
from tickwheel.errors import TickwheelError
from tickwheel_broker.security.tokens import changing, new_token
from tickwheel_gateway.calls.answers import refusal
from tickwheel_gateway.calls.deciding import Deciding
from tickwheel_gateway.calls.recalling import Recalling
from tickwheel_gateway.calls.sending import Sending
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Declared, Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.checks import Checks
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused


def add_token(directory: Path, name: str, *grants: str) -> str:
    """Its text."""
    directory.mkdir(exist_ok=True)
    token, text = new_token(name, list(grants), int(time.time() * 1_000))
    with changing(directory / "tokens.json") as tokens:
        tokens[token.id] = token
    return text


class Gateway:
    """Its handlers, for clients of one token each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.registry = Registry()
        self.sending = Sending(Config(), self.registry)

    @asynccontextmanager
    async def client(self, token: str) -> AsyncIterator[Client]:
        async with Client(self.url, token=token) as client:
            yield client

    async def code(self, handle: Any, client: Client, request: Any) -> Code:
        try:
            response = await handle(asked(client), request)
        except (Refused, TickwheelError) as error:
            return refusal(error, "a call").code
        return Code(response.status.code)

    async def send(self, client: Client, one: Any) -> Code:
        return Code((await self.sent(client, one)).status.code)

    async def sent(self, client: Client, *messages: Any) -> Any:
        request = schema.SendMessageRequest(messages=messages)
        call = OpenCall(request=request.SerializeToString())
        await batch(client, "SendMessage", self.sending.send, [call])
        (response,) = read(schema.SendMessageResponse, call)
        return response

    async def end(self, client: Client, topic: str, name: str) -> Code:
        request = schema.EndTransactionRequest(transaction_id=name, resolution=schema.COMMIT)
        request.topic.name = topic
        return await self.code(Deciding().end, client, request)


class Ear:
    """A telemetry stream."""

    def __init__(self) -> None:
        self.heard = trio.Event()

    async def send(self, command: bytes) -> bool:
        self.heard.set()
        return True


def test_a_producer_may_do_what_its_token_may(tmp_path: Path) -> None:
    orders = add_token(tmp_path / "data", "orders", "publish:orders")
    payments = add_token(tmp_path / "data", "payments", "publish:payments")

    async def main(url: str) -> None:
        gateway = Gateway(url)
        async with gateway.client(orders) as client, gateway.client(payments) as other:
            assert await gateway.send(client, message("01")) == Code.OK
            assert await gateway.send(other, message("02")) == Code.FORBIDDEN
            assert await gateway.send(other, transaction("03")) == Code.FORBIDDEN
            answer = await gateway.sent(client, transaction("04"), message("05", delivery_timestamp=1 << 42))
            entries = answer.entries
            name, handle = entries[0].transaction_id, entries[1].recall_handle
            assert await gateway.end(other, "orders", name) == Code.FORBIDDEN
            assert await gateway.end(client, "orders", name) == Code.OK
            recall = schema.RecallMessageRequest(recall_handle=handle)
            recall.topic.name = "orders"
            assert await gateway.code(Recalling().recall, other, recall) == Code.FORBIDDEN
            assert await gateway.code(Recalling().recall, client, recall) == Code.OK

    with Daemon(tmp_path / "data") as daemon:
        trio.run(main, daemon.url)


def test_who_may_not_read_what_is_prepared_is_not_asked(tmp_path: Path) -> None:
    publisher = add_token(tmp_path / "data", "publisher", "publish:orders")
    service = add_token(tmp_path / "data", "service", "publish:orders", "consume:orders")

    async def main(url: str) -> None:
        gateway = Gateway(url)
        ears = {name: Ear() for name in ("publisher", "service")}
        for name, token in (("publisher", publisher), ("service", service)):
            known = gateway.registry.heard(Caller(name, token=token))
            known.stream, known.declared = (
                ears[name],
                Declared(schema.PRODUCER, sends_to=frozenset({"orders"})),
            )
        async with gateway.client(publisher) as client, trio.open_nursery() as nursery:
            one = transaction("01", orphaned_transaction_recovery_duration=1)
            assert await gateway.send(client, one) == Code.OK
            nursery.start_soon(Checks(gateway.registry, gateway).run)
            with trio.fail_after(PATIENCE_S):
                await ears["service"].heard.wait()
            assert not ears["publisher"].heard.is_set()
            nursery.cancel_scope.cancel()

    with Daemon(tmp_path / "data") as daemon:
        trio.run(partial(main, daemon.url))
