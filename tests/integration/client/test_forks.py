"""A fork while clients and embedded brokers are open: the child is told at once, and the parent is not disturbed."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import tickwheel
from tests.support.clients.forked import raised_in_child
from tickwheel import Message, sync
from tickwheel.client.consumer.acks import AckFlight, AckQueue
from tickwheel.client.forks import _known
from tickwheel.errors import ClientClosed, DiskFull, TickwheelError
from tickwheel.testing import TestBroker, broker

PATIENCE_S = 60.0
AT_ONCE_S = 5
# A fork beside a thread.
pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def shared(way_of_sends: None) -> Iterator[TestBroker]:
    with broker() as one:
        yield one


@contextmanager
def child(work: Callable[[], object]) -> Iterator[str]:
    """What ``work`` returned, or raised, in a forked child, which lives on until the end of the block."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode() or b"-")
        os.close(writing)
        signal.pause()
        os._exit(0)
    os.close(writing)
    try:
        assert select.select([reading], [], [], PATIENCE_S)[0], "the child hangs"
        yield os.read(reading, 65536).decode()
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def codes(*calls: Callable[[], object]) -> str:
    """The codes of what the calls raised, or what they returned."""
    said = []
    for call in calls:
        try:
            said.append(repr(call()))
        except TickwheelError as error:
            said.append(error.code)
    return " ".join(said)


@pytest.mark.promise("after-the-end-and-after-a-fork")
def test_a_blocking_client(shared: TestBroker) -> None:
    with shared.sync_client() as client, client.subscribe("forked") as subscription:
        client.send_many("forked", [b"1", b"2", b"3"])
        message = subscription.receive(PATIENCE_S)
        assert message is not None
        transaction = client.transaction()
        transaction.send("forked", b"4")

        def work() -> str:
            return codes(
                lambda: client.send("forked", b"of the child"),
                client.ping,
                lambda: client.subscribe("forked"),
                lambda: subscription.receive(1),
                lambda: next(iter(subscription)),
                lambda: next(subscription.batches()),
                subscription.flush,
                subscription.stop,
                message.ack,
                lambda: message.ack(confirm=True),
                message.nack,
                lambda: message.extend(timedelta(seconds=1)),
                transaction.commit,
                client.transaction,
                lambda: client.prepare("forked", b"x"),
                client.close,
                client.ping,
            )

        with child(work) as said:
            assert said.split() == ["client_forked"] * 15 + ["None", "client_closed"]
            message.ack(confirm=True)
            assert [
                one.body
                for one in (subscription.receive(PATIENCE_S), subscription.receive(PATIENCE_S))
                if one
            ] == [
                b"2",
                b"3",
            ]
            assert transaction.commit() is not None
            (group,) = next(one for one in client.topics() if one.name == "forked").groups
            assert (group.subscribers, group.acked) == (1, 1)


@pytest.mark.promise("after-the-end-and-after-a-fork")
def test_the_parent_closes_while_the_child_lives(shared: TestBroker) -> None:
    """The child keeps no copy of the connection: the broker sees that it ends."""
    with shared.sync_client() as other:
        client = sync.connect(shared.url, token="")
        client.subscribe("closing").__enter__()
        with child(lambda: "there"):
            os.close(_descriptor(client))  # without a word, as when the process ends
            deadline_s = time.monotonic() + PATIENCE_S
            while _subscribers(other, "closing") and time.monotonic() < deadline_s:
                pass
            assert not _subscribers(other, "closing")


def _descriptor(client: sync.Client) -> int:
    link = client._client._session.link
    assert link is not None
    assert link.socket is not None
    return link.socket.fileno()


def _subscribers(client: sync.Client, topic: str) -> int:
    return sum(group.subscribers for one in client.topics() if one.name == topic for group in one.groups)


def test_a_client_that_was_closed_after_the_fork_opens_anew(shared: TestBroker) -> None:
    client = shared.sync_client()
    with client:

        def work() -> object:
            client.close()
            with client:
                return client.send("anew", b"of the child").duplicate

        with child(work) as said:
            assert said == "False"
            client.send("anew", b"of the parent")
            assert len(client.browse("anew")) == 2


def test_a_client_that_is_entered_on_both_sides_of_a_fork_makes_no_key_twice(shared: TestBroker) -> None:
    client = shared.sync_client()

    def work() -> object:
        with client:
            return client.send("both", b"x").id

    with child(work) as theirs:
        assert int(theirs) != work()


@pytest.mark.promise("after-the-end-and-after-a-fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_asynchronous_client(shared: TestBroker, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """The loop runs in a thread of the parent; the child has another loop."""
    topic = f"forked-{backend}"
    opened: Future[tuple[Any, ...]] = Future()
    done: Future[None] = Future()

    async def parent() -> None:
        async with shared.client() as client, client.subscribe(topic) as subscription:
            await client.send_many(topic, [b"1", b"2"])
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            for _ in range(2):  # the log has the first, and is told of the second later, by the parent
                subscription.acks.lost(_unawaited(subscription.acks), DiskFull())
            opened.set_result((client, subscription, message, client.transaction()))
            await anyio.to_thread.run_sync(done.result)
            await message.ack(confirm=True)
            again = await subscription.receive(PATIENCE_S)
            assert again is not None
            assert again.body == b"2"

    caplog.clear()
    thread = threading.Thread(target=anyio.run, args=(parent,), kwargs={"backend": backend})
    thread.start()
    client, subscription, message, transaction = opened.result(PATIENCE_S)
    transaction.send(topic, b"3")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.send(topic, b"x"),
        lambda: client.send_many(topic, [b"x"]),
        client.ping,
        subscription.receive,
        subscription.receive_batch,
        lambda: anext(subscription),
        subscription.flush,
        subscription.stop,
        message.ack,
        message.nack,
        transaction.commit,
        lambda: client.prepare(topic, b"x"),
        client.close,
        client.ping,
    ]

    def work() -> str:
        said = []

        async def try_all() -> None:
            for call in calls:
                try:
                    with anyio.fail_after(AT_ONCE_S):
                        said.append(repr(await call()))
                except TickwheelError as error:
                    said.append(error.code)

        anyio.run(try_all, backend=backend)
        return " ".join([*said, str(caplog.text.count("were not made")), str("defect" in caplog.text)])

    try:
        with child(work) as said:
            assert said.split() == ["client_forked"] * 12 + ["None", "client_closed", "1", "False"]
    finally:
        done.set_result(None)
        thread.join()


def test_a_client_that_was_closed_touches_nothing_in_a_child(shared: TestBroker) -> None:
    """What was opened since may have the numbers of its sockets."""
    client = shared.sync_client()
    with client:
        client.send("closed", b"1")
    numbers = [os.open(__file__, os.O_RDONLY) for _ in range(8)]
    try:
        with child(lambda: [os.fstat(number).st_ino for number in numbers]) as said:
            assert said == str([Path(__file__).stat().st_ino] * len(numbers))
    finally:
        for number in numbers:
            os.close(number)
    with pytest.raises(ClientClosed):
        client.send("closed", b"2")


def _unawaited(acks: AckQueue) -> AckFlight:
    flight = AckFlight(acks)
    flight.ids, flight.epochs = [1], [1]
    return flight


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_acks_that_were_not_written(shared: TestBroker, backend: str) -> None:
    """The frame that waits is the parent's: a child adds nothing to it, and waits for nothing."""

    async def main() -> None:
        async with shared.client() as client:
            await client.send_many(f"unwritten-{backend}", [b"1", b"2"])
            fetched = list[Message]()
            while len(fetched) < 2:
                fetched += await client.fetch(
                    f"unwritten-{backend}", count=2, wait=timedelta(seconds=PATIENCE_S)
                )
            first, second = fetched
            first.acks.add(first.id, first.epoch)
            said = await raised_in_child(second.ack, partial(second.ack, confirm=True))
            assert said == ["client_forked"] * 2
            await second.ack(confirm=True)
            (topic,) = [one for one in await client.topics() if one.name == f"unwritten-{backend}"]
            assert topic.groups[0].acked == 2

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_within_the_loop(shared: TestBroker, backend: str) -> None:
    async def main() -> None:
        async with shared.client() as client, client.subscribe("within") as subscription:
            await client.send("within", b"1")
            said = await raised_in_child(lambda: client.send("within", b"2"), subscription.flush)
            assert said == ["client_forked"] * 2
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            await message.ack(confirm=True)

    anyio.run(main, backend=backend)


@pytest.mark.promise("after-the-end-and-after-a-fork")
def test_an_embedded_broker(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    embedded = tickwheel.embedded(directory)
    with embedded, embedded.sync_client() as client:
        client.send("tea", b"x", delay=timedelta(hours=1))

        def work() -> str:
            said = codes(lambda: embedded.url, embedded.client, embedded.sync_client, embedded.start)
            embedded.close()
            return said

        held = child(work)
        said = held.__enter__()
        assert said.split() == ["client_forked"] * 4
        client.send("tea", b"y", delay=timedelta(hours=1))
    with tickwheel.embedded(directory) as again, again.sync_client() as client:  # while the child lives
        assert len(client.browse("tea")) == 2
    held.__exit__(None, None, None)


def test_a_test_broker_keeps_its_directory() -> None:
    with broker() as one, one.sync_client() as client:
        with child(one.close) as said:
            assert said == "None"
        assert Path(one.directory).is_dir()
        client.send("tea", b"x")


def _use(client: sync.Client, url: str, told: Any) -> None:
    told.put(codes(lambda: client.send("pool", b"x")))
    with sync.Client(url, token="") as own:
        told.put(codes(lambda: own.send("pool", b"x").duplicate))


def test_multiprocessing(shared: TestBroker) -> None:
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    with shared.sync_client() as client:
        process = context.Process(target=_use, args=(client, shared.url, told))
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        assert [told.get(), told.get()] == ["client_forked", "False"]
        client.send("pool", b"of the parent")


PRELOADED = """
import os, sys
from tickwheel import sync
from tickwheel.errors import ClientForked

client = sync.connect(sys.argv[1], token="")  # at import, before the workers are forked
client.send("preloaded", b"of the master")
for number in range(2):
    if os.fork() == 0:
        try:
            client.send("preloaded", b"of a worker")
        except ClientForked as error:
            print(error, flush=True)
        sys.exit(number)  # with what atexit has
print([os.WEXITSTATUS(os.wait()[1]) for _ in range(2)] in ([0, 1], [1, 0]), flush=True)
client.send("preloaded", b"of the master")
client.close()
"""


def test_an_application_that_is_loaded_before_its_workers_are_forked(shared: TestBroker) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELOADED, shared.url], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("post_fork") == 2
    assert done.stdout.splitlines()[-1] == "True"
    with shared.sync_client() as client:
        assert len(client.browse("preloaded")) == 2


def test_what_is_collected_is_not_told(shared: TestBroker) -> None:
    import gc

    gc.collect()
    before = len(_known)
    for _ in range(3):
        with shared.sync_client() as client:
            client.ping()
    del client
    gc.collect()
    assert len(_known) <= before
