"""Clients of several nodes, with real daemons: two have one directory, on two ports, and serve in turns.

So a failover is what a cluster makes of it: the next node has the log, and clients must find it. Besides there is a
node that accepts connections and never says a word.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from tests.crash.test_kill_loop import check_directory, check_schedule, lacks_slots, small_parts
from tests.integration.client.test_lost_answers import CASES, nothing
from tests.support.clients.crash_load import Ledger, MixedLoad
from tests.support.clients.waiting import until
from tests.support.cluster import in_a_cluster
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.losing import Losing
from tests.support.run.profile import seed
from tickwheel import AckRefused, Client, NotConnected, SendUncertain, sync
from tickwheel.protocol.frames import FrameType
from tickwheel_bench.processes import free_port
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.net.listeners import open_listeners
from tickwheel_broker.node.referral import Referral
from tickwheel_broker.security.access import Access
from tickwheel_cli.main import root

FAILOVERS = 6

AT_ONCE = [
    "cancel_by_key", "cancel_by_keys", "cancel_and_stop", "reschedule", "redeliver", "cancel_where", "redeliver_where",
    "nack", "nack_after_the_last_attempt", "ack", "transaction", "prepare", "prepare_with_a_key", "commit_prepared",
    "rollback_prepared", "replay_dead", "create_topic", "set_topic", "delete_topic", "create_schedule", "set_schedule",
    "delete_schedule", "trigger_schedule", "create_group", "delete_group", "seek_group",
    "set_group",
]  # fmt: skip
"""Of the requests whose answer is lost, those that do not mind others beside them, nor that the broker begins anew."""


class Nodes:
    """One directory, and two daemons of which one serves."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        ports = [free_port(), free_port()]
        self._daemons = [Daemon(directory, listen_port=port, **settings) for port in ports]
        self.urls = [f"tickwheel://127.0.0.1:{port}" for port in ports]
        self.owner = self._daemons[0]

    @property
    def url(self) -> str:
        """Both."""
        return ",".join(self.urls)

    def fail(self, *, politely: bool = False) -> None:
        """The one that serves ends."""
        if politely:
            assert self.owner.stop() == 0
        else:
            self.owner.kill()

    def take_over(self) -> None:
        """The other one serves."""
        first, second = self._daemons
        self.owner = second if self.owner is first else first
        self.owner.start()

    def fail_over(self, *, politely: bool = False) -> None:
        self.fail(politely=politely)
        self.take_over()

    def __enter__(self) -> Nodes:
        self.owner.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.owner.__exit__(None, None, None)


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Of a node that accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tickwheel://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def nodes_that_are_down(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path / "data") as nodes:
        nodes.fail()
        yield nodes


class SyncLoad(threading.Thread):
    """A producer and a consumer that block, until they are told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.sent: dict[str, int] = {}
        self.received: dict[int, int] = {}
        self.confirmed: set[int] = set()
        self.problems: list[object] = []
        self.is_stopping = False
        self._has_sent_all = False
        self._url = url

    def run(self) -> None:
        try:
            consumer = threading.Thread(target=self._consume, daemon=True)
            consumer.start()
            with self._client() as client:
                while not self.is_stopping:
                    key = f"s-{len(self.sent)}"
                    result = client.send("sync", key.encode(), key=key)
                    self.sent[key] = result.id
            self._has_sent_all = True
            consumer.join(PATIENCE_S)
            if consumer.is_alive():
                self.problems.append("the consumer does not get all of it")
        except BaseException as error:
            self.problems.append(error)
            self._has_sent_all = True

    def _consume(self) -> None:
        try:
            with self._client() as client, client.subscribe("sync") as subscription:
                while not (self._has_sent_all and set(self.sent.values()) <= self.confirmed):
                    message = subscription.receive(timeout=0.2)
                    if message is None:
                        continue
                    if message.id in self.confirmed:
                        self.problems.append(f"{message.id} was acked, and came again")
                    self.received[message.id] = self.received.get(message.id, 0) + 1
                    with suppress(AckRefused):  # its lease was given back meanwhile: it comes again
                        message.ack(confirm=True)
                        self.confirmed.add(message.id)
        except BaseException as error:
            self.problems.append(error)

    def _client(self) -> sync.Client:
        return sync.Client(self._url, timeout=PATIENCE_S, connect_timeout=PATIENCE_S)


async def test_nothing_answered_is_lost_or_doubled_under_load(tmp_path: Path) -> None:
    ledger, drawn = Ledger(), seed("several nodes")
    print(f"seed {drawn}")
    sizes = {"segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}
    waits = {"ack_wait": "2s", "min_backoff": "100ms", "max_backoff": "2s"}
    with Nodes(tmp_path / "data", log_level="info", **waits, **sizes) as nodes:
        blocking = SyncLoad(nodes.url)
        blocking.start()

        async def until_enough() -> None:
            for number in range(FAILOVERS):
                seen, sent = ledger.promises, len(blocking.confirmed)
                await until(lambda: ledger.promises > seen + 20 and len(blocking.confirmed) > sent)  # noqa: B023
                await trio.to_thread.run_sync(lambda: nodes.fail_over(politely=number % 2 == 1))  # noqa: B023
            await until(lambda: len(ledger.sent) > 1_000 and min(map(len, small_parts(ledger))) > 20)
            await until(lambda: not lacks_slots(ledger))
            blocking.is_stopping = True

        await MixedLoad(nodes.url, ledger, drawn).run(until_enough)
        await trio.to_thread.run_sync(blocking.join, PATIENCE_S)
    assert blocking.problems == []
    assert len(set(blocking.sent.values())) == len(blocking.sent) > FAILOVERS
    assert set(blocking.sent.values()) == blocking.received.keys()
    assert ledger.received_after_confirmed_ack == []
    check_schedule(ledger)
    in_a_cluster.release(tmp_path / "data")
    check_directory(tmp_path / "data", ledger)


async def test_a_request_that_is_made_again_at_the_next_node_gets_its_first_answer(
    tmp_path: Path, silent_url: str
) -> None:
    told: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    with Nodes(tmp_path / "data") as nodes:
        urls = [silent_url, *nodes.urls]
        losses = {name: Losing() for name in AT_ONCE}

        async def make(name: str) -> None:
            lost, act = CASES[name]
            async with Client(
                urls, dial=losses[name].dial, connect_timeout=3.0, timeout=PATIENCE_S
            ) as client:
                told[name] = await act(client, f"{name}.lost", lambda: losses[name].hold(lost))

        async with Client(nodes.url) as client:
            for name in AT_ONCE:
                expected[name] = await CASES[name][1](client, f"{name}.whole", nothing)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for name in AT_ONCE:
                    nursery.start_soon(make, name)
                for loss in losses.values():
                    await loss.wait_lost()
                await trio.to_thread.run_sync(nodes.fail_over)
                for loss in losses.values():
                    loss.release()
    assert told == expected
    assert {loss.lost for loss in losses.values()} == {1}


async def test_sends_that_are_made_again_at_the_next_node_are_stored_once(tmp_path: Path) -> None:
    with Nodes(tmp_path / "data") as nodes:
        losing = Losing()
        async with Client(nodes.urls, dial=losing.dial) as client:
            for number, auto_key in enumerate((True, False)):
                losing.hold(FrameType.SEND_OK)
                results: list[Any] = []

                async def send(auto_key: bool = auto_key, results: list[Any] = results) -> None:
                    try:
                        results.append(await client.send_many("t", [b"a", b"b"], auto_key=auto_key))
                    except SendUncertain as error:
                        results.append(error)

                with trio.fail_after(PATIENCE_S):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(send)
                        await losing.wait_lost()
                        await trio.to_thread.run_sync(nodes.fail_over)
                        losing.release()
                if auto_key:
                    assert [item.duplicate for item in results[0]] == [False, False]
                else:
                    assert isinstance(results[0], SendUncertain)
                assert len(await client.browse("t")) == 2 * (number + 1)


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
@pytest.mark.parametrize("politely", [False, True])
async def test_what_a_handler_holds_stays_its_own_through_a_failover(tmp_path: Path, politely: bool) -> None:
    """Leases that are renewed at the next node, in whichever way the one before has ended."""
    with Nodes(tmp_path / "data", ack_wait="5s", drain_timeout="1s") as nodes:
        async with (
            Client(nodes.url) as client,
            client.subscribe("t", credit=1) as subscription,
            Client(nodes.url) as another,
            another.subscribe("t", credit=1) as other,
        ):
            results = await client.send_many("t", [b"1", b"2"])
            messages = [await one.receive(PATIENCE_S) for one in (subscription, other)]
            assert sorted(one.id for one in messages if one is not None) == sorted(results.ids())
            lease_ends_s = time.monotonic() + subscription.ack_wait_ms / 1_000
            await trio.to_thread.run_sync(lambda: nodes.fail_over(politely=politely))
            await until(lambda: time.monotonic() > lease_ends_s + 1)
            for message in messages:
                assert message is not None
                assert message.epoch == 1
                await message.ack(confirm=True)
            assert await subscription.receive(timeout=0.2) is None
            assert await other.receive(timeout=0.2) is None


async def test_a_node_that_does_not_serve_leads_to_the_one_that_does(tmp_path: Path) -> None:
    """Also a client that was given no other URL, and one that is not told where to go."""
    with Nodes(tmp_path / "data") as nodes:
        (listener,) = await open_listeners(Settings(listen_host="127.0.0.1", listen_port=0))
        known = {"url": nodes.urls[0]}
        access = Access(TrioClock(0))
        with closing(listener):
            async with trio.open_nursery() as nursery:
                server = Referral(lambda: known["url"], access, Counters(), PATIENCE_S)
                nursery.start_soon(server.run, [listener])
                async with Client(listener.url) as client:
                    await client.send("t", b"1")
                    await trio.to_thread.run_sync(nodes.fail_over)
                    known["url"] = nodes.urls[1]
                    await client.send("t", b"2")
                known["url"] = ""
                async with Client([listener.url, *nodes.urls]) as client:
                    assert len(await client.browse("t")) == 2
                nursery.cancel_scope.cancel()


async def test_all_are_down_and_one_comes(nodes_that_are_down: Nodes, silent_url: str) -> None:
    urls = [silent_url, *nodes_that_are_down.urls]
    with pytest.raises(NotConnected):
        async with Client(nodes_that_are_down.url, connect_timeout=0.2):
            pass
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:

            async def send(key: str) -> None:
                async with Client(urls, connect_timeout=PATIENCE_S) as client:
                    await client.send("t", b"1", key=key)

            nursery.start_soon(send, "async")
            nursery.start_soon(trio.to_thread.run_sync, _send_blocking, urls)
            await trio.to_thread.run_sync(nodes_that_are_down.take_over)
    with sync.Client(nodes_that_are_down.url) as client:
        assert sorted(str(one.key) for one in client.browse("t")) == ["async", "sync"]


def _send_blocking(urls: list[str]) -> None:
    with sync.Client(urls, connect_timeout=PATIENCE_S) as client:
        client.send("t", b"1", key="sync")


def test_the_command_line_takes_several_urls(tmp_path: Path) -> None:
    with Nodes(tmp_path / "data") as nodes:
        nodes.fail_over()
        runner = CliRunner()
        sent = runner.invoke(root, ["--url", nodes.url, "send", "t", "hello"])
        assert sent.exit_code == 0, sent.output
        listed = runner.invoke(root, ["topics"], env={"TICKWHEEL_URL": nodes.url})
        assert listed.exit_code == 0, listed.output
        assert "t" in listed.output
        bad = runner.invoke(root, ["--url", f"{nodes.url},tickwheels://b", "topics"])
        assert bad.exit_code != 0
        assert "with TLS" in bad.output
