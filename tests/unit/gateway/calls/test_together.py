"""Calls of SendMessage and AckMessage that arrive together: each has its own answer, and they keep their order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.clients.cancelling import LIMIT, TrioCanceller
from tests.support.clients.in_time import InTime, broker_in_time
from tests.support.rocketmq.gateway_call import OpenCall, batch, read
from tests.support.rocketmq.gateway_consumer import Consumer, consuming, handles
from tests.support.rocketmq.gateway_sending import Producer, come_back, cut_off, message, transaction
from tests.support.rocketmq.waited import waited
from tickwheel import Client
from tickwheel.errors import BadToken
from tickwheel_gateway.calls.service import Service
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.tally import Tally
from tickwheel_gateway.transport.call import BatchMethod, Status
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused

MINUTE_MS = 60_000


@asynccontextmanager
async def producing(directory: Path, **options: Any) -> AsyncIterator[tuple[Producer, InTime]]:
    async with broker_in_time(directory) as there, there.client() as client:
        yield Producer(client, **options), there


def call_of(*messages: Any, left_s: float = 1_000) -> OpenCall:
    request = schema.SendMessageRequest(messages=messages)
    return OpenCall(request=request.SerializeToString(), deadline=trio.current_time() + left_s)


async def send(producer: Producer, calls: Sequence[OpenCall]) -> None:
    await batch(producer.client, "SendMessage", producer.sending.send, calls, producer.caller)


def answer_to(call: OpenCall) -> Any:
    (answer,) = read(schema.SendMessageResponse, call)
    return answer


def codes(calls: Sequence[OpenCall]) -> list[int]:
    return [answer_to(call).status.code for call in calls]


def offset(call: OpenCall) -> int:
    (entry,) = answer_to(call).entries
    return int(entry.offset)


async def stored(producer: Producer, topic: str = "orders") -> list[bytes]:
    return [one.body for one in await producer.client.fetch(topic, "readers", count=200)]


async def test_a_bad_one_is_answered_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with producing(tmp_path) as (producer, _):
        await producer.client.create_topic("small", max_body_bytes=100)
        calls = [
            call_of(message("01", b"1")),
            call_of(message("02", b"")),
            call_of(message("03", b"3", topic="small")),
            call_of(message("04", bytes(101), topic="small")),
            call_of(message("05", b"5", tag="a|b")),
            call_of(message("06", b"6", topic="a.b")),
            call_of(message("07", b"7", topic="other")),
            OpenCall(request=b"\xff"),
            call_of(),
            call_of(message("08", b"8"), message("09", b"9")),
            call_of(transaction("0A")),
            call_of(message("0B", b"11", properties={"rocketmq": "own"})),
            call_of(message("0C", b"12")),
        ]
        await send(producer, calls)
        garbage = calls.pop(7)
        assert (garbage.failed, garbage.replies) == (
            (Status.INTERNAL, "the request is none of this method"),
            [],
        )
        refused = {
            1: Code.MESSAGE_BODY_EMPTY,
            3: Code.MESSAGE_BODY_TOO_LARGE,
            4: Code.ILLEGAL_MESSAGE_TAG,
            5: Code.ILLEGAL_TOPIC,
            7: Code.MESSAGE_CORRUPTED,
        }
        assert codes(calls) == [refused.get(place, Code.OK) for place in range(len(calls))]
        assert answer_to(calls[4]).status.message == "tag cannot contain '|'"
        assert [len(answer_to(call).entries) for call in calls] == [1, 0, 1, 0, 0, 0, 1, 0, 2, 1, 1, 1]
        assert sorted(await stored(producer)) == [b"1", b"11", b"12", b"8", b"9"]
        assert (await stored(producer, "small"), await stored(producer, "other")) == ([b"3"], [b"7"])


async def test_the_same_message_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with producing(tmp_path) as (producer, _):
        calls = [call_of(message(name, b"x")) for name in ("01", "02", "01", "03", "02")]
        await send(producer, calls)
        assert codes(calls) == [Code.OK] * 5
        offsets = list(map(offset, calls))
        assert offsets[:2] == [offsets[2], offsets[4]]
        assert len(set(offsets)) == len(await stored(producer)) == 3
        again = [call_of(message("03")), call_of(message("04", delivery_timestamp=1 << 43))]
        await send(producer, again)
        assert offset(again[0]) == offsets[3]
        assert answer_to(again[1]).entries[0].recall_handle


async def test_messages_of_a_group_keep_their_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whatever else they have, and however large: with priorities, ways of the C code and of the Python code."""
    async with producing(tmp_path) as (producer, _):
        variants: list[dict[str, Any]] = [
            {},
            {"priority": 3},
            {"properties": {"rocketmq": "own"}},
            {"properties": {"rocketmq": "own"}, "priority": 70},
            {"tag": "a"},
        ]
        batches = [
            [
                call_of(
                    message(
                        f"{number:02}-{place:02}",
                        b"%02d-%02d" % (number, place) + bytes(60_000 * (place % 7 == 6)),
                        message_group="g",
                        **variants[(number + place) % 5],
                    )
                )
                for place in range(20)
            ]
            for number in range(4)
        ]
        async with trio.open_nursery() as nursery:
            for calls in batches:
                await nursery.start(_start, producer, calls)
        assert [code for calls in batches for code in codes(calls)] == [Code.OK] * 80
        offsets = [offset(call) for calls in batches for call in calls]
        assert offsets == sorted(set(offsets))


async def _start(
    producer: Producer,
    calls: Sequence[OpenCall],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Those of a later batch arrive in the same turn."""
    task_status.started()
    await send(producer, calls)


async def test_a_short_deadline_is_kept_beside_longer_ones(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with producing(tmp_path) as (producer, there):
        await producer.send(message("00"))
        for connection in there.network.connections:
            connection.to_server.is_silent = True
        calls = [call_of(message(f"0{left_s}"), left_s=left_s) for left_s in (3, 1, 2, 9)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, producer, calls)
            for place, left_s in ((1, 1), (2, 2), (0, 3)):
                await trio.sleep_until(calls[place].deadline - 0.2)
                assert answer_to(calls[place]).status.code == Code.PROXY_TIMEOUT
                assert sum(bool(call.replies) for call in calls) == left_s
            there.network.cut_one()
        assert codes(calls)[3] == Code.OK, "it has reached the next connection"
        assert all(len(call.replies) == 1 for call in calls)


async def test_without_a_broker_each_is_told_in_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with producing(tmp_path, max_pending_bytes=10_000) as (producer, there):
        cut_off(there)
        calls = [call_of(message(f"0{left_s}", bytes(1_000)), left_s=left_s) for left_s in (3, 1, 2)]
        await send(producer, calls)
        assert codes(calls) == [Code.INTERNAL_SERVER_ERROR] * 3
        assert trio.current_time() < calls[0].deadline
        come_back(there)
        assert (await producer.send(message("04", bytes(9_000)))).status.code == Code.OK
        assert await stored(producer) == [bytes(9_000)], "what none waits for is not sent"


async def test_a_connection_that_breaks(tmp_path: Path, autojump_clock: MockClock) -> None:
    """All are answered with what is true: they are stored, once."""
    for step in range(1, 12):
        async with producing(tmp_path / str(step)) as (producer, there):
            await producer.send(message("00", b"first"))
            calls = [call_of(message(f"0{number}", b"%d" % number)) for number in range(1, 6)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, producer, calls)
                await trio.sleep(0.0002 * step)
                there.network.cut_one()
            assert codes(calls) == [Code.OK] * 5
            await trio.sleep(1)
            found = await producer.client.fetch("orders", "readers", count=100)
            assert [one.id for one in found][1:] == sorted(map(offset, calls))
            assert [one.body for one in found] == [b"first", b"1", b"2", b"3", b"4", b"5"]


async def test_a_batch_that_is_cancelled_at_any_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What waited is counted no more, and what is answered is stored."""
    canceller, ended = TrioCanceller(), False
    async with producing(tmp_path, max_pending_bytes=2_000) as (producer, _):
        trio.lowlevel.add_instrument(canceller)
        for step in range(1, LIMIT):
            calls = [call_of(message(f"{step}-{number}", b"%d" % step)) for number in range(3)]
            calls += [
                call_of(message(f"{step}-4", b"%d" % step, topic="other")),
                call_of(transaction(f"{step}-5")),
            ]
            ended = not await canceller.attempt(partial(send, producer, calls), step)
            answered = [call for call in calls[:3] if call.replies]
            large = call_of(message(f"{step}-large", bytes(1_800)))
            await send(producer, [large])
            assert codes([large]) == [Code.OK]
            found = await producer.client.fetch("orders", "readers", count=100)
            assert {offset(call) for call in answered} <= {one.id for one in found}
            await producer.client.ack(found.group_id, list(zip(found.ids, found.epochs, strict=True)))
            if ended:
                assert codes(calls) == [Code.OK] * 5
                break
        trio.lowlevel.remove_instrument(canceller)
    assert ended


async def test_what_is_over_is_not_answered(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The answer to a call that its client has reset goes nowhere, and the others have theirs."""
    async with producing(tmp_path) as (producer, _):
        calls = [call_of(message(f"0{number}")) for number in range(4)]
        gone: list[bytes] = []
        calls[1].reply = gone.append  # type: ignore[method-assign]
        await send(producer, calls)
        assert (codes([calls[0], *calls[2:]]), len(gone)) == ([Code.OK] * 3, 1)


async def test_more_than_may_wait(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with producing(tmp_path, max_pending_bytes=3_500) as (producer, _):
        calls = [call_of(message(f"0{number}", bytes(1_000))) for number in range(5)]
        bad = call_of(message("05", b""))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, producer, [*calls, bad])
            await wait_all_tasks_blocked()
            assert codes([*calls[3:], bad]) == [Code.TOO_MANY_REQUESTS] * 2 + [Code.MESSAGE_BODY_EMPTY]
            late = [call_of(message("06", bytes(1_000)))]
            await send(producer, late)
            assert codes(late) == [Code.TOO_MANY_REQUESTS]
        assert codes(calls[:3]) == [Code.OK] * 3
        await send(producer, late := [call_of(message("06", bytes(9_000)))])
        assert codes(late) == [Code.OK], "alone it may be as large as it likes"


class Tokens:
    """The broker's clients, by token."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.asked: list[str] = []

    @waited
    async def client(self, token: str, address: str = "") -> AsyncIterator[Client]:
        self.asked.append(token)
        if token == "revoked":
            raise BadToken
        yield self._client


async def test_calls_of_several_clients(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with producing(tmp_path) as (producer, _):
        signed: list[str] = []

        def identify(headers: Mapping[str, str]) -> str:
            signed.append(headers["authorization"])
            if headers["authorization"] == "wrong":
                raise Refused(Code.UNAUTHORIZED, "wrong")
            return headers["authorization"]

        registry, tokens, tally = Registry(), Tokens(producer.client), Tally()
        _, method = Service(identify, tokens, registry, tally).batched("SendMessage", producer.sending.send)
        assert isinstance(method, BatchMethod)
        said = [
            ("a", "good", "1"),
            ("a", "good", "1"),
            ("b", "good", "1"),
            ("a", "wrong", "1"),
            ("", "good", "1"),
            ("a", "revoked", "1"),
            ("a", "good", "2"),
            ("a", "good", "1"),
        ]
        calls: list[OpenCall] = []
        for number, (client_id, authorization, date) in enumerate(said):
            call = call_of(message("01" if number < 3 else f"0{number}", b"%d" % number))
            call.metadata = {
                "x-mq-client-id": client_id,
                "authorization": authorization,
                "x-mq-date-time": date,
            }
            call.ends = calls[0].ends if calls else call.ends
            calls.append(call)
        await method.handler(calls)
        expected = (
            [Code.OK] * 3 + [Code.UNAUTHORIZED, Code.CLIENT_ID_REQUIRED, Code.UNAUTHORIZED] + [Code.OK] * 2
        )
        assert codes(calls) == expected
        assert offset(calls[0]) == offset(calls[1]) != offset(calls[2]), "two clients may make the same ids"
        assert signed == ["good", "good", "wrong", "good", "revoked", "good"], "each pair is looked at, once"
        assert sorted(tokens.asked) == ["good", "revoked"]
        assert {known.caller.client_id for known in registry} == {"a", "b"}
        text = tally.text()[0].decode()
        assert 'calls_total{code="20000",method="SendMessage"} 5.0' in text
        assert 'call_seconds_count{method="SendMessage"} 8.0' in text
        signed.clear()
        await method.handler([calls[0]])
        assert signed == ["good"], "what was taken back meanwhile is noticed"


# -- acks ----------------------------------------------------------------------------------------------------------


def ack_of(*names: str, group: str = "g", left_s: float = 1_000) -> OpenCall:
    request = schema.AckMessageRequest()
    request.topic.name, request.group.name = "t", group
    for name in names:
        request.entries.add(message_id="x", receipt_handle=name)
    return OpenCall(request=request.SerializeToString(), deadline=trio.current_time() + left_s)


async def ack(consumer: Consumer, calls: Sequence[OpenCall]) -> None:
    await batch(consumer.client, "AckMessage", consumer.settling.ack, calls)


def outcomes(calls: Sequence[OpenCall]) -> list[tuple[int, list[int]]]:
    answers = [answer for call in calls for answer in read(schema.AckMessageResponse, call)]
    assert len(answers) == len(calls)
    return [(one.status.code, [entry.status.code for entry in one.entries]) for one in answers]


async def test_acks_have_their_own_answers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path, Config()) as consumer:
        for number in range(6):
            await consumer.send(b"%d" % number)
        found = handles(await consumer.receive(auto_renew=True))
        other = handles(await consumer.receive(group="h", auto_renew=True))
        never = ".".join(["tw1", found[0].split(".")[1], "999", "1.0.1"])
        unknown = "tw1.999.1.1.0.1"
        calls = [
            ack_of(found[0]),
            ack_of(never),
            ack_of(found[1], found[2], "nonsense"),
            ack_of(other[0], group="h"),
            ack_of(found[3], other[1]),
            ack_of("nonsense"),
            OpenCall(request=b"\xff"),
            ack_of(),
            ack_of(found[0]),
            ack_of(unknown),
            ack_of(found[4], group=" "),
        ]
        await ack(consumer, calls)
        assert calls.pop(6).failed == (Status.INTERNAL, "the request is none of this method")
        ok, bad = Code.OK, Code.INVALID_RECEIPT_HANDLE
        assert outcomes(calls) == [
            (ok, [ok]),
            (bad, [bad]),
            (Code.MULTIPLE_RESULTS, [ok, ok, bad]),
            (ok, [ok]),
            (ok, [ok, ok]),
            (bad, [bad]),
            (Code.BAD_REQUEST, []),
            (ok, [ok]),
            (bad, [bad]),
            (Code.ILLEGAL_CONSUMER_GROUP, []),
        ]
        assert (await consumer.client.group("t", "g")).backlog == 2
        assert (await consumer.client.group("t", "h")).backlog == 4
        assert len(consumer.renewing) == 2 + 4


async def test_an_ack_with_a_short_deadline(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The others are asked for again, which does no harm."""
    async with consuming(tmp_path, Config()) as consumer:
        for number in range(3):
            await consumer.send(b"%d" % number)
        found = handles(await consumer.receive(auto_renew=True))
        for connection in consumer.there.network.connections:
            connection.to_client.is_silent = True
        calls = [ack_of(handle, left_s=left_s) for handle, left_s in zip(found, (9, 1, 9), strict=True)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack, consumer, calls)
            await trio.sleep(0.9)
            assert outcomes([calls[1]]) == [(Code.PROXY_TIMEOUT, [])]
            assert not calls[0].replies
            consumer.there.network.cut_one()
        assert outcomes([calls[0], calls[2]]) == [(Code.OK, [Code.OK])] * 2
        assert (await consumer.client.group("t", "g")).backlog == 0


async def test_acks_that_are_cancelled_at_any_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    canceller, ended = TrioCanceller(), False
    async with consuming(tmp_path, Config()) as consumer:
        trio.lowlevel.add_instrument(canceller)
        for step in range(1, LIMIT):
            for number in range(2):
                await consumer.send(b"%d of %d" % (number, step))
            found = handles(await consumer.receive(auto_renew=True))
            calls = [ack_of(handle) for handle in found]
            ended = not await canceller.attempt(partial(ack, consumer, calls), step)
            backlog = (await consumer.client.group("t", "g")).backlog
            assert all(call.replies for call in calls) or not any(call.replies for call in calls)
            assert not any(call.replies for call in calls) or backlog == 0
            again = [ack_of(handle) for handle in found]
            await ack(consumer, again)
            assert outcomes(again) == [(Code.OK, [Code.OK])] * 2
            assert len(consumer.renewing) == 0
            if ended:
                break
        trio.lowlevel.remove_instrument(canceller)
    assert ended


@pytest.mark.parametrize("name", ["SendMessage", "AckMessage"])
async def test_a_broker_that_has_ended_is_told_to_all(
    tmp_path: Path, autojump_clock: MockClock, name: str
) -> None:
    async with consuming(tmp_path, Config()) as consumer:
        producer = Producer(consumer.client)
        async with consumer.there.client() as producer.client:
            pass
        consumer.client = producer.client
        if name == "SendMessage":
            calls = [call_of(message(f"0{number}")) for number in range(3)]
            await send(producer, calls)
            assert codes(calls) == [Code.INTERNAL_SERVER_ERROR] * 3
        else:
            calls = [ack_of(f"tw1.1.{number}.1.0.1") for number in range(1, 4)]
            await ack(consumer, calls)
            assert [code for code, _ in outcomes(calls)] == [Code.INTERNAL_SERVER_ERROR] * 3
