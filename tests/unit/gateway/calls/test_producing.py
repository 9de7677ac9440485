"""The calls of a producer as they stand on the wire, one after another, with a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clients.in_time import broker_in_time
from tests.support.native.driver import NOW_MS
from tests.support.rocketmq.gateway_call import OpenCall
from tests.support.rocketmq.gateway_sending import Producer, message, transaction
from tests.support.rocketmq.waited import waited
from tickwheel import Client
from tickwheel.errors import NotConnected
from tickwheel_gateway.calls.deciding import Deciding
from tickwheel_gateway.calls.recalling import Recalling
from tickwheel_gateway.calls.sending import Sending
from tickwheel_gateway.calls.service import Service
from tickwheel_gateway.clients.caller import MAX_CLIENT_ID
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.transport.call import AnyMethod, BatchMethod
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused


class Tallied:
    """What was counted."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def called(self, name: str, code: int, duration_s: float, times: int = 1) -> None:
        assert duration_s >= 0
        self.calls += [(name, code)] * times


class One:
    """The broker's one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @waited
    async def client(self, token: str, address: str = "") -> AsyncIterator[Client]:
        yield self._client


class Line:
    """To the handlers, by the names of the calls."""

    def __init__(self, client: Client) -> None:
        producer = Producer(client)
        self.tallied = Tallied()
        service = Service(lambda headers: "", One(client), producer.registry, self.tallied)
        self._methods = dict[str, AnyMethod](
            [
                service.batched("SendMessage", producer.sending.send),
                service.unary("EndTransaction", Deciding().end),
                service.unary("RecallMessage", Recalling().recall),
            ]
        )

    async def call(self, name: str, request: Any) -> Any:
        call = OpenCall(request=request.SerializeToString())
        method = self._methods[schema.SERVICE + name]
        await (method.handler([call]) if isinstance(method, BatchMethod) else method.handler(call))
        (reply,) = call.replies
        return getattr(schema, f"{name}Response").FromString(reply)

    async def send(self, *messages: Any) -> Any:
        return await self.call("SendMessage", schema.SendMessageRequest(messages=messages))


async def test_a_refusal_says_which_rule(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path, auto_create_topics="false") as there, there.client() as client:
        line = Line(client)
        answer = await line.send(message(tag="a|b"))
        assert (answer.status.code, answer.status.message) == (
            Code.ILLEGAL_MESSAGE_TAG,
            "tag cannot contain '|'",
        )
        assert list(answer.entries) == []
        answer = await line.send(message())
        assert answer.status.code == Code.TOPIC_NOT_FOUND
        assert answer.status.message.startswith("unknown_topic: ")
        assert line.tallied.calls == [
            ("SendMessage", Code.ILLEGAL_MESSAGE_TAG),
            ("SendMessage", Code.TOPIC_NOT_FOUND),
        ]


async def test_a_transaction_and_a_recall(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        line = Line(client)
        one, later = transaction("01"), message("02", delivery_timestamp=NOW_MS + 60_000)
        answer = await line.send(one, later)
        assert [entry.message_id for entry in answer.entries] == ["01", "02"]
        end = schema.EndTransactionRequest(
            transaction_id=answer.entries[0].transaction_id, resolution=schema.COMMIT, topic=one.topic
        )
        assert (await line.call("EndTransaction", end)).status.code == Code.OK
        end.resolution = schema.ROLLBACK
        status = (await line.call("EndTransaction", end)).status
        assert status.code == Code.INTERNAL_SERVER_ERROR
        assert status.message == "the message cannot be rolled back: it was committed before"
        recall = schema.RecallMessageRequest(recall_handle=answer.entries[1].recall_handle, topic=one.topic)
        recalled = await line.call("RecallMessage", recall)
        assert (recalled.status.code, recalled.message_id) == (Code.OK, "02")
        assert [one.body for one in await client.fetch("orders", "readers", count=10)] == [b"{}"]


class Away:
    """A broker that does not let a client in for a while."""

    @waited
    async def client(self, token: str, address: str = "") -> AsyncIterator[Client]:
        await trio.sleep(5)
        raise NotConnected
        yield


async def test_a_broker_that_is_not_there_is_told_before_the_deadline(autojump_clock: Any) -> None:
    tallied = Tallied()
    service = Service(lambda headers: "", Away(), Registry(), tallied)
    _, method = service.batched("SendMessage", Sending(Config(), Registry()).send)
    for left_s in (3.0, 0.001):
        deadline = trio.current_time() + left_s
        call = OpenCall(request=schema.SendMessageRequest().SerializeToString(), deadline=deadline)
        await method.handler([call])
        status = schema.SendMessageResponse.FromString(call.replies[0]).status
        assert (status.code, status.message) == (
            Code.INTERNAL_SERVER_ERROR,
            "there is no connection to the broker",
        )
        assert trio.current_time() < deadline
    assert tallied.calls == [("SendMessage", Code.INTERNAL_SERVER_ERROR)] * 2


async def test_a_client_whose_name_is_too_long(tmp_path: Path, autojump_clock: Any) -> None:
    service = Service(lambda headers: "", Away(), Registry(), Tallied())
    for length, code in (
        (MAX_CLIENT_ID, None),
        (MAX_CLIENT_ID + 1, Code.BAD_REQUEST),
        (0, Code.CLIENT_ID_REQUIRED),
    ):
        call = OpenCall(metadata={"x-mq-client-id": "x" * length})
        if code is None:
            assert len(service.caller(call).client_id) == length
            continue
        with pytest.raises(Refused) as caught:
            service.caller(call)
        assert caught.value.code == code
