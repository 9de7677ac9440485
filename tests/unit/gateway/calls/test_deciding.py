"""EndTransaction, with a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clients.in_time import broker_in_time
from tests.support.rocketmq.gateway_call import OpenCall, asked
from tests.support.rocketmq.gateway_sending import Producer, come_back, cut_off, of, transaction
from tickwheel import Client
from tickwheel.errors import TickwheelError
from tickwheel_gateway.calls.answers import refusal
from tickwheel_gateway.calls.deciding import Deciding
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused

UNKNOWN_YET = 0


async def end(
    client: Client,
    transaction_id: str,
    resolution: int,
    topic: str = "orders",
    call: OpenCall | None = None,
    **fields: Any,
) -> Code:
    """The code of the answer."""
    request = schema.EndTransactionRequest(transaction_id=transaction_id, resolution=resolution, **fields)
    request.topic.name = topic
    try:
        response = await Deciding().end(asked(client, call), request)
    except (Refused, TickwheelError) as error:
        return refusal(error, "EndTransaction").code
    return Code(response.status.code)


async def prepared(client: Client, message_id: str = "01AB") -> str:
    """The id of a transaction that waits."""
    answer = await Producer(client).send(transaction(message_id))
    return str(answer.entries[0].transaction_id)


async def bodies(client: Client) -> int:
    """How many messages are delivered."""
    return len(await client.fetch("orders", "readers", count=10))


async def test_committed_and_nothing_else(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        name = await prepared(client)
        assert await bodies(client) == 0
        assert await end(client, name, schema.COMMIT) == Code.OK
        assert await bodies(client) == 1
        assert await end(client, name, schema.COMMIT) == Code.OK  # as often as it likes
        assert await end(client, name, schema.ROLLBACK) == Code.INTERNAL_SERVER_ERROR
        assert await bodies(client) == 0


async def test_rolled_back_and_nothing_else(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        name = await prepared(client)
        assert await end(client, name, schema.ROLLBACK) == Code.OK
        # The broker forgets the keys of what was rolled back.
        assert await end(client, name, schema.ROLLBACK) == Code.INTERNAL_SERVER_ERROR
        assert await end(client, name, schema.COMMIT) == Code.INTERNAL_SERVER_ERROR
        assert await bodies(client) == 0


async def test_who_does_not_know_yet_changes_nothing(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        name = await prepared(client)
        for resolution in (UNKNOWN_YET, 17):
            assert await end(client, name, resolution) == Code.OK
        assert await bodies(client) == 0
        assert await end(client, name, schema.COMMIT, source=2) == Code.OK
        assert await bodies(client) == 1


async def test_another_client_decides(tmp_path: Path, autojump_clock: Any) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        names = [
            (await Producer(client, caller=of(f"host@{number}@0")).send(transaction()))
            .entries[0]
            .transaction_id
            for number in range(2)
        ]
        assert await end(client, names[1], schema.COMMIT) == Code.OK
        ((result, _),) = await client.commit_prepared(topic="orders", keys=[names[0]])
        assert result == "committed"


@pytest.mark.parametrize("resolution", [UNKNOWN_YET, schema.COMMIT, schema.ROLLBACK])
async def test_what_is_no_transaction(tmp_path: Path, autojump_clock: Any, resolution: int) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        assert await end(client, "a", resolution, topic="") == Code.ILLEGAL_TOPIC
        assert await end(client, " ", resolution) == Code.INVALID_TRANSACTION_ID
        assert await end(client, "a" * 256, resolution) == Code.INVALID_TRANSACTION_ID
        unknown = Code.INTERNAL_SERVER_ERROR if resolution else Code.OK
        assert await end(client, "never", resolution) == unknown
        name = await prepared(client)
        assert await end(client, name, resolution, topic="another") == unknown
        assert await client.rollback_prepared(topic="orders", keys=[name]) == ["rolled_back"]


async def test_without_a_broker_there_is_an_answer_before_the_deadline(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        name = await prepared(client)
        cut_off(there)
        with trio.fail_after(2.9):
            call = OpenCall(deadline=trio.current_time() + 3)
            assert await end(client, name, schema.COMMIT, call=call) == Code.INTERNAL_SERVER_ERROR
        come_back(there)
        assert await end(client, name, schema.COMMIT) == Code.OK
