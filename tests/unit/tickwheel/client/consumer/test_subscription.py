"""Receiving and acknowledging."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer
from tickwheel import Batch, Client, Message
from tickwheel.errors import (
    BadArgument,
    BadTopicName,
    ClientClosed,
    RemoteProtocolError,
    TooManySubscriptions,
)
from tickwheel.protocol.bodies.requests import Subscribe, Unsubscribe
from tickwheel.protocol.bodies.settling import Return
from tickwheel.protocol.machine import AckRequested, Requested


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[FakeServer, Client]]:
    async with FakeServer() as server, Client(dial=server.dial, **options) as client:
        yield server, client


@on_both
async def test_messages_come_one_by_one_with_everything_that_was_sent() -> None:
    async with serving() as (_, client):
        await client.send_many(
            "tea",
            [b"", b"b" * 300, b"c"],
            keys=[None, "kéy", None],
            headers=[{"n": 1}, None, {"x": [None, 2.5]}],
            priority=[1, 2, 3],
        )
        async with client.subscribe("tea") as sub:
            assert sub.ack_wait_ms == 30_000
            got = []
            async for message in sub:
                got.append(message)
                await message.ack()
                if len(got) == 3:
                    break
        assert [m.body for m in got] == [b"", b"b" * 300, b"c"]
        assert [m.key for m in got] == [None, "kéy", None]
        assert [m.headers for m in got] == [{"n": 1}, {}, {"x": [None, 2.5]}]
        assert [m.priority for m in got] == [1, 2, 3]
        assert [m.id for m in got] == [1, 2, 3]
        assert {m.topic for m in got} == {"tea"}
        first = got[0]
        assert (first.epoch, first.deliver_at_ms, first.created_ms) == (1, 1001, 501)
        assert first.deliver_at == datetime(1970, 1, 1, 0, 0, 1, 1000, tzinfo=UTC)
        assert first.created == datetime(1970, 1, 1, 0, 0, 0, 501_000, tzinfo=UTC)
        assert repr(first) == "<Message 1 of 'tea', epoch 1, 0 bytes>"


@on_both
async def test_acks_of_one_loop_turn_share_a_frame() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 200)
        async with client.subscribe("tea", batch=200) as sub:
            for _ in range(200):
                message = await sub.receive()
                assert message is not None
                await message.ack()
            await sub.flush()
            acks = server.seen(AckRequested)  # one, or a few on a machine that is busy
            assert len(acks) <= 10
            assert [one for ack in acks for one in ack.columns.ids] == list(range(1, 201))
            assert {one for ack in acks for one in ack.columns.epochs} == {1}


@pytest.mark.promise("S18")
@on_both
async def test_a_batch_is_acked_in_one_frame() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"%d" % n for n in range(30)])
        async with client.subscribe("tea", batch=10) as sub:
            bodies: list[bytes] = []
            async for batch in sub.batches():
                assert isinstance(batch, Batch)
                assert len(batch) == 10
                assert [m.body for m in batch] == batch.bodies()
                assert [m.id for m in batch] == list(batch.ids)
                assert batch.epochs == (1,) * 10
                bodies += batch.bodies()
                await batch.ack(confirm=True)
                if len(bodies) == 30:
                    break
        assert bodies == [b"%d" % n for n in range(30)]
        assert len(server.seen(AckRequested)) == 3
        assert all(m.acked for m in server.messages)


@on_both
async def test_credit_bounds_what_is_held() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 20)
        async with client.subscribe("tea", credit=5, batch=500) as sub:
            (request,) = server.seen(Subscribe)
            assert (request.credit, request.batch) == (5, 5)
            held: list[Message] = []
            while (message := await sub.receive(timeout=0.05)) is not None:
                held.append(message)
            assert len(held) == 5
            await held[0].ack(confirm=True)
            assert await sub.receive() is not None


@on_both
async def test_receive_gives_none_when_nothing_comes() -> None:
    async with serving() as (_, client), client.subscribe("tea") as sub:
        assert await sub.receive(timeout=0.01) is None
        assert await sub.receive_batch(timeout=0.01) is None
        await client.send("tea", b"a")
        message = await sub.receive(timeout=10)
        assert message is not None


@on_both
async def test_leaving_sends_acks_first_and_gives_the_rest_back() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 10)
        async with client.subscribe("tea") as sub:
            for _ in range(4):
                message = await sub.receive()
                assert message is not None
                await message.ack()
        assert [bool(m.acked) for m in server.messages] == [True] * 4 + [False] * 6
        assert len(server.seen(Unsubscribe)) == 1
        async with client.subscribe("tea") as sub:
            message = await sub.receive()
            assert message is not None
            assert (message.id, message.epoch) == (5, 2)


@on_both
async def test_leaving_says_which_messages_nobody_has_looked_at() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 5)
        async with client.subscribe("tea", batch=3) as sub:
            message = await sub.receive()
            assert message is not None
        stop, *returned = server.seen(Return)
        assert stop.ids == []
        assert [(request.ids, request.epochs) for request in returned] == [([2, 3, 4, 5], [1, 1, 1, 1])]
        with pytest.raises(StopAsyncIteration):
            await anext(sub)


@on_both
async def test_a_stopped_subscription_ends_after_what_has_come() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 5)
        async with client.subscribe("tea", credit=3, batch=1) as sub:
            first = await sub.receive_batch()
            assert first is not None
            await sub.stop()
            rest = [batch async for batch in sub.batches()]
            for batch in (first, *rest):
                await batch.ack()
        assert [bool(message.acked) for message in server.messages] == [True] * 3 + [False] * 2
        assert [request.ids for request in server.seen(Return)] == [[]], (
            "asked once, and nothing is left unseen"
        )


@on_both
async def test_leaving_after_an_error_says_it_too() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 3)
        subscription = client.subscribe("tea")
        await subscription.__aenter__()
        await anext(subscription)
        await subscription.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        while not server.seen(Unsubscribe):
            await client.ping()
        assert [request.ids for request in server.seen(Return)] == [[], [2, 3]]


@on_both
async def test_leaving_by_cancellation_still_sends_the_acks() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 3)
        with anyio.CancelScope() as scope:
            async with client.subscribe("tea") as sub:
                message = await sub.receive()
                assert message is not None
                await message.ack()
                scope.cancel()
                await anyio.sleep_forever()
        while not server.seen(Unsubscribe):
            await client.ping()
        assert [bool(m.acked) for m in server.messages] == [True, False, False]


@on_both
async def test_closing_the_client_writes_the_acks_first() -> None:
    async with FakeServer() as server:
        with anyio.CancelScope() as scope:
            async with Client(dial=server.dial) as client, client.subscribe("tea") as sub:
                await client.send("tea", b"x")
                message = await sub.receive()
                assert message is not None
                await message.ack()
                scope.cancel()
                await anyio.sleep_forever()
        while server.connections:
            await anyio.sleep(0.001)
        assert server.messages[0].acked
        assert len(server.seen(Unsubscribe)) == 1


@on_both
async def test_a_refused_subscription_raises() -> None:
    async with serving() as (server, client):
        server.refuse = lambda event: (
            TooManySubscriptions()
            if isinstance(event, Requested) and isinstance(event.request, Subscribe)
            else None
        )
        with pytest.raises(TooManySubscriptions):
            async with client.subscribe("tea"):
                pass


@on_both
async def test_bad_subscriptions_are_refused_before_anything_is_sent() -> None:
    async with serving() as (server, client):
        with pytest.raises(BadTopicName):
            client.subscribe("no spaces")
        with pytest.raises(BadTopicName):
            client.subscribe("tea", group="")
        with pytest.raises(BadArgument):
            client.subscribe("tea", credit=0)
        assert server.seen(Subscribe) == []


@on_both
async def test_closing_the_client_ends_a_reader_in_another_task() -> None:
    async with FakeServer() as server:
        caught: list[BaseException] = []

        async def read(client: Client) -> None:
            try:
                async with client.subscribe("tea") as sub:
                    reading.set()
                    await sub.receive()
            except ClientClosed as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks:
            reading = anyio.Event()
            async with Client(dial=server.dial) as client:
                tasks.start_soon(read, client)
                await reading.wait()
        assert len(caught) == 1


@on_both
async def test_leaving_ends_the_iteration_of_other_tasks() -> None:
    async with serving() as (_, client):
        ended = anyio.Event()

        async with anyio.create_task_group() as tasks, client.subscribe("tea") as sub:

            async def read() -> None:
                async for _ in sub:
                    pass
                ended.set()

            tasks.start_soon(read)
            await client.ping()
        assert ended.is_set()


@on_both
async def test_a_slow_subscriber_keeps_a_bounded_number_of_stale_messages() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"%d" % n for n in range(10)])
        async with client.subscribe("tea", credit=10, batch=10) as sub:
            for _ in range(5):
                await client.ping()
                server.expire_leases()
            await client.ping()
            epochs = []
            while (batch := await sub.receive_batch(timeout=0.05)) is not None:
                epochs.append(batch.epochs[0])
            assert len(epochs) == 2
            assert epochs == sorted(epochs)
            assert epochs[-1] == max(m.epochs["default"] for m in server.messages)


@on_both
async def test_headers_of_a_foreign_client_that_are_no_map_are_a_typed_error() -> None:
    async with serving() as (server, client):
        await client.send("tea", b"a", headers={"a": 1})
        server.messages[0].headers = b"\xc1"
        async with client.subscribe("tea") as sub:
            message = await sub.receive()
            assert message is not None
            with pytest.raises(RemoteProtocolError):
                _ = message.headers
            assert message.body == b"a"


@on_both
async def test_many_unanswered_acks_make_the_next_one_wait() -> None:
    async with serving() as (server, client):
        await client.send_many("tea", [b"x"] * 100)
        server.after = lambda event: "silent" if isinstance(event, AckRequested) else None
        async with client.subscribe("tea", batch=1) as sub:
            acked = 0
            with anyio.move_on_after(0.2):
                async for batch in sub.batches():
                    await batch.ack()
                    acked += 1
            assert acked == 63
            server.break_all()
            server.after = None
            await sub.flush()
            assert sum(bool(m.acked) for m in server.messages) >= 64
