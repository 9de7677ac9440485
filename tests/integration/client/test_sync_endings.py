"""How the blocking client ends: with its program, by Ctrl-C in a call, by another thread, and twice."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import tickwheel
from tests.support.processes.losing import LosingProxy
from tickwheel import sync
from tickwheel.blocking import session
from tickwheel.blocking.session import BlockingSession
from tickwheel.blocking.wire import Wire
from tickwheel.errors import BadArgument, ClientClosed, NotConnected, TickwheelError
from tickwheel.protocol.machine import ClientMachine
from tickwheel.testing import TestBroker, broker
from tickwheel_bench.processes import wait_until
from timerlog.files.lock import owner_of

PATIENCE_S = 10


@pytest.fixture(scope="module")
def shared(way_of_sends: None) -> Iterator[TestBroker]:
    with broker(ack_wait="1h") as one:
        yield one


@pytest.fixture
def client(shared: TestBroker) -> Iterator[sync.Client]:
    with shared.sync_client() as one:
        yield one


def group_of(client: sync.Client, topic: str) -> Any:
    return next(one for one in client.topics() if one.name == topic).groups[0]


# -- with the program --


def ends(program: str, *arguments: str) -> str:
    """What a program printed, that ended by itself and complained about nothing."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


NOT_CLOSED = """
import sys, tickwheel.sync
client = tickwheel.sync.connect(sys.argv[1], token="")
client.send("open", b"1")
client.send("open", b"2")
subscription = client.subscribe("open").__enter__()
subscription.receive().ack()
print("done")
"""


@pytest.mark.promise("after-the-end-and-after-a-fork")
def test_a_client_that_is_not_closed(shared: TestBroker, client: sync.Client) -> None:
    assert ends(NOT_CLOSED, shared.url) == "done\n"
    group = group_of(client, "open")
    assert (group.acked, group.leased, group.subscribers) == (1, 0, 0)


@pytest.mark.promise("when-a-call-is-cancelled")
def test_an_ack_while_the_link_is_away_and_a_handler_that_fails(
    shared: TestBroker, client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is left without waiting; closing the client takes the ack over the next connection. No name is
    looked up for it, which may take longer than closing."""
    client.send("away", b"1")

    def no_names(*_: Any, **__: Any) -> Any:
        raise OSError("no name server answers")

    def fail(proxy: LosingProxy) -> None:
        with sync.Client(proxy.url, token="") as other, other.subscribe("away") as subscription:
            message = subscription.receive(timeout=PATIENCE_S)
            assert message is not None
            proxy.cut()
            monkeypatch.setattr(socket, "getaddrinfo", no_names)
            message.ack()
            raise ZeroDivisionError

    with LosingProxy(shared.url) as proxy:
        with pytest.raises(ZeroDivisionError):
            fail(proxy)
        group = group_of(client, "away")
        assert (group.acked, group.leased) == (1, 0)


NOT_LEFT = """
import sys, threading, tickwheel.sync
client = tickwheel.sync.connect(sys.argv[1], token="")
waits = threading.Event()
def consume():
    with client.subscribe("never") as subscription:
        waits.set()
        for message in subscription:
            message.ack()
threading.Thread(target=consume, daemon=True).start()
waits.wait()
"""


def test_a_thread_that_still_waits(shared: TestBroker) -> None:
    assert ends(NOT_LEFT, shared.url) == ""


BROKERS = """
import sys, tickwheel
from datetime import timedelta
from tickwheel.testing import broker
embedded, testing = tickwheel.embedded(sys.argv[1]), broker()
for one in (embedded, testing):
    one.start()
    client = one.sync_client().__enter__()
    client.send("tea", b"x", delay=timedelta(hours=1))
print(testing.directory)
"""


def test_brokers_that_are_not_closed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    of_the_test = ends(BROKERS, str(directory)).strip()
    assert not Path(of_the_test).exists()
    assert owner_of(directory) is None
    with tickwheel.embedded(directory) as one, one.sync_client() as client:
        assert [found.body for found in client.browse("tea")] == [b"x"]


# -- by Ctrl-C --


def interrupted(after_s: float, work: Callable[[], object]) -> None:
    """Does something, which Ctrl-C ends."""
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(after_s, signal.pthread_kill, (main, signal.SIGINT))
    # What is raised in a callback of the collector is ignored, and hypothesis has one.
    gc.disable()
    try:
        timer.start()
        work()
        raise AssertionError("it ended by itself")
    except KeyboardInterrupt:
        pass
    finally:
        gc.enable()
        timer.join()
        signal.signal(signal.SIGINT, before)


def stay_in(block: AbstractContextManager[Any]) -> None:
    with block:
        time.sleep(PATIENCE_S)


def calls_of(client: sync.Client) -> int:
    """How many requests are under way."""
    return len(client._running._live)


def test_interrupted_while_it_waits_for_a_message(client: sync.Client) -> None:
    with client.subscribe("waits") as subscription:
        for receive in (
            subscription.receive,
            lambda: next(iter(subscription)),
            lambda: next(subscription.batches()),
        ):
            interrupted(0.05, receive)
            assert calls_of(client) == 0
            client.send("waits", b"x")
            message = subscription.receive(PATIENCE_S)
            assert message is not None, "the call that was interrupted took it"
            message.ack(confirm=True)


class Interrupting:
    """Ctrl-C at one call of a function, before it or after it."""

    def __init__(self, function: Callable[..., Any], *, after: bool) -> None:
        self._function = function
        self._is_after = after
        self._is_over = False

    def __get__(self, of: object, _: type) -> Callable[..., Any]:
        return lambda *arguments, **named: self(of, *arguments, **named)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._is_over:
            return self._function(*arguments, **named)
        self._is_over = True
        if self._is_after:
            self._function(*arguments, **named)
        raise KeyboardInterrupt


PLACES = [
    (Wire, "read"),
    (Wire, "write"),
    (BlockingSession, "_settle"),
    (BlockingSession, "_handle"),
    (BlockingSession, "_take"),
    (BlockingSession, "check_time"),
    (ClientMachine, "receive_data"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("of", "name"), PLACES, ids=[name for _, name in PLACES])
def test_interrupted_at_work(
    shared: TestBroker, client: sync.Client, monkeypatch: pytest.MonkeyPatch, of: type, name: str, after: bool
) -> None:
    """While the thread reads, writes or counts: nothing is lost, and what others had under way goes on. What was just
    being read comes again, as after a connection that broke."""
    topic = f"work-{name.strip('_')}-{after}"
    client.create_topic(topic, ack_wait=timedelta(seconds=1))
    client.send_many(topic, [b"%d" % number for number in range(100)])
    said: list[Any] = []
    with client.subscribe(topic, batch=10, max_hold=0) as subscription:  # so that no other thread reads
        others = threading.Thread(target=lambda: said.append(client.send(topic, b"100")))
        seen = set()
        with monkeypatch.context() as patch:
            main = threading.get_ident()
            genuine = getattr(of, name)
            trap = Interrupting(genuine, after=after)

            def in_main_thread(*arguments: Any, **named: Any) -> Any:
                if threading.get_ident() != main:
                    return genuine(*arguments, **named)
                return trap(*arguments, **named)

            patch.setattr(of, name, in_main_thread)
            others.start()
            deadline_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline_s and not trap._is_over:
                try:
                    client.ping()
                    client.topics()
                except KeyboardInterrupt:
                    pass
            assert trap._is_over
        others.join(PATIENCE_S)
        assert not others.is_alive()
        assert len(said) == 1
        deadline_s = time.monotonic() + PATIENCE_S
        while len(seen) < 101:
            assert time.monotonic() < deadline_s, sorted(set(range(101)) - seen)
            message = subscription.receive(0.1)
            if message is None:
                shared.clock.advance(timedelta(seconds=2))
            else:
                seen.add(int(message.body))
                message.ack()
    wait_until(lambda: client.ping() and calls_of(client) == 0)


@pytest.mark.promise("when-a-call-is-cancelled")
@pytest.mark.parametrize("number", range(12))
def test_interrupted_while_it_subscribes(client: sync.Client, number: int) -> None:
    topic = f"enters-{number}"
    client.send(topic, b"x")
    interrupted(number * 0.0005, lambda: stay_in(client.subscribe(topic)))
    wait_until(lambda: not any(one.groups and one.groups[0].subscribers for one in client.topics()))
    wait_until(lambda: client.ping() and calls_of(client) == 0)
    with client.subscribe(topic) as subscription:
        assert subscription.receive(PATIENCE_S) is not None


@pytest.mark.parametrize("number", range(6))
def test_interrupted_while_it_connects(shared: TestBroker, number: int) -> None:
    """Whatever it had begun has ended: no thread and no socket is left."""
    gc.collect()
    threads, sockets = set(threading.enumerate()), open_sockets()
    interrupted(number * 0.001, lambda: stay_in(shared.sync_client()))
    # Of those that were there before, some may end meanwhile: the broker's own, and what other tests have left.
    wait_until(lambda: set(threading.enumerate()) <= threads, threading.enumerate)
    wait_until(lambda: open_sockets() <= sockets, open_sockets)


def test_interrupted_while_it_is_made(shared: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has descriptors is made whole, and closed: none is left for the collector to warn of."""
    made: list[Any] = []

    def pair() -> Any:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        made[:] = socket.socketpair()
        return tuple(made)

    monkeypatch.setattr(session, "socket", SimpleNamespace(socketpair=pair))
    with pytest.raises(KeyboardInterrupt):
        shared.sync_client().__enter__()
    assert [one.fileno() for one in made] == [-1, -1]


def open_sockets() -> set[str]:
    """The sockets of this process, each by a name that no later one has; the broker of the test is in it."""
    found = set()
    for one in Path("/proc/self/fd").glob("*"):
        with suppress(FileNotFoundError):  # it was closed just now
            found.add(os.readlink(one))
    return {name for name in found if name.startswith("socket:")}


def test_a_message_that_came_with_the_interruption(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for the next call."""
    client.send_many("regret", [b"1", b"2"])
    with client.subscribe("regret", credit=10, batch=1) as subscription:
        run = client._running.run

        def interrupted_after(work: Any) -> Any:
            run(work)
            raise KeyboardInterrupt

        monkeypatch.setattr(client._running, "run", interrupted_after)
        with pytest.raises(KeyboardInterrupt):
            subscription.receive(PATIENCE_S)
        monkeypatch.undo()
        bodies = []
        for _ in range(2):
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            bodies.append(message.body)
            message.ack(confirm=True)
        assert bodies == [b"1", b"2"]


# -- closed --


def codes(*calls: Callable[[], object]) -> list[str]:
    said = []
    for call in calls:
        try:
            said.append(repr(call()))
        except TickwheelError as error:
            said.append(error.code)
    return said


@pytest.mark.promise("after-the-end-and-after-a-fork")
def test_used_after_its_end(shared: TestBroker) -> None:
    client = shared.sync_client()
    assert codes(client.ping, lambda: client.subscribe("x"), client.transaction) == ["client_closed"] * 3
    client.__enter__()
    outside = client.subscribe("ended")
    assert (
        codes(outside.receive, lambda: iter(outside), outside.batches, outside.flush, outside.stop)
        == ["client_closed"] * 5
    )
    client.send_many("ended", [b"1", b"2"])
    with client.subscribe("ended", batch=1) as subscription:
        message = subscription.receive(PATIENCE_S)
        batch = next(subscription.batches())
        assert message is not None
    of_subscription = (
        subscription.receive,
        lambda: iter(subscription),
        subscription.batches,
        subscription.flush,
        subscription.stop,
        message.ack,
        lambda: message.ack(confirm=True),
        message.nack,
        lambda: message.extend(timedelta(seconds=1)),
        batch.ack,
        batch.nack,
    )
    assert codes(*of_subscription) == ["client_closed"] * len(of_subscription)
    with pytest.raises(BadArgument, match="entered once"):
        subscription.__enter__()
    transaction, other = client.transaction(), client.transaction()
    with transaction:
        transaction.send("ended", b"3")
    prepared = client.prepare("ended", b"4")
    assert codes(lambda: transaction.send("ended", b"x"), transaction.commit) == ["client_closed"] * 2
    client.close()
    client.close()
    assert codes(
        *of_subscription,
        client.ping,
        lambda: client.send("ended", b"x"),
        lambda: client.subscribe("ended"),
        lambda: other.send("ended", b"x"),
        prepared.commit,
        prepared.rollback,
    ) == ["client_closed"] * (len(of_subscription) + 6)


def test_closed_by_another_thread(shared: TestBroker) -> None:
    """Who waits is told, and so is who calls meanwhile."""
    client = sync.connect(shared.url, token="")
    subscription = client.subscribe("elsewhere").__enter__()
    said: list[str] = []
    waits = threading.Thread(target=lambda: said.extend(codes(subscription.receive)))
    waits.start()

    def calls() -> None:
        while True:
            try:
                client.ping()
            except NotConnected as error:
                said.append(error.code)
                return

    threads = [waits, *(threading.Thread(target=calls) for _ in range(4))]
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: calls_of(client) >= 3)
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(said) == ["None", *["client_closed"] * 4]


@pytest.mark.promise("after-the-end-and-after-a-fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_asynchronous_client_after_its_end(shared: TestBroker, backend: str) -> None:
    async def codes_of(*calls: Callable[[], Any]) -> list[str]:
        said = []
        for call in calls:
            try:
                with anyio.fail_after(PATIENCE_S):
                    said.append(repr(await call()))
            except TickwheelError as error:
                said.append(error.code)
        return said

    async def main() -> None:
        client = shared.client()
        assert await codes_of(client.ping, lambda: client.send("x", b"x")) == ["client_closed"] * 2
        async with client:
            outside = client.subscribe("ended")
            of_outside = (
                outside.receive,
                outside.receive_batch,
                lambda: anext(outside),
                outside.flush,
                outside.stop,
            )
            assert await codes_of(*of_outside) == ["client_closed"] * 5
            await client.send_many("ended", [b"1", b"2"])
            async with client.subscribe("ended", batch=1) as subscription:
                message = await subscription.receive(PATIENCE_S)
                batch = await subscription.receive_batch(PATIENCE_S)
                assert message is not None
                assert batch is not None
            of_subscription = (
                subscription.receive,
                subscription.receive_batch,
                subscription.flush,
                subscription.stop,
                message.ack,
                message.nack,
                lambda: message.extend(timedelta(seconds=1)),
                batch.ack,
                batch.nack,
            )
            assert await codes_of(*of_subscription) == ["client_closed"] * len(of_subscription)
            with pytest.raises(ClientClosed):
                subscription.batches()
            with pytest.raises(BadArgument, match="entered once"):
                await subscription.__aenter__()
            transaction = client.transaction()
            transaction.send("ended", b"x")
            assert await transaction.commit() is not None
            assert await codes_of(transaction.commit) == ["client_closed"]
            other, prepared = client.transaction(), await client.prepare("ended", b"x")
            other.send("ended", b"x")
        await client.close()
        after = (client.ping, prepared.commit, prepared.rollback, other.commit, message.ack)
        assert await codes_of(*after) == ["client_closed"] * 5

    anyio.run(main, backend=backend)


def test_a_broker_after_its_end() -> None:
    one = broker()
    with one as running:
        url = running.url
        with pytest.raises(BadArgument):
            one.start()
    one.close()
    with pytest.raises(NotConnected):
        _ = one.url
    assert codes(lambda: tickwheel.sync.connect(url, connect_timeout=0.1)) == ["not_connected"]
