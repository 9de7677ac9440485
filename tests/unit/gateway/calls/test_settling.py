"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue, in simulated time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.clients.cancelling import TrioCanceller
from tests.support.rocketmq.gateway_call import asked
from tests.support.rocketmq.gateway_consumer import (
    Consumer,
    bodies,
    consuming,
    handle_of,
    handles,
    now_ms,
    until,
)
from tickwheel_gateway.config import Config
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import Receipt, decode_receipt, encode_receipt

OF_NO_MESSAGE = encode_receipt(Receipt(1, 2**40, 1, 0))


async def one(consumer: Consumer, *, auto_renew: bool = False, invisible_s: float = 30) -> str:
    """The handle of a message that was just sent and received."""
    await consumer.send(b"x%d" % now_ms())
    (message,) = await consumer.receive(auto_renew=auto_renew, invisible_s=invisible_s)
    return handle_of(message)


async def refused(consumer: Consumer, handle: str, seconds: float, code: Code) -> str:
    """A change is; why."""
    with pytest.raises(Refused) as why:
        await consumer.change(handle, seconds)
    assert why.value.code == code
    return why.value.text


# -- acks ----------------------------------------------------------------------------------------------------------


async def test_each_handle_has_its_own_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        expired = await one(consumer, invisible_s=10)
        good = await one(consumer)
        other = await one(consumer, auto_renew=True)
        await trio.sleep(11)
        assert await consumer.ack(expired, good) == (30_000, [40_013, 20_000])
        assert await consumer.ack(good) == (20_000, [20_000]), "twice does no harm"
        assert await consumer.ack(other, good) == (20_000, [20_000, 20_000])
        wrong = (
            "",
            " ",
            "nonsense",
            OF_NO_MESSAGE,
            "tw1.99.1.1.0.1",
            f"tw1.{2**40}.1.1.0.1",
            f"tw1.1.{2**63}.1.0.1",
        )
        assert await consumer.ack(*wrong) == (40_013, [40_013] * len(wrong))
        (again,) = await consumer.receive()
        assert again.system_properties.delivery_attempt == 2, "the ack of an expired handle does not count"


async def test_of_two_holders_of_one_message_one_has_acked_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The receipt of the earlier one has not expired by its own time: it was renewed by the gateway."""
    async with consuming(tmp_path) as consumer:
        earlier = decode_receipt(await one(consumer, invisible_s=10))
        await trio.sleep(11)
        (message,) = await consumer.receive()
        later = handle_of(message)
        earlier_handle = encode_receipt(earlier._replace(until_ms=now_ms() + 60_000))
        assert decode_receipt(later).epoch == earlier.epoch + 1
        assert await consumer.ack(later) == (20_000, [20_000])
        assert await consumer.ack(earlier_handle) == (40_013, [40_013])
        assert await consumer.ack(earlier_handle, later) == (30_000, [40_013, 20_000])


async def test_an_ack_of_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for names, code in (
            ({}, Code.BAD_REQUEST),
            ({"topic": ""}, Code.ILLEGAL_TOPIC),
            ({"group": " "}, Code.ILLEGAL_CONSUMER_GROUP),
        ):
            with pytest.raises(Refused) as why:
                await consumer.ack(**names)
            assert why.value.code == code
        with pytest.raises(Refused, match="more than 4096"):
            await consumer.ack(*["nonsense"] * 4_097)


async def test_what_is_said_of_an_expired_handle(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        handle = await one(consumer, invisible_s=10)
        await trio.sleep(10)
        request = schema.AckMessageRequest()
        request.topic.name, request.group.name = "t", "g"
        request.entries.add(message_id="x", receipt_handle=handle)
        response = await consumer.acked(request)
        assert response.entries[0].status.message == "receipt handle is expired"
        assert response.status.message == "INVALID_RECEIPT_HANDLE: receipt handle is expired"
        assert await refused(consumer, handle, 30, Code.INVALID_RECEIPT_HANDLE) == "receipt handle is expired"


async def test_acks_of_many_calls_need_few_frames(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for number in range(64):
            await consumer.send(b"%d" % number)
        found = [*handles(await consumer.receive()), *handles(await consumer.receive(auto_renew=True))]
        assert len(found) == 64
        frames = _count_acks(consumer)
        async with trio.open_nursery() as nursery:
            for handle in found:
                nursery.start_soon(_acked, consumer, handle)
        assert sum(frames) == 64
        assert len(frames) <= 2
        assert (await consumer.client.group("t", "g")).backlog == 0
        assert len(consumer.renewing) == 0


async def _acked(consumer: Consumer, handle: str) -> None:
    assert await consumer.ack(handle) == (20_000, [20_000])


def _count_acks(consumer: Consumer) -> list[int]:
    """How many receipts each request has, from now on."""
    frames: list[int] = []
    real = consumer.client.ack

    async def counted(group_id: int, receipts: list[tuple[int, int]]) -> object:
        frames.append(len(receipts))
        return await real(group_id, receipts)

    consumer.client.ack = counted  # type: ignore[method-assign,assignment]
    return frames


async def test_an_ack_that_the_broker_cannot_take(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        handle = await one(consumer, auto_renew=True)
        async with consumer.there.client() as consumer.client:
            pass
        assert await consumer.ack(handle, "nonsense") == (30_000, [50_001, 40_013])
        assert len(consumer.renewing) == 1, "it may come again, and until then the lease is kept"


async def test_calls_that_are_cancelled_at_any_step_may_be_made_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    canceller = TrioCanceller()
    async with consuming(tmp_path) as consumer:
        trio.lowlevel.add_instrument(canceller)
        forwarded = 0
        for settle in (consumer.ack, partial(consumer.change, invisible_s=20), consumer.forward):
            is_cancelled, step = True, 0
            while is_cancelled:
                step += 1
                handle = await one(consumer)
                is_cancelled = await canceller.attempt(partial(settle, handle), step)
                again = await settle(handle)
                forwarded += settle == consumer.forward
                if isinstance(again, str):
                    again = await consumer.ack(again)
                assert again in (None, (20_000, [20_000]))
            assert step > 5
        trio.lowlevel.remove_instrument(canceller)
        assert (await consumer.client.group("t", "g")).backlog == 0
        dead: list[int] = []
        while len(found := await consumer.client.fetch("rmq.DLQ.g", "undertaker", count=100)):
            dead += found.ids
        assert len(dead) == forwarded


# -- changes -------------------------------------------------------------------------------------------------------


async def test_an_old_handle_is_good_until_its_own_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        first = await one(consumer, invisible_s=10)
        second = await consumer.change(first, 20)
        await trio.sleep(8)
        third = await consumer.change(first, 30)
        assert abs(decode_receipt(third).until_ms - now_ms() - 30_000) < 20
        await trio.sleep(3)
        await refused(consumer, first, 30, Code.INVALID_RECEIPT_HANDLE)
        assert await consumer.ack(first) == (40_013, [40_013])
        assert bodies(await consumer.receive(wait_s=0, group="another"))
        with pytest.raises(Refused, match="no new message"):
            await consumer.receive(wait_s=5)
        assert await consumer.ack(second) == (20_000, [20_000])
        assert await consumer.ack(third) == (20_000, [20_000])
        await refused(consumer, third, 10, Code.INVALID_RECEIPT_HANDLE)


async def test_a_change_is_when_the_message_comes_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for seconds in (0, 3, 15):
            handle = await one(consumer)
            began = trio.current_time()
            new = await consumer.change(handle, seconds)
            (message,) = await consumer.receive(wait_s=20)
            assert abs(trio.current_time() - began - seconds) < 0.05
            assert message.system_properties.delivery_attempt == 2
            assert await consumer.ack(new) == (40_013, [40_013])
            assert await consumer.ack(handle_of(message)) == (20_000, [20_000])


async def test_a_change_of_a_push_consumer_is_a_nack(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for asked_s, waits_s in ((0, 1), (0.005, 1), (7, 7)):
            handle = await one(consumer, auto_renew=True)
            began = trio.current_time()
            new = await consumer.change(handle, asked_s)
            assert len(consumer.renewing) == 0
            await refused(consumer, handle, 5, Code.INVALID_RECEIPT_HANDLE)
            await refused(consumer, new, 5, Code.INVALID_RECEIPT_HANDLE)
            (message,) = await consumer.receive(wait_s=20)
            assert abs(trio.current_time() - began - waits_s) < 0.05
            assert message.system_properties.delivery_attempt == 2
            assert await consumer.ack(handle_of(message)) == (20_000, [20_000])


async def test_changes_that_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        handle = await one(consumer)
        assert "too small" in await refused(consumer, handle, -1, Code.ILLEGAL_INVISIBLE_TIME)
        assert "too large" in await refused(consumer, handle, 43_201, Code.ILLEGAL_INVISIBLE_TIME)
        for wrong in ("", "nonsense", OF_NO_MESSAGE, "tw1.99.1.1.0.1", "tw1.99.1.1.1999999999999.1"):
            await refused(consumer, wrong, 10, Code.INVALID_RECEIPT_HANDLE)
        with pytest.raises(Refused, match="blank") as why:
            await consumer.change(handle, 10, topic="")
        assert why.value.code == Code.ILLEGAL_TOPIC


# -- dead letters --------------------------------------------------------------------------------------------------


async def test_a_message_is_forwarded_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        await consumer.send(b"bad", message_id="01AB", message_group="m", keys=["k"])
        (message,) = await consumer.receive(auto_renew=True)
        handle = handle_of(message)
        await consumer.forward(handle)
        await consumer.forward(handle)
        assert len(consumer.renewing) == 0
        (dead,) = await consumer.receive(topic="%DLQ%g", group="undertaker")
        system = dead.system_properties
        assert (dead.body, system.message_id, list(system.keys)) == (b"bad", "01AB", ["k"])
        assert system.message_group == "m"
        assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("t", "01AB")
        assert (await consumer.client.group("t", "g")).backlog == 0


async def test_what_is_not_forwarded(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path, Config(max_attempts=1)) as consumer:
        acked = await one(consumer)
        assert await consumer.ack(acked) == (20_000, [20_000])
        expired = await one(consumer, invisible_s=10)
        await trio.sleep(10)
        of_group = str(decode_receipt(acked).group_id)
        no_group = acked.replace(f"tw1.{of_group}.", "tw1.99.")
        for handle in (acked, expired, no_group, "", "nonsense", OF_NO_MESSAGE):
            with pytest.raises(Refused) as why:
                await consumer.forward(handle)
            assert why.value.code == Code.INVALID_RECEIPT_HANDLE
        assert all(
            topic.name != "rmq.DLQ.g" or not topic.messages for topic in await consumer.client.topics()
        )


async def test_what_the_broker_does_not_answer_is_told_before_the_deadline(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        handle = await one(consumer, auto_renew=True)

        async def never(*_: Any, **__: Any) -> Any:
            await trio.sleep_forever()

        real = {name: getattr(consumer.client, name) for name in ("ack", "nack", "message")}
        for name in real:
            setattr(consumer.client, name, never)
        requests = {
            "ack": schema.AckMessageRequest(),
            "change": schema.ChangeInvisibleDurationRequest(receipt_handle=handle),
            "forward": schema.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle),
        }
        requests["ack"].entries.add(receipt_handle=handle)
        for name, request in requests.items():
            request.topic.name, request.group.name = "t", "g"
            call = until(3)
            if name == "ack":
                ask = partial(consumer.acked, request, call)
            else:
                ask = partial(getattr(consumer.settling, name), asked(consumer.client, call), request)
            with pytest.raises(Refused) as caught:
                await ask()
            assert caught.value.code == Code.PROXY_TIMEOUT
            assert trio.current_time() < call.deadline
        for name, method in real.items():
            setattr(consumer.client, name, method)
        assert await consumer.ack(handle) == (20_000, [20_000])
