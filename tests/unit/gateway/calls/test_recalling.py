"""RecallMessage, with a real broker."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import trio

from tests.support.clients.in_time import broker_in_time
from tests.support.native.driver import NOW_MS
from tests.support.rocketmq.gateway_call import OpenCall, asked
from tests.support.rocketmq.gateway_sending import Producer, cut_off, message
from tickwheel import Client
from tickwheel.errors import TickwheelError
from tickwheel_gateway.calls.answers import refusal
from tickwheel_gateway.calls.recalling import Recalling
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import Recall, encode_recall

DELAY_MS = 10_000


async def recall(
    client: Client, handle: str, topic: str = "orders", call: OpenCall | None = None
) -> tuple[Code, str]:
    """The code of the answer, and the message id, or a text that says why."""
    request = schema.RecallMessageRequest(recall_handle=handle)
    request.topic.name = topic
    try:
        response = await Recalling().recall(asked(client, call), request)
    except (Refused, TickwheelError) as error:
        refused = refusal(error, "RecallMessage")
        return refused.code, refused.text
    return Code(response.status.code), response.message_id


async def scheduled(client: Client, message_id: str = "01.A B") -> str:
    """The handle of a message that is due in a while."""
    answer = await Producer(client).send(message(message_id, delivery_timestamp=NOW_MS + DELAY_MS))
    return str(answer.entries[0].recall_handle)


async def test_before_its_time(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        handle = await scheduled(client)
        assert await recall(client, handle) == (Code.OK, "01.A B")
        await trio.sleep(DELAY_MS / 1_000)
        assert len(await client.fetch("orders", "readers")) == 0
        assert await recall(client, handle) == (Code.OK, "01.A B")


async def test_after_its_time(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        handle = await scheduled(client)
        await trio.sleep(DELAY_MS / 1_000)
        fetched = await client.fetch("orders", "readers")
        code, why = await recall(client, handle)
        assert (code, why) == (Code.BAD_REQUEST, "the message cannot be recalled: it was delivered already")
        await fetched.ack(confirm=True)
        code, why = await recall(client, handle)
        assert (code, why) == (Code.BAD_REQUEST, "the message cannot be recalled: it was consumed already")


async def test_when_it_is_due_and_was_given_to_no_consumer(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        handle = await scheduled(client)
        await trio.sleep(DELAY_MS / 1_000)
        assert await recall(client, handle) == (Code.OK, "01.A B")
        assert len(await client.fetch("orders", "readers")) == 0


async def test_what_cannot_be_recalled(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        handle = await scheduled(client)
        garbage = base64.urlsafe_b64encode(b"v1 orders another 1 01AB").decode()
        for bad in ("", "?", "AAAA", garbage, handle[:-1]):
            assert (await recall(client, bad))[0] == Code.BAD_REQUEST, bad
        assert (await recall(client, handle, topic="another"))[0] == Code.BAD_REQUEST
        assert (await recall(client, handle, topic=" "))[0] == Code.ILLEGAL_TOPIC
        never = encode_recall(Recall("orders", 1, 1_000_000, "never"))
        assert (await recall(client, never))[0] == Code.NOT_FOUND
        elsewhere = encode_recall(Recall("another", 1, 1_000_000, "never"))
        assert (await recall(client, elsewhere, topic="another"))[0] == Code.NOT_FOUND
        assert await recall(client, handle) == (Code.OK, "01.A B")


async def test_without_a_broker_there_is_an_answer_before_the_deadline(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        handle = await scheduled(client)
        cut_off(there)
        with trio.fail_after(2.9):
            code, _ = await recall(client, handle, call=OpenCall(deadline=trio.current_time() + 3))
        assert code == Code.INTERNAL_SERVER_ERROR
