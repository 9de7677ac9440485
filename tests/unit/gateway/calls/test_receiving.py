"""ReceiveMessage against a real broker, in simulated time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.clients import waiting
from tests.support.clients.cancelling import LIMIT, TrioCanceller
from tests.support.rocketmq.gateway_call import CALLER, OpenCall, asked, read
from tests.support.rocketmq.gateway_consumer import (
    Consumer,
    another,
    bodies,
    breaks_after,
    consuming,
    handle_of,
    handles,
    now_ms,
    receive_request,
    until,
)
from tests.unit.gateway.transport.peer import head, serving
from tickwheel import Fetched, ReceiptResult
from tickwheel.client.consumer.acks import AckQueue
from tickwheel_gateway.calls.service import Service
from tickwheel_gateway.clients.registry import BUSY_RECEIVES, BUSY_S, Declared
from tickwheel_gateway.config import Config, Group
from tickwheel_gateway.delivery.dead_letters import DeadLetters
from tickwheel_gateway.filters.expressions import SqlFilter
from tickwheel_gateway.transport.call import CallEnded
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import decode_receipt

SLACK_S = 0.05
"""Of the simulated network."""


async def nothing(consumer: Consumer, call: OpenCall | None = None, **wish: Any) -> float:
    """Nothing is received; how long that took."""
    began = trio.current_time()
    with pytest.raises(Refused, match="no new message") as refused:
        await consumer.receive(call, **wish)
    assert refused.value.code == Code.MESSAGE_NOT_FOUND
    return trio.current_time() - began


async def test_what_a_message_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        await consumer.send(
            b"hello", message_id="01AB", tag="a", keys=["k1", "k2"], user_properties={"p": "ü"}
        )
        (message,) = await consumer.receive(invisible_s=15)
        system = message.system_properties
        assert (message.topic.name, message.body, dict(message.user_properties)) == (
            "t",
            b"hello",
            {"p": "ü"},
        )
        assert (system.message_id, system.tag, list(system.keys)) == ("01AB", "a", ["k1", "k2"])
        assert (system.delivery_attempt, system.queue_id) == (1, 0)
        assert system.store_host == "127.0.0.1:8081"
        assert schema.milliseconds(system.invisible_duration) == 15_000
        receipt = decode_receipt(system.receipt_handle)
        assert abs(receipt.until_ms - now_ms() - 15_000) < 50


async def test_a_long_poll_lasts_its_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        assert abs(await nothing(consumer, wait_s=7) - 7) < SLACK_S
        assert abs(await nothing(consumer, wait_s=0)) < SLACK_S
        assert abs(await nothing(consumer, wait_s=100) - 20) < SLACK_S, "the most that the gateway waits"
        assert abs(await nothing(consumer, wait_s=None) - 20) < SLACK_S
        assert abs(await nothing(consumer, until(3), wait_s=5) - 2.75) < SLACK_S, "a deadline before that"
        assert abs(await nothing(consumer, until(0.2), wait_s=5)) < SLACK_S
        assert abs(await nothing(consumer, until(9), wait_s=None) - 6) < SLACK_S, "less the usual timeout"
        consumer.registry.heard(CALLER).declared = Declared(request_timeout_ms=5_000)
        assert abs(await nothing(consumer, until(9), wait_s=None) - 4) < SLACK_S, "less its own timeout"


async def test_a_long_poll_ends_with_the_first_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer, trio.open_nursery() as nursery:
        found: list[bytes] = []

        async def poll() -> None:
            found.extend(bodies(await consumer.receive(wait_s=15)))
            found.append(b"%d" % round(trio.current_time() - began))

        began = trio.current_time()
        nursery.start_soon(poll)
        await trio.sleep(6)
        await consumer.send(b"late")
        await trio.sleep(1)
        assert found == [b"late", b"6"]


async def test_a_call_whose_deadline_is_there_is_told_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        with pytest.raises(Refused) as refused:
            await consumer.receive(until(0.0))
        assert refused.value.code == Code.PROXY_TIMEOUT


async def test_how_many_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path, Config(receive_batch_size=5)) as consumer:
        for number in range(80):
            await consumer.send(b"%d" % number)
        assert len(await consumer.receive(batch_size=1)) == 1
        assert len(await consumer.receive(batch_size=100)) == 32
        assert len(await consumer.receive(batch_size=100, auto_renew=True)) == 5
        with pytest.raises(Refused) as refused:
            await consumer.receive(batch_size=0)
        assert refused.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("sent", "wish", "is_busy"),
    [
        (5, {"auto_renew": True, "batch_size": 100}, True),
        (4, {"auto_renew": True, "batch_size": 100}, False),
        (5, {"auto_renew": True, "batch_size": 1}, False),
        (40, {"batch_size": 32}, False),
    ],
    ids=["all", "fewer", "a full cache", "a simple consumer"],
)
async def test_who_receives_as_many_as_it_may_is_busy(
    tmp_path: Path, autojump_clock: MockClock, sent: int, wish: dict[str, Any], is_busy: bool
) -> None:
    async with consuming(tmp_path, Config(receive_batch_size=5)) as consumer:
        for number in range(sent):
            await consumer.send(b"%d" % number)
        await consumer.receive(**wish)
        known = consumer.registry.heard(CALLER)
        assert known.is_busy("t", "g") == is_busy
        assert not known.is_busy("t", "other")
        assert not known.is_busy("other", "g")


@pytest.mark.parametrize(
    ("every_s", "wish", "is_busy"),
    [
        (0.1, {"auto_renew": True, "batch_size": 100}, True),
        (0.6, {"auto_renew": True, "batch_size": 100}, False),
        (0.1, {"auto_renew": True, "batch_size": 2}, False),
        (0.1, {"batch_size": 32}, False),
    ],
    ids=["often", "seldom", "a full cache", "a simple consumer"],
)
async def test_who_receives_messages_often_is_busy(
    tmp_path: Path, autojump_clock: MockClock, every_s: float, wish: dict[str, Any], is_busy: bool
) -> None:
    async with consuming(tmp_path, Config(receive_batch_size=5)) as consumer:
        known = consumer.registry.heard(CALLER)
        for number in range(2 * BUSY_RECEIVES):
            assert known.is_busy("t", "g") == (is_busy and number >= BUSY_RECEIVES)
            await consumer.send(b"%d" % number)
            assert len(await consumer.receive(**wish)) == 1
            await trio.sleep(every_s)
        assert not known.is_busy("t", "other")
        await trio.sleep(BUSY_S)
        assert not known.is_busy("t", "g"), "some minutes later"


async def test_what_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    wrong: list[tuple[dict[str, Any], Code, str]] = [
        ({"topic": " "}, Code.ILLEGAL_TOPIC, "blank"),
        ({"topic": "a.b"}, Code.ILLEGAL_TOPIC, "letters"),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP, "blank"),
        ({"invisible_s": 9.999}, Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small"),
        ({"invisible_s": 43_200.001}, Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large"),
        ({"sql": "a >"}, Code.ILLEGAL_FILTER_EXPRESSION, "illegal filter expression"),
        ({"tags": "||"}, Code.ILLEGAL_FILTER_EXPRESSION, "separators"),
        ({"batch_size": -1}, Code.BAD_REQUEST, "batch_size"),
    ]
    async with consuming(tmp_path) as consumer:
        for wish, code, text in wrong:
            with pytest.raises(Refused, match=text) as refused:
                await consumer.receive(**wish)
            assert refused.value.code == code


async def test_a_lease_that_ends_gives_the_message_to_the_next_with_a_new_handle(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        await consumer.send(b"x")
        (first,) = await consumer.receive(invisible_s=10)
        assert abs(await nothing(consumer, wait_s=5) - 5) < SLACK_S
        (again,) = await consumer.receive(wait_s=20)
        assert again.system_properties.delivery_attempt == 2
        assert handle_of(again) != handle_of(first)
        assert await consumer.ack(handle_of(first)) == (40_013, [40_013])
        assert await consumer.ack(handle_of(again)) == (20_000, [20_000])


# -- filters -------------------------------------------------------------------------------------------------------


async def test_what_tags_refuse_is_acked_and_not_shown(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for number in range(40):
            await consumer.send(b"%d" % number, tag="no")
        await consumer.send(b"plain")
        await consumer.send(b"a", tag="yes")
        await consumer.send(b"b", tag="maybe")
        assert bodies(await consumer.receive(tags="yes||maybe")) == [b"a", b"b"]
        (group,) = await consumer.client.groups("t")
        assert (group.backlog, group.leased) == (2, 2)


async def test_a_poll_goes_on_when_all_was_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer, trio.open_nursery() as nursery:
        found: list[bytes] = []

        async def poll() -> None:
            found.extend(bodies(await consumer.receive(wait_s=10, sql="size > 5")))

        nursery.start_soon(poll)
        for number in (3, 4, 7, 8):
            await trio.sleep(1)
            await consumer.send(b"%d" % number, user_properties={"size": f"{number}"})
        assert found == [b"7"]
        assert bodies(await consumer.receive(sql="size > 5")) == [b"8"]
        await consumer.send(b"9", user_properties={"size": "2"})
        assert abs(await nothing(consumer, wait_s=5, sql="size > 5") - 5) < SLACK_S


async def test_what_a_condition_may_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    conditions = (
        "TAGS = 'a'",
        "KEYS = 'k1 k2'",
        "UNIQ_KEY = '01AB'",
        "__SHARDINGKEY = 'group'",
        "colour IN ('red') AND KEYS IS NOT NULL",
    )
    async with consuming(tmp_path) as consumer:
        await consumer.send(b"other")
        await consumer.send(
            b"x",
            message_id="01AB",
            tag="a",
            keys=["k1", "k2"],
            message_group="group",
            user_properties={"colour": "red"},
        )
        for number, sql in enumerate(conditions):
            assert bodies(await consumer.receive(sql=sql, group=f"g{number}")) == [b"x"], sql


async def test_other_calls_have_their_turn_between_messages(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen, matches = _Turns(), set[int](), SqlFilter.matches

    def spy(self: SqlFilter, tag: str | None, properties: Mapping[str, str]) -> bool:
        seen.add(turns.count)
        return matches(self, tag, properties)

    monkeypatch.setattr(SqlFilter, "matches", spy)
    async with consuming(tmp_path) as consumer:
        for number in range(32):
            await consumer.send(b"%d" % number)
        trio.lowlevel.add_instrument(turns)
        assert len(await consumer.receive(sql="a IS NULL")) == 32
        trio.lowlevel.remove_instrument(turns)
        assert len(seen) >= 4


class _Turns(trio.abc.Instrument):
    """How often a task was given its turn."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


# -- order ---------------------------------------------------------------------------------------------------------


async def test_messages_of_a_group_come_one_after_another(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for number in range(6):
            await consumer.send(b"%d" % number, message_group="ab"[number % 2])
        order: list[bytes] = []
        nacked = False
        while len(order) < 7:
            for message in await consumer.receive(wait_s=5):
                order.append(message.body)
                if message.body == b"2" and not nacked:
                    nacked = True
                    await consumer.change(handle_of(message), 0)
                else:
                    assert await consumer.ack(handle_of(message)) == (20_000, [20_000])
        assert [body for body in order if int(body) % 2] == [b"1", b"3", b"5"]
        assert [body for body in order if not int(body) % 2] == [b"0", b"2", b"2", b"4"]


async def test_an_orderly_group_is_given_several_messages_of_a_group_at_a_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path, Config(fifo_groups=("orderly",))) as consumer:
        for number in range(4):
            await consumer.send(b"%d" % number, message_group="a")
        first = await consumer.receive(group="orderly", batch_size=3)
        assert bodies(first) == [b"0", b"1", b"2"]
        with pytest.raises(Refused):
            await consumer.receive(group="orderly", wait_s=1)
        for message in first[1:]:
            await consumer.ack(handle_of(message), group="orderly")
        await consumer.change(handle_of(first[0]), 0, group="orderly")
        again = await consumer.receive(group="orderly")
        assert bodies(again) == [b"0", b"3"]
        assert [message.system_properties.delivery_attempt for message in again] == [2, 1]


# -- dead letters --------------------------------------------------------------------------------------------------


async def test_so_many_deliveries_and_then_it_is_a_dead_letter(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    config = Config(groups={"g": Group(max_attempts=3)})
    async with consuming(tmp_path, config) as consumer:
        await consumer.send(b"bad", message_id="01AB", tag="a", user_properties={"p": "v"})
        attempts = []
        for _ in range(3):
            (message,) = await consumer.receive(auto_renew=True)
            attempts.append(message.system_properties.delivery_attempt)
            await consumer.change(handle_of(message), 1)
        assert attempts == [1, 2, 3]
        await nothing(consumer, wait_s=5, auto_renew=True)
        (dead,) = await consumer.receive(topic="%DLQ%g", group="undertaker")
        system = dead.system_properties
        assert (dead.body, system.message_id, system.tag) == (b"bad", "01AB", "a")
        assert dict(dead.user_properties) == {"p": "v"}
        assert system.delivery_attempt == 1
        assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("t", "01AB")
        assert (await consumer.client.group("t", "g")).backlog == 0


async def test_a_message_behind_a_dead_one_is_found_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path, Config(max_attempts=1)) as consumer:
        await consumer.send(b"1", message_group="m")
        await consumer.send(b"2", message_group="m")
        (first,) = await consumer.receive()
        await consumer.change(handle_of(first), 0)
        assert bodies(await consumer.receive()) == [b"2"]


async def test_a_group_that_can_have_no_dead_letters(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    group = "g" * 120
    async with consuming(tmp_path, Config(max_attempts=1)) as consumer:
        await consumer.send(b"bad")
        (message,) = await consumer.receive(group=group)
        await consumer.change(handle_of(message), 0, group=group)
        with caplog.at_level(logging.WARNING):
            await nothing(consumer, group=group)
        assert "it is in those of its topic" in caplog.text
        assert bodies(await consumer.receive(topic="t%dead", group="g")) == [b"bad"]


async def test_dead_letters_that_the_broker_refuses_come_again(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(tmp_path, Config(max_attempts=1)) as consumer:
        await consumer.client.create_topic("rmq.DLQ.g", max_body_bytes=2)
        await consumer.send(b"bad")
        (message,) = await consumer.receive()
        await consumer.change(handle_of(message), 0)
        with caplog.at_level(logging.WARNING):
            await nothing(consumer)
        assert "could not become a dead letter" in caplog.text
        await consumer.client.set_topic("rmq.DLQ.g", unset=["max_body_bytes"])
        await trio.sleep(50)
        await nothing(consumer, wait_s=15)
        assert bodies(await consumer.receive(topic="%DLQ%g", group="undertaker")) == [b"bad"]


# -- what breaks ---------------------------------------------------------------------------------------------------


async def test_a_poll_that_is_cancelled_loses_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whether the message comes before the cancellation, meanwhile or after it."""
    async with consuming(tmp_path) as consumer:
        was_received = set()
        for number in range(30):
            found: list[Any] = []
            with trio.move_on_after(1):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_poll, consumer, found)
                    await trio.sleep(0.9940 + number / 5_000)
                    await consumer.send(b"%d" % number)
            was_received.add(bool(found))
            (message,) = found or await consumer.receive(wait_s=5)
            assert (message.body, message.system_properties.delivery_attempt) == (b"%d" % number, 1)
            assert await consumer.ack(handle_of(message)) == (20_000, [20_000])
        assert was_received == {True, False}


async def _poll(consumer: Consumer, found: list[Any]) -> None:
    found.extend(await consumer.receive(wait_s=15))


async def test_a_stream_that_breaks_gives_back_what_was_not_written(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        for number in range(5):
            await consumer.send(b"%d" % number)
        for written in (-1, 0, 1, 2, 5):
            group = f"g{written + 1}"
            call, before = breaks_after(written), len(consumer.renewing)
            with pytest.raises(CallEnded):
                await consumer.ask(call, auto_renew=True, group=group)
            count = max(0, written)
            assert len(consumer.renewing) - before == count
            sent = [answer.message for answer in read(schema.ReceiveMessageResponse, call)[1:]]
            assert len(sent) == count
            if written == 5:
                await nothing(consumer, group=group)
                continue
            rest = await consumer.receive(group=group)
            assert bodies([*sent, *rest]) == [b"0", b"1", b"2", b"3", b"4"]
            assert {message.system_properties.delivery_attempt for message in rest} == {1}


async def test_a_client_that_resets_the_stream_has_what_was_written(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Over HTTP/2: its window takes two messages and a half."""
    async with consuming(tmp_path) as consumer:
        for number in range(5):
            await consumer.send(b"%d" % number * 10_000, message_id=f"{number}")
        codes = _Codes()
        service = Service(lambda metadata: "", consumer.broker, consumer.registry, codes)
        methods = [service.streaming("ReceiveMessage", consumer.receiving.receive)]
        async with serving(cast(Any, SimpleNamespace(methods=dict(methods)))) as (_, connect):
            peer = connect(window=26_000, gives_windows=False)
            headers = head(methods[0][0], **{"x-mq-client-id": "c"})
            stream_id = peer.ask(receive_request(auto_renew=True).SerializeToString(), headers=headers)
            await peer.until(lambda: len(peer.answers[stream_id].body) == 26_000)
            await wait_all_tasks_blocked()
            assert len(consumer.renewing) == 5
            peer.h2.reset_stream(stream_id)
            await peer.flush()
            rest = await consumer.receive()
            assert [body[:1] for body in bodies(rest)] == [b"2", b"3", b"4"]
            assert {message.system_properties.delivery_attempt for message in rest} == {1}
            assert len(consumer.renewing) == 2
            assert (await connect().call(receive_request().SerializeToString(), headers=headers)).is_over
            await waiting.until(lambda: codes.counted == [Code.MESSAGE_NOT_FOUND])


class _Codes:
    """What was counted."""

    def __init__(self) -> None:
        self.counted: list[int] = []

    def called(self, name: str, code: int, duration_s: float, times: int = 1) -> None:
        """One call with its code."""
        self.counted.append(code)


async def test_a_call_that_is_cancelled_at_any_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One message is refused by the filter, one has no attempts left, and one is wanted."""
    canceller, ways = TrioCanceller(), set()
    async with consuming(tmp_path, Config(max_attempts=1)) as consumer:
        trio.lowlevel.add_instrument(canceller)
        for step in range(1, LIMIT):
            await consumer.send(b"dead %d" % step, tag="yes")
            (message,) = await consumer.receive()
            await consumer.change(handle_of(message), 0)
            await consumer.send(b"no %d" % step, tag="no")
            await consumer.send(b"yes %d" % step, tag="yes")
            call = OpenCall()
            ended = not await canceller.attempt(
                partial(consumer.ask, call, auto_renew=True, tags="yes", wait_s=2), step
            )
            found = [answer.message for answer in read(schema.ReceiveMessageResponse, call)[1:-1]]
            assert len(consumer.renewing) == len(found)
            ways.add(len(found))
            if not found:
                found = await consumer.receive(wait_s=2, tags="yes")
            dead = await consumer.receive(wait_s=2, topic="%DLQ%g", group="undertaker")
            assert (bodies(found), bodies(dead)) == ([b"yes %d" % step], [b"dead %d" % step])
            assert found[0].system_properties.delivery_attempt == 1
            assert await consumer.ack(*handles(found)) == (20_000, [20_000])
            assert await consumer.ack(*handles(dead), topic="%DLQ%g") == (20_000, [20_000])
            assert (await consumer.client.group("t", "g")).backlog == 0
            if ended:
                break
        trio.lowlevel.remove_instrument(canceller)
    assert ended
    assert ways == {0, 1}


async def test_a_connection_that_breaks_does_not_end_the_poll(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer, trio.open_nursery() as nursery:
        found: list[Any] = []
        nursery.start_soon(_poll, consumer, found)
        await trio.sleep(2)
        for connection in consumer.there.network.connections:
            connection.cut()
        await trio.sleep(2)
        await consumer.send(b"x")
        await trio.sleep(1)
        assert bodies(found) == [b"x"]


async def test_polls_end_when_the_gateway_stops(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer, trio.open_nursery() as nursery:
        took: list[float] = []

        async def poll() -> None:
            took.append(await nothing(consumer, wait_s=15))

        nursery.start_soon(poll)
        await trio.sleep(3)
        consumer.stopping.set()
        await trio.sleep(1)
        assert len(took) == 1
        assert abs(took[0] - 3) < SLACK_S
        await consumer.send(b"x")
        assert await nothing(consumer) < SLACK_S


# -- calls that are made again -------------------------------------------------------------------------------------


async def test_a_call_that_is_made_again_has_what_was_lost(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        for number in range(3):
            await consumer.send(b"%d" % number)
        lost = await consumer.receive(auto_renew=True, attempt_id="1", batch_size=2)
        assert bodies(lost) == [b"0", b"1"]
        assert await consumer.ack(handles(lost)[0]) == (20_000, [20_000])
        again = await consumer.receive(auto_renew=True, attempt_id="1")
        assert sorted(bodies(again)) == [b"1", b"2"]
        assert {message.system_properties.delivery_attempt for message in again} == {1}
        assert await consumer.ack(handles(lost)[1]) == (40_013, [40_013])
        assert len(consumer.renewing) == 2
        await nothing(consumer, attempt_id="2")


async def test_a_call_that_is_made_again_ends_the_one_that_waits(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its client has left it with its connection. Whether the message comes before the second call, meanwhile or after
    it."""
    async with consuming(tmp_path) as consumer:
        first_had_it = set()
        for number in range(30):
            calls = OpenCall(), OpenCall()
            ask = partial(consumer.ask, auto_renew=True, wait_s=15, attempt_id=f"{number}")
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, calls[0])
                nursery.start_soon(_send_in, consumer, 0.9940 + number / 5_000, b"%d" % number)
                await trio.sleep(1)
                nursery.start_soon(ask, calls[1])
            assert trio.current_time() - began < 2
            first, second = (read(schema.ReceiveMessageResponse, call) for call in calls)
            first_had_it.add(first[0].status.code)
            (answer,) = second[1:-1]
            assert answer.message.body == b"%d" % number
            assert answer.message.system_properties.delivery_attempt == 1
            assert len(consumer.renewing) == 1
            assert await consumer.ack(handle_of(answer.message)) == (20_000, [20_000])
        assert first_had_it == {Code.OK, Code.MESSAGE_NOT_FOUND}


async def _send_in(consumer: Consumer, wait_s: float, body: bytes) -> None:
    await trio.sleep(wait_s)
    await consumer.send(body)


async def test_attempts_of_others_are_not_touched(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        await consumer.send(b"x")
        assert bodies(await consumer.receive(attempt_id="1")) == [b"x"]
        call = OpenCall()
        answers = await consumer.ask(call, another("other"), attempt_id="1")
        assert answers[0].status.code == Code.MESSAGE_NOT_FOUND


# -- other programs' messages, and what is kept --------------------------------------------------------------------


async def test_messages_of_other_programs(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        await consumer.client.send("t", b"1", headers={"n": 7, "rocketmq": {"id": "x", "keys": 5}})
        await consumer.client.send("t", b"2", headers={"n": 7})
        first, second = await consumer.receive()
        assert (first.body, dict(first.user_properties)) == (b"1", {})
        assert (second.body, dict(second.user_properties)) == (b"2", {"n": "7"})


async def test_the_client_library_keeps_nothing_of_what_was_fetched(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        for number in range(20):
            await consumer.send(b"%d" % number)
            call = OpenCall()
            await consumer.receiving.receive(asked(consumer.client, call), receive_request(auto_renew=True))
            (message,) = [answer.message for answer in read(schema.ReceiveMessageResponse, call)[1:-1]]
            await consumer.ack(handle_of(message))
        await consumer.send(b"broken")
        with pytest.raises(CallEnded):
            await consumer.ask(breaks_after(0))
        gc.collect()
        session = consumer.client._session
        # Clients of other tests in this process may still be there.
        kept = [
            each
            for each in gc.get_objects()
            if isinstance(each, Fetched) or (isinstance(each, AckQueue) and each._session is session)
        ]
        assert kept == []
        assert (session.subscriptions, session.holdings, session._live) == ({}, {}, {})
        assert session._budget.taken == 0
        assert len(consumer.renewing) == 0


async def never(*_: Any) -> None:
    await trio.sleep_forever()


async def stale(_: int, receipts: list[Any]) -> list[ReceiptResult]:
    return [ReceiptResult.STALE_RECEIPT] * len(receipts)


@pytest.mark.parametrize(
    ("give_back", "told"),
    [
        (never, "1 messages of 't' were not given back within 5 s"),
        (stale, "1 of 1 messages of 't' were not given back: stale_receipt (1)"),
    ],
)
async def test_what_is_not_given_back_is_logged(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    give_back: Any,
    told: str,
) -> None:
    caplog.set_level("INFO", "tickwheel.gateway.calls")
    async with consuming(tmp_path) as consumer:
        await consumer.send(b"x")
        monkeypatch.setattr(consumer.client, "give_back", give_back)
        with pytest.raises(CallEnded):
            await consumer.ask(breaks_after(0))
    assert told in caplog.text


async def test_what_a_filter_refuses_or_a_group_gives_up_and_is_not_settled_is_logged(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(*_: Any) -> ReceiptResult:
        return ReceiptResult.STALE_RECEIPT

    caplog.set_level("INFO", "tickwheel.gateway.calls")
    async with consuming(tmp_path, Config(max_attempts=1)) as consumer:
        await consumer.send(b"bad", tag="yes")
        (message,) = await consumer.receive()
        await consumer.change(handle_of(message), 0)
        await consumer.send(b"x", tag="no")
        monkeypatch.setattr(DeadLetters, "forward", late)
        monkeypatch.setattr(consumer.client, "ack", stale)
        await nothing(consumer, tags="yes")
    assert "1 of 1 messages of 't' were not given up: stale_receipt (1)" in caplog.text
    assert (
        "1 of 1 messages of 't' were not acked, though the filter refuses them: stale_receipt (1)"
        in caplog.text
    )
