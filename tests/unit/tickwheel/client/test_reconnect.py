"""What happens to requests and subscriptions when the connection breaks."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer, serving
from tickwheel import Client, SendResult
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.errors import (
    BadHandshake,
    NotConnected,
    NotOwner,
    SendUncertain,
    ShuttingDown,
    StaleReceipt,
    TickwheelError,
    TooManyConnections,
    TooManyGroups,
    UnsupportedProtocol,
)
from tickwheel.protocol.bodies.requests import GoAway, Hello, Subscribe, Unsubscribe
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.machine import AckRequested, Requested, SendRequested, ServerEvent

Hook = Callable[[ServerEvent], str | None]


def once(kind: type, action: str) -> Hook:
    """A hook that acts on the first event of this kind only."""
    seen: list[ServerEvent] = []

    def hook(event: ServerEvent) -> str | None:
        if isinstance(event, kind) and not seen:
            seen.append(event)
            return action
        return None

    return hook


async def disconnected(client: Client) -> None:
    while client.is_connected:
        await anyio.sleep(0.001)


async def connected(client: Client) -> None:
    while not client.is_connected:
        await anyio.sleep(0.001)


@on_both
async def test_who_waits_is_answered_although_others_gave_up_before_and_after_it_was_written() -> None:
    """Three sends share a frame; one is given up before it is written and one after that, and the connection breaks."""
    async with FakeServer() as server, Client(dial=server.dial) as client:
        scopes = [anyio.CancelScope() for _ in range(3)]
        results: list[SendResult] = []

        async def send(number: int) -> None:
            with scopes[number]:
                results.append(await client.send("tea", b"x", key=f"k{number}"))

        seen: list[ServerEvent] = []

        def hook(event: ServerEvent) -> str | None:
            seen.append(event)
            if isinstance(event, SendRequested):
                scopes[1].cancel()
                return "break"
            scopes[0].cancel()  # the topic is being opened
            return None

        server.before = hook
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(send, number)
            while not any(isinstance(event, SendRequested) for event in seen):
                await anyio.sleep(0.001)
            server.before = None
        assert len(results) == 1


@pytest.mark.promise("R69")
@on_both
async def test_a_send_whose_answer_was_lost_is_stored_once() -> None:
    async with serving() as (server, client):
        server.after = once(SendRequested, "break")
        assert await client.send("tea", b"a") == SendResult(1, duplicate=False)
        assert [m.body for m in server.messages] == [b"a"]
        assert len(server.seen(SendRequested)) == 2


@pytest.mark.promise("R68")
@on_both
async def test_a_send_that_never_arrived_is_sent_again() -> None:
    async with serving() as (server, client):
        server.before = once(SendRequested, "break")
        assert (await client.send("tea", b"a", key="mine")).id == 1
        assert [m.key for m in server.messages] == [b"mine"]


@on_both
async def test_without_key_a_send_that_may_have_arrived_is_uncertain() -> None:
    async with serving(auto_key=False) as (server, client):
        server.after = once(SendRequested, "break")
        with pytest.raises(SendUncertain):
            await client.send("tea", b"a")
        assert len(server.messages) == 1
        assert (await client.send("tea", b"b")).id == 2


@on_both
async def test_send_many_without_keys_is_uncertain_and_with_auto_key_repeated() -> None:
    async with serving() as (server, client):
        server.after = once(SendRequested, "break")
        with pytest.raises(SendUncertain):
            await client.send_many("tea", [b"a", b"b"])
        server.after = once(SendRequested, "break")
        results = await client.send_many("tea", [b"c", b"d"], auto_key=True)
        assert list(results) == [SendResult(3), SendResult(4)]
        server.after = once(SendRequested, "break")
        results = await client.send_many("tea", [b"e"], keys=["e"])
        assert list(results) == [SendResult(5, duplicate=True)]
        assert [m.body for m in server.messages] == [b"a", b"b", b"c", b"d", b"e"]


@on_both
async def test_sends_while_disconnected_wait_for_the_next_connection_in_order() -> None:
    async with serving(auto_key=False) as (server, client):
        await client.send("tea", b"0")
        server.refused_dials = 2
        server.topic_offset = 40
        server.break_all()
        await disconnected(client)
        await client.send_many("tea", [b"1", b"2"])
        await client.send("tea", b"3")
        assert [m.body for m in server.messages] == [b"0", b"1", b"2", b"3"]


@on_both
async def test_a_send_cancelled_while_disconnected_is_not_sent() -> None:
    async with serving() as (server, client):
        await client.send("tea", b"first")
        server.refused_dials = 10**9
        server.break_all()
        await disconnected(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send, "tea", b"stays")
            with anyio.move_on_after(0.02):
                await client.send("tea", b"goes")
            with anyio.move_on_after(0.02):
                await client.send_many("tea", [b"goes too"])
            server.refused_dials = 0
        await client.send("tea", b"last")
        assert [m.body for m in server.messages] == [b"first", b"stays", b"last"]


@on_both
async def test_other_requests_survive_a_reconnect() -> None:
    async with serving() as (server, client):
        server.before = once(Requested, "break")
        assert (await client.stats()).version == "fake"


@on_both
async def test_shutting_down_is_retried_on_the_next_connection_even_without_key() -> None:
    async with serving(auto_key=False) as (server, client):
        refused: list[ServerEvent] = []

        def refuse(event: ServerEvent) -> ShuttingDown | None:
            if isinstance(event, SendRequested) and not refused:
                refused.append(event)
                return ShuttingDown()
            return None

        server.refuse = refuse
        assert (await client.send("tea", b"a")).id == 1
        assert server.dials == 2


@on_both
async def test_what_is_refused_until_the_next_connection_keeps_its_order() -> None:
    """Frames of one ``send_many``, say: its messages are to reach the topic in their order."""
    for error in (ShuttingDown(), NotOwner()):
        async with serving(auto_key=False) as (server, client):
            await client.send("tea", b"first")

            def refuse(event: ServerEvent, error: TickwheelError = error) -> TickwheelError | None:
                return error if isinstance(event, SendRequested) and server.dials == 1 else None

            server.refuse = refuse
            bodies = [b"%d" % number + bytes(9_000) for number in range(20)]  # more than one frame
            await client.send_many("tea", bodies)
            assert len(server.seen(SendRequested)) > 4
            assert [message.body for message in server.messages] == [b"first", *bodies]


@on_both
async def test_after_goaway_the_client_goes_to_the_next_connection() -> None:
    async with serving() as (server, client):
        await client.send("tea", b"a")
        await server.say(FrameType.GOAWAY, GoAway(reason="restart"))
        while server.dials < 2:
            await anyio.sleep(0.001)
        assert (await client.send("tea", b"b")).id == 2


@on_both
async def test_a_silent_connection_is_replaced() -> None:
    async with serving(keepalive=0.2, timeout=1.0) as (server, client):
        server.after = lambda event: None if isinstance(event, Requested) and _is_hello(event) else "silent"
        while server.dials < 2:
            await anyio.sleep(0.01)
        server.after = None
        await connected(client)
        assert (await client.send("tea", b"a")).id == 1


@on_both
async def test_keepalive_pings_keep_a_quiet_connection() -> None:
    async with serving(keepalive=0.4, timeout=0.4) as (server, client):
        await anyio.sleep(1.0)
        assert server.dials == 1
        assert client.is_connected


def _is_hello(event: Requested) -> bool:
    return isinstance(event.request, Hello)


@on_both
async def test_a_subscription_goes_on_after_a_reconnect() -> None:
    async with serving() as (server, client):
        async with client.subscribe("tea", group="g") as sub:
            await client.send("tea", b"a")
            first = await sub.receive()
            assert first is not None
            server.topic_offset = 9
            server.break_all()
            await disconnected(client)
            await first.ack()
            await client.send("tea", b"b")
            second = await sub.receive()
            assert second is not None
            assert second.body == b"b"
            await second.ack()
            await sub.flush()
            assert [m.acked for m in server.messages] == [{"g"}, {"g"}]
        assert len(server.seen(Subscribe)) == 2
        assert len(server.seen(Unsubscribe)) == 1


@on_both
async def test_acks_whose_answer_was_lost_are_sent_again_and_are_no_error() -> None:
    async with serving() as (server, client), client.subscribe("tea") as sub:
        await client.send_many("tea", [b"a", b"b"])
        batch = await sub.receive_batch()
        assert batch is not None
        server.after = once(AckRequested, "break")
        await batch.ack(confirm=True)
        await sub.flush()
        assert len(server.seen(AckRequested)) == 2
        assert all(m.acked for m in server.messages)


@on_both
async def test_a_stale_answer_to_a_repeated_ack_is_an_error_too() -> None:
    """Had the first copy counted, the answer would be that the message is acked already."""
    async with serving() as (server, client), client.subscribe("tea") as sub:
        await client.send("tea", b"a")
        message = await sub.receive()
        assert message is not None
        server.before = once(AckRequested, "break")
        server.messages[0].epochs["default"] = 2
        with pytest.raises(StaleReceipt):
            await message.ack(confirm=True)


@on_both
async def test_a_stale_answer_to_a_first_ack_is_an_error() -> None:
    async with serving() as (server, client), client.subscribe("tea") as sub:
        await client.send("tea", b"a")
        message = await sub.receive()
        assert message is not None
        server.messages[0].epochs["default"] = 2
        with pytest.raises(StaleReceipt) as caught:
            await message.ack(confirm=True)
        assert caught.value.refused == {1: "stale_receipt"}
        await sub.flush()
        await message.ack()
        with pytest.raises(StaleReceipt):
            await sub.flush()
        await sub.flush()


@on_both
async def test_a_subscription_that_cannot_be_renewed_fails_its_reader() -> None:
    async with serving() as (server, client):
        async with client.subscribe("tea") as sub:
            server.refuse = lambda event: (
                TooManyGroups()
                if isinstance(event, Requested) and isinstance(event.request, Subscribe)
                else None
            )
            server.break_all()
            with pytest.raises(TooManyGroups):
                await sub.receive()
        assert client.is_connected


@on_both
async def test_too_many_connections_is_tried_again() -> None:
    async with FakeServer() as server:
        refused: list[ServerEvent] = []

        def refuse(event: ServerEvent) -> TooManyConnections | None:
            refused.append(event)
            return TooManyConnections() if len(refused) == 1 else None

        server.refuse = refuse
        async with Client(dial=server.dial) as client:
            await client.ping()
        assert server.dials == 2


@on_both
async def test_another_protocol_is_refused_for_good() -> None:
    async with FakeServer() as server:
        server.refuse = lambda event: UnsupportedProtocol()
        with pytest.raises(UnsupportedProtocol):
            async with Client(dial=server.dial):
                pass
        assert server.dials == 1


@on_both
async def test_something_else_than_a_broker_is_refused_for_good() -> None:
    async with FakeServer() as server:
        server.answer = lambda connection, event: b"HTTP/1.1 400 Bad Request\r\n\r\n"  # type: ignore[method-assign]
        with pytest.raises(BadHandshake, match="does not answer as a Tickwheel broker"):
            async with Client(dial=server.dial):
                pass
        assert server.dials == 1


@on_both
async def test_nobody_answers_the_handshake() -> None:
    async with FakeServer() as server:
        server.after = lambda event: "silent"
        with pytest.raises(NotConnected):
            async with Client(dial=server.dial, connect_timeout=0.05):
                pass


def test_backoff_doubles_with_jitter_up_to_its_limit_and_starts_again() -> None:
    low, high = Backoff(0.1, 1.0, jitter=lambda: 0.0), Backoff(0.1, 1.0, jitter=lambda: 1.0)
    assert [round(low.next_s(), 3) for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert [round(high.next_s(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for _ in range(2000):
        assert high.next_s() == 1.0
    high.reset()
    assert high.next_s() == 0.1


@on_both
async def test_acks_of_two_deliveries_in_one_frame_are_told_apart() -> None:
    async with serving() as (server, client), client.subscribe("tea") as sub:
        await client.send("tea", b"a")
        message = await sub.receive()
        assert message is not None
        server.messages[0].epochs["default"] = 2
        await message.ack()
        newest = type(message)(message._batch, message._index, message.id, 2)
        await newest.ack(confirm=True)
        with pytest.raises(StaleReceipt):
            await sub.flush()
