"""The client against a broker in memory: requests, answers, refusals."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import numpy as np
import pytest

import tickwheel
from tests.support.clients.waiting import until
from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer, serving
from tickwheel import CancelResult, Client, RescheduleResult, SendResult
from tickwheel.errors import (
    BadArgument,
    BadTime,
    BadTopicName,
    BodyTooLarge,
    ClientClosed,
    DiskFull,
    FrameTooLarge,
    HeadersTooLarge,
    KeyTooLong,
    NaiveDatetime,
    NotConnected,
    RequestTimeout,
    TickwheelError,
    UnknownTopic,
)
from tickwheel.protocol.bodies.requests import OpenTopic
from tickwheel.protocol.machine import Requested, SendRequested, ServerEvent

AT_MS = 1_935_403_200_000  # 2031-05-01T12:00Z


@on_both
async def test_send_stores_body_key_headers_and_priority() -> None:
    async with serving() as (server, client):
        result = await client.send("tea", b"ready", key="k", priority=7, headers={"cups": 2})
        assert result == SendResult(1, duplicate=False)
        (message,) = server.messages
        assert (message.topic, message.body, message.key, message.priority) == ("tea", b"ready", b"k", 7)
        async with client.subscribe("tea") as sub:
            received = await sub.receive()
        assert received is not None
        assert (received.key, received.headers, received.priority) == ("k", {"cups": 2}, 7)


@on_both
async def test_same_key_returns_the_first_id() -> None:
    async with serving() as (_, client):
        first = await client.send("tea", b"one", key="k")
        again = await client.send("tea", b"two", key="k")
        assert again == SendResult(first.id, duplicate=True)


@on_both
async def test_concurrent_sends_share_a_frame_and_get_their_own_results() -> None:
    async with serving() as (server, client):
        await client.send("tea", b"opens the topic")
        ids: dict[int, int] = {}

        async def send(number: int) -> None:
            ids[number] = (await client.send("tea", b"%d" % number)).id

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(send, number)
        assert len(server.seen(SendRequested)) == 2
        assert {m.id: m.body for m in server.messages[1:]} == {i: b"%d" % n for n, i in ids.items()}


@on_both
async def test_sends_that_cannot_share_a_frame_do_not() -> None:
    async with serving(auto_key=False) as (server, client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.send("tea", b"now"))
            tasks.start_soon(lambda: client.send("tea", b"later", delay=timedelta(seconds=1)))
            tasks.start_soon(lambda: client.send("tea", b"keyed", key="k"))
            tasks.start_soon(lambda: client.send("tea", b"first", priority=0, deliver_at=AT_MS))
        rows = {m.body: (m.time_ms, m.relative, m.key, m.priority) for m in server.messages}
        assert rows == {
            b"now": (0, False, b"", 50),
            b"later": (1000, True, b"", 50),
            b"keyed": (0, False, b"k", 50),
            b"first": (AT_MS, False, b"", 0),
        }
        assert len(server.seen(SendRequested)) == 4


@on_both
async def test_refusal_of_one_single_send_does_not_touch_the_others() -> None:
    async with serving() as (server, client):
        outcomes: dict[bytes, object] = {}

        async def send(body: bytes, **options: Any) -> None:
            try:
                outcomes[body] = await client.send("tea", body, **options)
            except TickwheelError as error:
                outcomes[body] = error

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: send(b"a", key="same"))
            tasks.start_soon(lambda: send(b"b", key="same"))
            tasks.start_soon(lambda: send(b"x" * 20_000))
        assert {type(outcome) for outcome in outcomes.values()} == {SendResult, BodyTooLarge}
        assert [m.body for m in server.messages] in ([b"a"], [b"b"])


@pytest.mark.promise("R2")
@on_both
async def test_deliver_at_and_delay_become_milliseconds_rounded_up() -> None:
    async with serving() as (server, client):
        moment = datetime(2031, 5, 1, 9, 0, 0, 1, tzinfo=UTC)
        await client.send("tea", b"a", deliver_at=moment)
        await client.send("tea", b"b", delay=timedelta(microseconds=1001))
        first, second = server.messages
        assert (first.time_ms, first.relative) == (1_935_392_400_001, False)
        assert (second.time_ms, second.relative) == (2, True)


@pytest.mark.promise("R72")
@on_both
async def test_bad_arguments_are_refused_with_advice_before_anything_is_sent() -> None:
    async with serving() as (server, client):
        refused: list[tuple[type[TickwheelError], dict[str, Any]]] = [
            (NaiveDatetime, {"deliver_at": datetime(2031, 5, 1)}),
            (BadTime, {"delay": timedelta(seconds=-1)}),
            (BadTime, {"delay": 1, "deliver_at": 1}),
            (BadTime, {"deliver_at": 10**15}),
            (BadTime, {"deliver_at": "tomorrow"}),
            (BadArgument, {"priority": 256}),
            (BadArgument, {"key": ""}),
            (KeyTooLong, {"key": "é" * 128}),
            (HeadersTooLarge, {"headers": {"a": "x" * 2000}}),
            (BadArgument, {"headers": {"a": object()}}),
            (BadArgument, {"headers": {1: "a"}}),
            (BadArgument, {"body": "text"}),
            (BodyTooLarge, {"body": bytes(16 * 1024 + 1)}),
            (BadTopicName, {"topic": "no spaces"}),
        ]
        for error_class, options in refused:
            with pytest.raises(error_class) as caught:
                await client.send(**{"topic": "tea", "body": b"x", **options})
            assert caught.value.advice
            assert isinstance(caught.value, ValueError)
        assert server.seen(SendRequested) == []


@on_both
async def test_send_many_with_a_value_for_each() -> None:
    async with serving() as (server, client):
        times = np.array([AT_MS + 5, AT_MS, AT_MS + 7], dtype="datetime64[ms]").astype("int64")
        results = await client.send_many(
            "tea",
            [b"a", bytearray(b"b"), memoryview(b"c")],
            keys=["x", None, "z"],
            deliver_at=times,
            priority=[1, 2, 3],
            headers=[None, {"h": 1}, None],
        )
        assert list(results) == [SendResult(1), SendResult(2), SendResult(3)]
        assert results.first_id == 1
        assert results.ids() == array("Q", [1, 2, 3])
        rows = [(m.body, m.key, m.time_ms, m.priority, bool(m.headers)) for m in server.messages]
        assert rows == [
            (b"a", b"x", AT_MS + 5, 1, False),
            (b"b", b"", AT_MS, 2, True),
            (b"c", b"z", AT_MS + 7, 3, False),
        ]


SECONDS = AT_MS // 1_000


@on_both
async def test_of_a_batch_a_number_of_seconds_refuses_its_own_message() -> None:
    async with serving() as (server, client):
        times = [AT_MS, SECONDS, 10**12]
        for column in (times, tuple(times), array("q", times), np.array(times)):
            results = await client.send_many("tea", [b"a", b"b", b"c"], deliver_at=column)
            assert {number: type(error) for number, error in results.errors.items()} == {1: BadTime}
        assert [message.body for message in server.messages] == [b"a", b"c"] * 4
        mixed = [datetime(1999, 12, 31, tzinfo=UTC), 999, AT_MS]
        results = await client.send_many("tea", [b"d", b"e", b"f"], deliver_at=mixed)
        assert list(results.errors) == [1]


@on_both
async def test_send_many_judges_each_message_by_itself() -> None:
    async with serving() as (server, client):
        await client.send("tea", b"earlier", key="dup")
        bodies = [b"a", b"b", bytes(20_000), b"d", b"e", b"f"]
        keys = ["1", "dup", "3", "4", "k" * 300, "6"]
        times = array("q", [AT_MS, AT_MS, AT_MS, -1, AT_MS, AT_MS])
        results = await client.send_many("tea", bodies, keys=keys, deliver_at=times, headers={"all": True})
        assert results[0] == SendResult(2)
        assert results[1] == SendResult(1, duplicate=True)
        assert results[5] == SendResult(3)
        assert {i: type(e) for i, e in results.errors.items()} == {
            2: BodyTooLarge,
            3: BadTime,
            4: KeyTooLong,
        }
        assert list(results.ids()) == [2, 1, 0, 0, 0, 3]
        assert results[-1] == results[5]
        assert results[4:] == [results[4], results[5]]
        with pytest.raises(BodyTooLarge):
            results.raise_for_errors()
        assert len(server.messages) == 3


@on_both
async def test_send_many_splits_what_does_not_fit_a_frame() -> None:
    async with serving() as (server, client):
        bodies = [b"%05d" % n + bytes(1000) for n in range(500)]
        results = await client.send_many("tea", bodies, delay=[timedelta(milliseconds=n) for n in range(500)])
        assert [m.body for m in server.messages] == bodies
        assert [m.time_ms for m in server.messages] == list(range(500))
        assert list(results.ids()) == list(range(1, 501))
        assert len(server.seen(SendRequested)) > 7
        assert server.protocol_errors == []


@on_both
async def test_send_many_of_nothing_sends_nothing() -> None:
    async with serving() as (server, client):
        assert len(await client.send_many("tea", [])) == 0
        assert server.seen(SendRequested) == []


@on_both
async def test_send_many_refuses_columns_of_another_length() -> None:
    async with serving() as (_, client):
        bad: list[dict[str, Any]] = [
            {"keys": ["a"]},
            {"deliver_at": [1]},
            {"delay_ms": array("q", [1, 2, 3])},
            {"priority": [1]},
            {"headers": [{}]},
            {"keys": ["", "b"]},
            {"priority": [1, 256]},
        ]
        for options in bad:
            with pytest.raises(BadArgument):
                await client.send_many("tea", [b"a", b"b"], **options)
        with pytest.raises(BadTime):
            await client.send_many("tea", [b"a", b"b"], deliver_at=np.array([1.0, 2.0]))
        with pytest.raises(NaiveDatetime):
            await client.send_many("tea", [b"a", b"b"], deliver_at=[datetime(2031, 1, 1)] * 2)
        with pytest.raises(BadArgument):
            await client.send_many("tea", b"one body")


@on_both
async def test_a_refused_frame_is_raised() -> None:
    async with serving() as (server, client):
        server.refuse = lambda event: DiskFull() if isinstance(event, SendRequested) else None
        with pytest.raises(DiskFull) as single:
            await client.send("tea", b"a")
        with pytest.raises(DiskFull):
            await client.send_many("tea", [b"a", b"b"])
        assert single.value.retryable
        server.refuse = None
        assert (await client.send("tea", b"a")).id == 1


@on_both
async def test_part_of_a_split_batch_may_fail() -> None:
    async with serving() as (server, client):
        frames: list[ServerEvent] = []

        def refuse(event: ServerEvent) -> TickwheelError | None:
            if isinstance(event, SendRequested):
                frames.append(event)
            return DiskFull() if isinstance(event, SendRequested) and len(frames) > 1 else None

        server.refuse = refuse
        results = await client.send_many("tea", [bytes(10_000)] * 12)
        stored = len(server.messages)
        assert 0 < stored < 12
        assert list(results.ids()) == [*range(1, stored + 1), *[0] * (12 - stored)]
        assert {type(error) for error in results.errors.values()} == {DiskFull}


@on_both
async def test_a_topic_that_cannot_be_opened_fails_its_sends() -> None:
    async with serving() as (server, client):
        server.refuse = lambda event: (
            UnknownTopic() if isinstance(event, Requested) and isinstance(event.request, OpenTopic) else None
        )
        with pytest.raises(UnknownTopic):
            await client.send("tea", b"a")
        server.refuse = None
        assert (await client.send("tea", b"a")).id == 1


@on_both
async def test_sends_to_a_topic_that_was_deleted_go_to_the_one_that_is_made_again() -> None:
    async with serving() as (server, client):
        await client.send("tea", b"before")
        server.refuse = lambda event: (
            UnknownTopic() if isinstance(event, SendRequested) and len(server.seen(OpenTopic)) == 1 else None
        )
        async with anyio.create_task_group() as group:
            group.start_soon(client.send_many, "tea", [b"1", b"2"])
            group.start_soon(client.send, "tea", b"3")
        assert sorted(message.body for message in server.messages) == [b"1", b"2", b"3", b"before"]
        assert len(server.seen(OpenTopic)) == 2


@on_both
async def test_a_topic_that_is_unknown_again_fails_its_sends() -> None:
    async with serving() as (server, client):
        server.refuse = lambda event: UnknownTopic() if isinstance(event, SendRequested) else None
        with pytest.raises(UnknownTopic):
            await client.send("tea", b"a")
        assert len(server.seen(SendRequested)) == 2


@on_both
async def test_cancel_and_reschedule() -> None:
    async with serving() as (server, client):
        results = await client.send_many("tea", [b"a", b"b", b"c"], keys=["a", "b", "c"], delay_ms=1000)
        first = results.first_id
        assert await client.cancel(id=first) is CancelResult.CANCELLED
        assert await client.cancel(ids=[first, 99]) == [
            CancelResult.ALREADY_CANCELLED,
            CancelResult.NOT_FOUND,
        ]
        assert await client.cancel("tea", key="b") is CancelResult.CANCELLED
        assert await client.cancel("tea", keys=["zz"]) == [CancelResult.NOT_FOUND]
        assert await client.cancel(ids=[]) == []
        moved = await client.reschedule("tea", key="c", deliver_at=datetime(1970, 1, 2, tzinfo=UTC))
        assert moved is RescheduleResult.RESCHEDULED
        assert server.messages[2].time_ms == 86_400_000
        assert await client.reschedule(ids=[99], delay=timedelta(0)) == [RescheduleResult.NOT_FOUND]
        with pytest.raises(BadArgument):
            await client.cancel("tea", id=1)  # type: ignore[call-overload]
        with pytest.raises(BadTime):
            await client.reschedule(id=1)


@on_both
async def test_stats_topics_wheel_and_ping() -> None:
    async with serving() as (_, client):
        await client.send("tea", b"a")
        stats = await client.stats()
        assert (stats.now_ms, stats.uptime_ms, stats.version) == (1, 18, "fake")
        (topic,) = await client.topics()
        assert (topic.name, topic.messages, topic.groups) == ("tea", 1, [])
        wheel = await client.wheel()
        assert wheel.levels[0].heat == [1, 2]
        assert wheel.forecast[0].label == "1 s"
        assert await client.ping() >= 0


@on_both
async def test_a_request_without_answer_times_out() -> None:
    async with serving(timeout=0.05) as (server, client):
        server.after = lambda event: "silent"
        with pytest.raises(RequestTimeout):
            await client.stats()
        with pytest.raises(TimeoutError):
            await client.send("tea", b"a")


@on_both
async def test_a_send_that_cannot_fit_any_frame_is_refused() -> None:
    async with serving() as (_, client):
        with pytest.raises(FrameTooLarge):
            await client.cancel(ids=list(range(2**40, 2**40 + 20_000)))


@pytest.mark.promise("R67")
@on_both
async def test_back_pressure_bounds_what_is_pending() -> None:
    async with serving(max_pending_bytes=40_000) as (server, client):
        server.after = lambda event: "silent" if isinstance(event, SendRequested) else None
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(client.send_many, "tea", [bytes(10_000)])
            await until(lambda: len(server.messages) == 3)
            await anyio.sleep(0.1)
            assert len(server.messages) == 3
            tasks.cancel_scope.cancel()


@on_both
async def test_a_closed_client_says_so() -> None:
    async with FakeServer() as server:
        client = Client(dial=server.dial)
        with pytest.raises(ClientClosed):
            await client.send("tea", b"a")
        async with client:
            assert client.is_connected
        with pytest.raises(ClientClosed):
            await client.stats()


@on_both
async def test_closing_fails_what_is_pending() -> None:
    async with FakeServer() as server:
        server.after = lambda event: "silent" if isinstance(event, SendRequested) else None
        caught: list[BaseException] = []
        sent = anyio.Event()

        async def send(client: Client) -> None:
            sent.set()
            try:
                await client.send("tea", b"a")
            except ClientClosed as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks, Client(dial=server.dial) as client:
            tasks.start_soon(send, client)
            await sent.wait()
            await client.ping()
        assert len(caught) == 1


@on_both
async def test_connect_for_code_without_a_block() -> None:
    async with FakeServer() as server:
        client = await tickwheel.connect(dial=server.dial)
        assert (await client.send("tea", b"a")).id == 1
        await client.close()
        await client.close()


@on_both
async def test_an_exception_in_the_block_comes_out_as_it_is() -> None:
    async with FakeServer() as server:
        with pytest.raises(KeyError):
            async with Client(dial=server.dial):
                raise KeyError("mine")


@on_both
async def test_cancelling_around_the_client_ends_it() -> None:
    async with FakeServer() as server:
        with anyio.move_on_after(0.05) as scope:
            async with Client(dial=server.dial) as client, client.subscribe("tea") as sub:
                await sub.receive()
        assert scope.cancelled_caught


@on_both
async def test_no_broker_is_a_typed_error() -> None:
    async with FakeServer() as server:
        server.refused_dials = 10**9
        with pytest.raises(NotConnected, match="nobody listens"):
            async with Client(dial=server.dial, connect_timeout=0.2):
                pass
        assert server.dials > 1


@on_both
async def test_a_broker_that_starts_late_is_waited_for() -> None:
    async with FakeServer() as server:
        server.refused_dials = 2
        async with Client(dial=server.dial) as client:
            assert client.is_connected
        assert server.dials == 3
