"""A client of several nodes: it finds the one that serves, and what it has asked goes on there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio
from anyio.abc import ByteStream

from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer, memory_pair
from tickwheel import Client, SendResult
from tickwheel.client.conversation import CLUSTER_BACKOFF_MAX_S
from tickwheel.client.url import Address
from tickwheel.errors import BadToken, NotConnected, NotOwner, TickwheelError, TooManyConnections
from tickwheel.protocol.bodies.requests import GoAway, Hello, Subscribe
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.machine import AckRequested, SendRequested, ServerEvent

URLS = "tickwheel://a:1,b:1,c:1"


class Cluster:
    """Three nodes, each with a fake server; and what each does when it is dialled."""

    def __init__(self, servers: dict[str, FakeServer]) -> None:
        self.servers = servers
        self.does: dict[str, str | TickwheelError] = dict.fromkeys(servers, "refuses")
        self.dialled: list[tuple[str, float]] = []
        """By name and time."""
        self.silent: list[ByteStream] = []
        for name, server in servers.items():
            server.refuse = self._refusing(name)

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.dialled)

    async def dial(self, address: Address) -> ByteStream:
        name = str(address).removeprefix("tickwheel://").partition(":")[0]
        self.dialled.append((name, anyio.current_time()))
        await anyio.lowlevel.checkpoint()
        match self.does[name]:
            case "refuses":
                raise ConnectionRefusedError("nobody listens")
            case "is not reached":
                await anyio.sleep_forever()
            case "says nothing":
                client, server = memory_pair()
                self.silent.append(server)
                return client
        return await self.servers[name].dial(address)

    def _refusing(self, name: str) -> Any:
        def refuse(event: ServerEvent) -> TickwheelError | None:
            does = self.does[name]
            return does if isinstance(does, TickwheelError) else None

        return refuse

    def moves(self, name: str, *, tells: bool = True) -> None:
        """This node serves from now on; the others say so."""
        for one in self.servers:
            self.does[one] = NotOwner.naming(f"tickwheel://{name}:1" if tells else "")
        self.does[name] = "serves"


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(FakeServer()) for name in "abc"}
        for server in servers.values():  # one log
            server.messages = servers["a"].messages
        nodes = Cluster(servers)
        try:
            yield nodes
        finally:
            for stream in nodes.silent:
                await stream.aclose()


@on_both
async def test_a_refused_connection_goes_to_the_next_node_at_once() -> None:
    async with cluster() as nodes:
        nodes.does["c"] = "serves"
        async with Client(URLS, dial=nodes.dial) as client:
            assert nodes.names == "abc"
            assert nodes.dialled[2][1] - nodes.dialled[0][1] < 1.0
            assert await client.send("tea", b"a") == SendResult(1)


@on_both
async def test_not_owner_leads_to_the_owner() -> None:
    async with cluster() as nodes:
        nodes.moves("c")
        async with Client(URLS, dial=nodes.dial) as client:
            assert nodes.names == "ac"
            assert await client.send("tea", b"a") == SendResult(1)
    async with cluster() as nodes:
        nodes.moves("c", tells=False)
        async with Client(URLS, dial=nodes.dial):
            assert nodes.names == "abc"
    async with cluster() as nodes:
        nodes.moves("c")
        async with Client("tickwheel://a:1", dial=nodes.dial) as client:
            assert (nodes.names, client.url) == ("ac", "tickwheel://a:1")


async def test_a_node_that_says_nothing_holds_nobody_up_for_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for silence in ("says nothing", "is not reached"):
        async with cluster() as nodes:
            nodes.does |= {"a": silence, "b": "serves"}
            began = trio.current_time()
            async with Client(URLS, dial=nodes.dial, connect_timeout=6.0) as client:
                assert trio.current_time() - began == pytest.approx(2.0)
                assert nodes.names == "ab"
                await client.send("tea", b"a")


async def test_among_silent_nodes_the_one_that_serves_is_found_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as nodes:
        nodes.does = {"a": "says nothing", "b": "is not reached", "c": "serves"}
        async with Client(URLS, dial=nodes.dial, connect_timeout=6.0):
            assert nodes.names == "abc"


async def test_all_are_down_and_one_comes(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as nodes:
        nodes.does["a"] = "serves"
        async with Client(URLS, dial=nodes.dial) as client, client.subscribe("tea") as sub:
            nodes.does["a"] = "refuses"
            nodes.servers["a"].break_all()
            await trio.sleep(20)
            assert not client.is_connected
            rounds = [time for name, time in nodes.dialled[1:] if name == "a"]
            assert {len(nodes.dialled[1:]) // len(rounds)} == {3}
            pauses = [later - earlier for earlier, later in pairwise(rounds)]
            assert max(pauses) <= CLUSTER_BACKOFF_MAX_S + 0.001
            nodes.does["b"] = "serves"
            began = trio.current_time()
            await client.send("tea", b"a")
            assert trio.current_time() - began <= CLUSTER_BACKOFF_MAX_S
            message = await sub.receive()
            assert message is not None
            await message.ack(confirm=True)
            assert len(nodes.servers["b"].seen(Subscribe)) == 1


async def test_a_node_that_stays_silent_does_not_keep_the_client_from_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The owner was stopped (SIGSTOP), and another one takes over some seconds later."""
    async with cluster() as nodes:
        nodes.does["a"] = "serves"
        async with Client(URLS, dial=nodes.dial, keepalive=4.0, connect_timeout=3.0, timeout=60.0) as client:
            await client.send("tea", b"a")
            nodes.does = dict.fromkeys("bc", NotOwner.naming("tickwheel://a:1")) | {"a": "says nothing"}
            nodes.servers["a"].after = lambda event: "silent"
            while client.is_connected:
                await trio.sleep(0.1)
            await trio.sleep(1)
            nodes.moves("b")
            nodes.does["a"] = "says nothing"
            began = trio.current_time()
            assert await client.send("tea", b"b", key="b") == SendResult(2)
            assert trio.current_time() - began <= 1.0 + CLUSTER_BACKOFF_MAX_S


@pytest.mark.parametrize(("urls", "keepalive_s"), [(URLS, 5), (URLS.partition(",")[0], 30)])
async def test_a_client_leaves_a_silent_node_sooner_where_there_are_others(
    autojump_clock: trio.testing.MockClock, urls: str, keepalive_s: float
) -> None:
    async with cluster() as nodes:
        nodes.does["a"] = "serves"
        async with Client(urls, dial=nodes.dial, timeout=60.0) as client:
            await client.send("tea", b"a")
            nodes.servers["a"].after = lambda event: "silent"
            nodes.does["a"] = "says nothing"
            began = trio.current_time()
            while client.is_connected:
                await trio.sleep(0.1)
            assert keepalive_s <= trio.current_time() - began <= keepalive_s + 2


@on_both
async def test_requests_and_subscriptions_go_on_at_the_next_owner() -> None:
    async with cluster() as nodes:
        nodes.moves("a")
        async with Client(URLS, dial=nodes.dial) as client, client.subscribe("tea") as sub:
            await client.send("tea", b"a")
            first = await sub.receive()
            assert first is not None
            nodes.servers["b"].topic_offset = 40
            nodes.servers["a"].after = lambda event: "break" if isinstance(event, SendRequested) else None
            nodes.moves("b")
            nodes.does["a"] = "serves"  # it stores one more, and dies before it answers
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.send, "tea", b"b")
                while not nodes.servers["a"].seen(SendRequested)[1:]:
                    await anyio.sleep(0.001)
                nodes.does["a"] = "refuses"
            assert [message.body for message in nodes.servers["b"].messages] == [b"a", b"b"]
            await first.ack()
            second = await sub.receive()
            assert second is not None
            assert second.body == b"b"
            await second.ack()
            await sub.flush()
            assert [message.acked for message in nodes.servers["b"].messages] == [{"default"}, {"default"}]
            assert nodes.servers["b"].seen(AckRequested)


@on_both
async def test_a_request_that_is_told_not_owner_is_made_at_the_owner_even_without_key() -> None:
    async with cluster() as nodes:
        nodes.moves("a")
        async with Client(URLS, dial=nodes.dial, auto_key=False) as client, client.subscribe("tea") as sub:
            await client.send("tea", b"a")
            held = await sub.receive()
            assert held is not None
            nodes.moves("c")
            assert (await client.send("tea", b"b")).id == 2
            assert nodes.names == "ac"
            await held.ack(confirm=True)  # it was not given back: a node that is deposed ends no leases
            assert nodes.servers["c"].messages[0].acked == {"default"}


@on_both
async def test_a_node_that_goes_away_is_not_the_first_choice_any_more() -> None:
    async with cluster() as nodes:
        nodes.moves("b")
        async with Client(URLS, dial=nodes.dial) as client:
            await client.send("tea", b"a")
            nodes.moves("c", tells=False)
            await nodes.servers["b"].say(FrameType.GOAWAY, GoAway(reason="restart"))
            assert (await client.send("tea", b"b")).id == 2
            assert nodes.names == "ababc"


@on_both
async def test_a_connection_that_breaks_is_made_again_to_the_same_node_first() -> None:
    async with cluster() as nodes:
        nodes.moves("b", tells=False)
        async with Client(URLS, dial=nodes.dial) as client:
            nodes.servers["b"].break_all()
            while client.is_connected:
                await anyio.sleep(0.001)
            await client.send("tea", b"a")
            assert nodes.names == "abb"


@on_both
async def test_what_one_node_refuses_for_good_another_may_not() -> None:
    async with cluster() as nodes:
        nodes.does |= {"a": BadToken(), "c": "serves"}
        async with Client(URLS, dial=nodes.dial) as client:
            await client.send("tea", b"a")


@on_both
async def test_when_all_that_answer_refuse_for_good_it_is_over() -> None:
    async with cluster() as nodes:
        nodes.does |= {"b": BadToken()}
        with pytest.raises(BadToken):
            async with Client(URLS, dial=nodes.dial):
                pass
        assert nodes.names == "abc"


async def test_without_a_connection_it_says_why_for_each_node(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as nodes:
        nodes.does |= {"a": BadToken(), "b": NotOwner.naming("")}
        with pytest.raises(NotConnected) as caught:
            async with Client(URLS, dial=nodes.dial, connect_timeout=2.0):
                pass
        for part in (URLS, f"tickwheel://a:1: {BadToken()}", f"tickwheel://b:1: {NotOwner()}", "c:1: nobody"):
            assert part in caught.value.message


@on_both
async def test_a_node_that_is_full_is_tried_again() -> None:
    async with cluster() as nodes:
        nodes.does |= {"a": TooManyConnections(), "b": BadToken()}
        async with anyio.create_task_group() as tasks:

            async def makes_room() -> None:
                while nodes.names.count("a") < 2:
                    await anyio.sleep(0.001)
                nodes.does["a"] = "serves"

            tasks.start_soon(makes_room)
            async with Client(URLS, dial=nodes.dial) as client:
                await client.ping()


@on_both
async def test_each_node_is_told_the_same_token_and_name() -> None:
    async with cluster() as nodes:
        nodes.moves("b")
        async with Client(URLS, dial=nodes.dial, name="me"):
            hellos = [server.seen(Hello) for server in nodes.servers.values()]
            assert [[hello.client for hello in seen] for seen in hellos] == [["me"], ["me"], []]
