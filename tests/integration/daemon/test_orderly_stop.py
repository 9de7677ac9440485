"""A broker that is stopped in order and started again: who is at work goes on, as after a kill; nothing runs twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, RawConnection
from tickwheel import Client, Message, sync
from tickwheel.protocol.bodies.requests import Subscribe
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.messages import decode_deliver
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.threads import ThreadWorker
from tickwheel.worker.worker import DRAIN, asked
from tickwheel_bench.processes import free_port

ENDS = ["stop", "kill"]

Ran: TypeAlias = list[tuple[str, bytes, int]]
"""By which consumer, what, and at which attempt."""


def daemon_at(directory: Path, **settings: Any) -> Daemon:
    """On one port, however often it is started."""
    return Daemon(directory, listen_port=free_port(), drain_timeout="200ms", **settings)


def restart(daemon: Daemon, end: str) -> None:
    getattr(daemon, end)()
    daemon.start()


def until(is_so: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s, "it never came to that"
        time.sleep(0.02)


def figures(client: sync.Client) -> tuple[int, int, int]:
    """Subscribers of the group; how many messages are acked, and how many are not."""
    group = client.group("t", "default")
    return group.subscribers, group.acked, group.backlog


def check_across(daemon: Daemon, end: str, ran: Ran, release: Callable[[], object]) -> None:
    """Two consumers are there: one is at work when the broker ends, and the other one is not given that."""
    with sync.Client(daemon.url, connect_timeout=PATIENCE_S) as client:
        until(lambda: client.topics() and figures(client)[0] == 2)
        client.send("t", b"slow")
        until(lambda: len(ran) == 1)
        ((busy, _, _),) = ran
        restart(daemon, end)
        until(lambda: figures(client)[0] == 2)
        # They are behind what would come again. One of them may wait at the busy consumer, which has connected anew.
        client.send_many("t", [b"next", b"next"])
        until(lambda: len(ran) > 1)
        assert figures(client)[2] >= 1
        release()
        until(lambda: figures(client)[1:] == (3, 0))
    assert ran[1][0] != busy
    assert sorted((body, attempt) for _, body, attempt in ran) == [(b"next", 1), (b"next", 1), (b"slow", 1)]


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
@pytest.mark.parametrize("end", ENDS)
async def test_an_asynchronous_handler_goes_on(tmp_path: Path, end: str) -> None:
    ran: Ran = []
    released = trio.Event()
    token = trio.lowlevel.current_trio_token()
    with daemon_at(tmp_path / "data") as daemon:

        async def consume(name: str) -> None:
            async def handle(message: Message) -> None:
                ran.append((name, message.body, message.attempt))
                if message.body == b"slow":
                    await released.wait()

            async with Client(daemon.url) as client:
                await client.work("t", handle, concurrency=1, prefetch=0, signals=False)

        def check() -> None:
            check_across(daemon, end, ran, lambda: token.run_sync_soon(released.set))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, "a")
            nursery.start_soon(consume, "b")
            await trio.to_thread.run_sync(check)
            nursery.cancel_scope.cancel()


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
@pytest.mark.parametrize("end", ENDS)
def test_a_blocking_handler_goes_on(tmp_path: Path, end: str) -> None:
    ran: Ran = []
    released = threading.Event()
    with daemon_at(tmp_path / "data") as daemon:
        clients = [sync.Client(daemon.url).try_to_open() for _ in "ab"]

        def worker(name: str, client: sync.Client) -> ThreadWorker:
            def handle(message: Message) -> None:
                ran.append((name, message.body, message.attempt))
                if message.body == b"slow":
                    released.wait(PATIENCE_S)

            handler = Handler("t", handle, Options(concurrency=1, prefetch=0))
            return ThreadWorker(handler, partial(client.subscribe_as, "t", "default", asked(handler)), DRAIN)

        workers = [worker(name, client) for name, client in zip("ab", clients, strict=True)]
        threads = [threading.Thread(target=one.run) for one in workers]
        for thread in threads:
            thread.start()
        try:
            check_across(daemon, end, ran, released.set)
        finally:
            released.set()
            for one in workers:
                one.stop()
            for thread in threads:
                thread.join(PATIENCE_S)
            for client in clients:
                client.close()


@pytest.mark.promise("when-a-subscription-or-a-connection-ends")
@pytest.mark.parametrize("end", ENDS)
def test_who_never_comes_back_loses_its_messages_when_their_leases_end(tmp_path: Path, end: str) -> None:
    lease_ms = 3_000
    with Daemon(tmp_path / "data", ack_wait=f"{lease_ms}ms", drain_timeout="100ms") as daemon:
        began_ms = time.time_ns() // 1_000_000
        with sync.Client(daemon.url) as client, RawConnection(daemon.url) as raw:
            sent = [client.send("t", b"%d" % number).id for number in range(3)]
            raw.greet()
            raw.request(FrameType.SUBSCRIBE, Subscribe("t", "default", 10, 10))
            delivered = raw.receive()
            assert delivered.type == FrameType.DELIVER
            assert list(decode_deliver(delivered.payload).ids) == sent
            getattr(daemon, end)()
        daemon.start()
        with sync.Client(daemon.url) as client, client.subscribe("t") as subscription:
            again = [subscription.receive(timeout=PATIENCE_S) for _ in sent]
            assert time.time_ns() // 1_000_000 >= began_ms + lease_ms
            assert [(one.id, one.epoch) for one in again if one is not None] == [(one, 2) for one in sent]
            for one in again:
                assert one is not None
                one.ack(confirm=True)
