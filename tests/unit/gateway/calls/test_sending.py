"""SendMessage, with a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clients.in_time import InTime, broker_in_time
from tests.support.native.driver import NOW_MS
from tests.support.rocketmq.gateway_call import OpenCall
from tests.support.rocketmq.gateway_sending import Producer, come_back, cut_off, message, of, transaction
from tickwheel import Message
from tickwheel.errors import TickwheelError
from tickwheel.protocol.limits import LEAST_NUMBER_MS
from tickwheel_gateway.calls.answers import refusal
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import decode_recall
from tickwheel_gateway.wire.messages import Given, Held, received

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@asynccontextmanager
async def producing(
    directory: Path, settings: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Producer, InTime]]:
    """`settings` of the broker, `options` of the gateway."""
    async with broker_in_time(directory, **settings or {}) as there, there.client() as client:
        yield Producer(client, **options), there


async def refused(send: Callable[[], Any]) -> Code:
    """With which code a request is answered."""
    with pytest.raises((Refused, TickwheelError)) as caught:
        await send()
    return refusal(caught.value, "SendMessage").code


async def stored(producer: Producer, topic: str = "orders", group: str = "readers") -> list[Message]:
    """What is delivered now."""
    return list(await producer.client.fetch(topic, group, count=100))


def seen(one: Message, topic: Any) -> Any:
    """As a consumer has it."""
    held = Held(
        id=one.id,
        key=one.key,
        body=one.body,
        headers=one.headers,
        deliver_at_ms=one.deliver_at_ms,
        created_ms=one.created_ms,
        order_key=one.order_key,
    )
    return received(held, Given(topic, "198.51.100.1:8081"))


async def test_a_consumer_has_what_was_sent(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        one = message(
            body=b"\x1f\x8b...",
            properties={"colour": "grün", "empty": "", "rocketmq": "own"},
            tag="a",
            keys=["k1", "k 2"],
            message_group="customer-7",
            body_encoding=schema.GZIP,
            born_timestamp=NOW_MS - 5,
            trace_context="00-ab",
        )
        answer = await producer.send(one)
        assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
        (entry,) = answer.entries
        (found,) = await stored(producer)
        assert (entry.status.code, entry.message_id, entry.transaction_id) == (Code.OK, "01AB", "01AB")
        assert (entry.offset, entry.recall_handle) == (found.id, "")
        back = seen(found, one.topic)
        system, sent = back.system_properties, one.system_properties
        assert (back.topic, back.body) == (one.topic, one.body)
        assert back.user_properties == {**one.user_properties, "__SHARDINGKEY": "customer-7"}
        for name in ("tag", "keys", "message_id", "message_group", "body_encoding", "born_timestamp"):
            assert getattr(system, name) == getattr(sent, name), name
        assert (system.trace_context, system.born_host) == ("00-ab", "10.1.2.3")
        assert system.message_type == schema.FIFO
        assert not system.HasField("delivery_timestamp")


async def test_a_scheduled_message_comes_at_its_time_and_can_be_recalled(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with producing(tmp_path) as (producer, _):
        due_ms = NOW_MS + MINUTE_MS
        answer = await producer.send(message(delivery_timestamp=due_ms))
        handle = decode_recall(answer.entries[0].recall_handle)
        assert (handle.topic, handle.deliver_at_ms, handle.message_id) == (
            "orders",
            due_ms,
            "01AB",
        )
        assert await stored(producer) == []
        await trio.sleep(MINUTE_MS / 1_000)
        (found,) = await stored(producer)
        assert schema.milliseconds(seen(found, None).system_properties.delivery_timestamp) == due_ms


async def test_a_message_whose_time_is_past_comes_now_and_shows_its_time(
    tmp_path: Path, autojump_clock: Any
) -> None:
    past = (0, LEAST_NUMBER_MS, NOW_MS - 1, NOW_MS)
    async with producing(tmp_path) as (producer, _):
        for number, due_ms in enumerate(past):
            answer = await producer.send(message(f"0{number}", delivery_timestamp=due_ms))
            assert answer.entries[0].recall_handle == ""
        found = [seen(one, None).system_properties for one in await stored(producer)]
        assert all(one.HasField("delivery_timestamp") for one in found)
        assert [schema.milliseconds(one.delivery_timestamp) for one in found] == list(past)
        assert [one.message_type for one in found] == [schema.DELAY] * len(past)


async def test_the_higher_priority_goes_first(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        for number, priority in enumerate((0, 7, 100)):
            await producer.send(message(f"0{number}", priority=priority))
        found = await stored(producer)
        assert [one.priority for one in found] == [0, 43, 50]
        system = [seen(one, None).system_properties for one in found]
        assert [(one.priority, one.message_type) for one in system] == [
            (100, schema.PRIORITY),
            (7, schema.PRIORITY),
            (0, schema.PRIORITY),
        ]


async def test_a_message_is_stored_once(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        first = await producer.send(message())
        again = await producer.send(message(body=b"another"))
        assert again == first
        other = Producer(producer.client, caller=of("another@2@0"))
        assert (await other.send(message())).entries[0].offset != first.entries[0].offset
        assert len(await stored(producer)) == 2


async def test_several_keep_their_order(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        await producer.send(message("02"))
        due_ms = NOW_MS + HOUR_MS
        answer = await producer.send(
            message("01", b"1"),
            message("02", b"2"),
            message("03", b"3", priority=3),
            message("04", b"4", message_group="g", delivery_timestamp=due_ms),
            message("05", b"5", message_group="g"),
            transaction("06", body=b"6"),
        )
        assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
        assert [entry.message_id for entry in answer.entries] == ["01", "02", "03", "04", "05", "06"]
        offsets = [entry.offset for entry in answer.entries]
        assert sorted(offsets[:1] + offsets[2:]) == offsets[:1] + offsets[2:]
        assert offsets[1] == 1  # the one of before
        assert [bool(entry.recall_handle) for entry in answer.entries] == [0, 0, 0, 1, 0, 0]
        found = {one.id: one for one in await stored(producer)}
        assert [found[offset].body for offset in (offsets[0], offsets[2])] == [b"1", b"3"]
        assert found[offsets[2]].priority == 47
        assert answer.entries[5].transaction_id.startswith("06.")
        assert producer.registry.heard(producer.caller).transactions == {"orders"}


def twice(one: Any) -> list[Any]:
    """A good message, and this one."""
    return [message("0A"), one]


REFUSED = [
    ([], Code.MESSAGE_CORRUPTED),
    ([message("0A")] * 4_097, Code.BAD_REQUEST),
    ([message(topic=" ")], Code.ILLEGAL_TOPIC),
    ([message(topic="a.b")], Code.ILLEGAL_TOPIC),
    ([message(topic="t" * 115)], Code.ILLEGAL_TOPIC),
    (twice(message(topic="other")), Code.MESSAGE_CORRUPTED),
    (twice(message(" ", b"")), Code.ILLEGAL_MESSAGE_ID),
    (twice(message("i" * 247)), Code.ILLEGAL_MESSAGE_ID),
    (twice(message(body=b"", tag=" ")), Code.MESSAGE_BODY_EMPTY),
    (twice(message(body=bytes(4097), tag=" ")), Code.MESSAGE_BODY_TOO_LARGE),
    (twice(message(message_type=schema.LITE)), Code.NOT_IMPLEMENTED),
    (twice(message(tag="a|b", keys=[" "])), Code.ILLEGAL_MESSAGE_TAG),
    (twice(message(keys=["a", "\x7f"], properties={"KEYS": ""})), Code.ILLEGAL_MESSAGE_KEY),
    (twice(message(properties={"KEYS": ""}, message_group=" ")), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (twice(message(properties={"a": "b" * 16_384})), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (twice(message(message_group="g" * 64)), Code.ILLEGAL_MESSAGE_GROUP),
    (twice(message(delivery_timestamp=NOW_MS + 48 * HOUR_MS)), Code.ILLEGAL_DELIVERY_TIME),
    (twice(message(priority=-1)), Code.BAD_REQUEST),
    (twice(transaction(orphaned_transaction_recovery_duration=HOUR_MS + 1)), Code.BAD_REQUEST),
]


async def test_one_bad_message_refuses_all(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path, {"max_body_bytes": "4KiB"}, max_delay_ms=24 * HOUR_MS) as (producer, _):
        found = [await refused(partial(producer.send, *messages)) for messages, _ in REFUSED]
        assert found == [code for _, code in REFUSED]
        assert await producer.client.topics() == []


@pytest.mark.parametrize("others", [[], [message("0A")]], ids=["alone", "with another"])
async def test_a_time_beyond_all_times(tmp_path: Path, autojump_clock: Any, others: list[Any]) -> None:
    late = message(delivery_timestamp=300_000_000_000_000)
    async with producing(tmp_path) as (producer, _):
        assert await refused(partial(producer.send, *others, late)) == Code.ILLEGAL_DELIVERY_TIME
        assert await producer.client.topics() == []


@pytest.mark.parametrize("one", [message(), transaction()], ids=["message", "transaction"])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_topic_that_may_not_be_made(
    tmp_path: Path, autojump_clock: Any, one: Any, count: int
) -> None:
    async with producing(tmp_path, {"auto_create_topics": "false"}) as (producer, _):
        if count == 1:
            assert await refused(partial(producer.send, one)) == Code.TOPIC_NOT_FOUND
        else:
            answer = await producer.send(one, message("0A"))
            assert [entry.status.code for entry in answer.entries] == [Code.TOPIC_NOT_FOUND] * 2
            assert answer.status.code == Code.TOPIC_NOT_FOUND
        assert producer.registry.heard(producer.caller).transactions == set()
        await producer.client.create_topic("orders")
        assert (await producer.send(one)).status.code == Code.OK


async def test_what_only_the_broker_refuses_is_said_of_each(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        await producer.client.create_topic("orders", max_body_bytes=100)
        answer = await producer.send(message("01"), message("02", bytes(101)))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.MESSAGE_BODY_TOO_LARGE]
        assert answer.entries[1].offset == 0
        assert await refused(partial(producer.send, message("03", bytes(101)))) == Code.MESSAGE_BODY_TOO_LARGE


@pytest.mark.parametrize("one", [message(), transaction()], ids=["message", "transaction"])
async def test_without_a_broker_there_is_an_answer_before_the_deadline(
    tmp_path: Path, autojump_clock: Any, one: Any
) -> None:
    async with producing(tmp_path) as (producer, there):
        cut_off(there)
        with trio.fail_after(2.9):
            call = OpenCall(deadline=trio.current_time() + 3)
            code = await refused(partial(producer.send, one, call=call))
        assert code == Code.INTERNAL_SERVER_ERROR


async def test_a_broker_that_is_silent(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, there):
        await producer.send(message("01"))
        for connection in there.network.connections:
            connection.to_server.is_silent = True
        call = OpenCall(deadline=trio.current_time() + 3)
        assert await refused(partial(producer.send, message("02"), call=call)) == Code.PROXY_TIMEOUT


async def test_a_broker_that_comes_back_has_stored_it_once(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, there):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, message())
            await trio.sleep(0.0005)
            there.network.cut_one()
        assert (await producer.send(message())).entries[0].offset == 1
        assert len(await stored(producer)) == 1


async def test_more_than_may_wait_is_refused_at_once(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path, max_pending_bytes=1_000) as (producer, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, message("01", bytes(2_000)))
            await trio.testing.wait_all_tasks_blocked()
            assert await refused(partial(producer.send, message("02"))) == Code.TOO_MANY_REQUESTS
        assert (await producer.send(message("02"))).status.code == Code.OK


async def test_a_producer_that_does_not_wait_leaves_nothing_behind(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with producing(tmp_path, max_pending_bytes=1_000) as (producer, there):
        cut_off(there)
        with trio.move_on_after(1) as scope:
            await producer.send(message("01", bytes(2_000)))
        assert scope.cancelled_caught
        come_back(there)
        assert (await producer.send(message("02", bytes(2_000)))).status.code == Code.OK
        assert [one.body for one in await stored(producer)] == [bytes(2_000)]


# -- transactions --------------------------------------------------------------------------------------------------


async def test_a_transaction_waits_for_its_decision(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        answer = await producer.send(
            transaction(properties={"a": "b"}, delivery_timestamp=NOW_MS + MINUTE_MS)
        )
        (entry,) = answer.entries
        assert (entry.status.code, entry.message_id, entry.recall_handle) == (Code.OK, "01AB", "")
        assert entry.transaction_id.startswith("01AB.")
        assert producer.registry.heard(producer.caller).transactions == {"orders"}
        assert await stored(producer) == []
        ((result, made_id),) = await producer.client.commit_prepared(
            topic="orders", keys=[entry.transaction_id]
        )
        await trio.sleep(MINUTE_MS / 1_000)
        (found,) = await stored(producer)
        assert (result, made_id) == ("committed", found.id)
        back = seen(found, None)
        assert back.user_properties == {"a": "b", "__transactionId__": entry.transaction_id}
        assert back.system_properties.message_type == schema.TRANSACTION


async def test_a_transaction_that_is_sent_again_is_the_same(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path) as (producer, _):
        first = await producer.send(transaction())
        again = await producer.send(transaction())
        assert again == first
        assert first.entries[0].offset > 0
        key = first.entries[0].transaction_id
        assert await producer.client.rollback_prepared(topic="orders", keys=[key]) == ["rolled_back"]
        assert await producer.client.rollback_prepared(topic="orders", keys=[key]) == ["not_found"]


async def test_when_a_transaction_is_asked_after(tmp_path: Path, autojump_clock: Any) -> None:
    async with producing(tmp_path, {"check_after": "1m"}) as (producer, _):
        began_s = trio.current_time()
        await producer.send(transaction(orphaned_transaction_recovery_duration=20_000))
        async with producer.client.check_prepared("orders") as checks:
            await checks.receive(timeout=100)
        assert 20 <= trio.current_time() - began_s < 21
