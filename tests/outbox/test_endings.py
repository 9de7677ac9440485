"""Calls of the outbox that are cancelled, hubs that are closed, forks: nothing is lost, and nothing hangs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.clients.cancelling import Canceller, each_step, run
from tests.support.clients.forked import raised_in_child
from tests.support.outbox.messages import PATIENCE_S, message_table
from tests.support.outbox.messages import send as insert
from tickwheel import outbox
from tickwheel.errors import BadArgument, ClientClosed
from tickwheel.outbox.messages.hub import Hub

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.sqlite'}"


@pytest.mark.promise("after-the-end-and-after-a-fork")
@BACKENDS
def test_a_hub_after_its_end(url: str, backend: str) -> None:
    async def main() -> None:
        with message_table(url) as table, anyio.fail_after(PATIENCE_S):
            hub = Hub(table)
            with pytest.raises(ClientClosed):
                await hub.subscribe().__aenter__()
            await hub.open()
            with pytest.raises(BadArgument):
                await hub.open()
            async with hub.subscribe() as stream:
                await hub.close()
                assert await stream.receive() is None
                await hub.close()
            with pytest.raises(ClientClosed):
                await hub.subscribe().__aenter__()

    anyio.run(main, backend=backend)


@BACKENDS
def test_a_consumer_outside_its_block(url: str, backend: str) -> None:
    async def main() -> None:
        queue = outbox.Queue(url, "jobs").create()
        consumer = queue.consume()
        with anyio.fail_after(PATIENCE_S):
            for _ in range(2):
                with pytest.raises(ClientClosed):
                    await consumer.receive()
                if not consumer._stopped:
                    async with consumer:
                        assert await consumer.receive(0.01) is None
        queue.database.close()

    anyio.run(main, backend=backend)


@BACKENDS
@pytest.mark.parametrize("how", ["receive", "receive_batch", "next_batch", "anext"])
def test_a_stream_that_is_read_by_calls_that_are_cancelled(url: str, backend: str, how: str) -> None:
    async def main(canceller: Canceller) -> None:
        with message_table(url) as table, anyio.fail_after(PATIENCE_S):
            async with table.stream(1) as stream:
                sent: list[str] = []
                got: list[str] = []

                async def before() -> None:
                    sent.append(str(len(sent)))
                    insert(table, sent[-1])

                async def work() -> None:
                    found: Any = await (anext(stream) if how == "anext" else getattr(stream, how)())
                    got.append((found[0] if "batch" in how else found)["message"])

                async def after() -> None:
                    while len(got) < len(sent):
                        message = await stream.receive(PATIENCE_S)
                        assert message is not None
                        assert message.epoch == 1
                        got.append(message["message"])

                assert await each_step(canceller, work, before=before, after=after)
                assert got == sent

    run(backend, main)


@BACKENDS
@pytest.mark.parametrize("how", ["ack", "nack", "extend"])
def test_a_message_that_is_settled_by_calls_that_are_cancelled(url: str, backend: str, how: str) -> None:
    """It is settled or not, and the stream goes on."""

    async def main(canceller: Canceller) -> None:
        with message_table(url) as table, anyio.fail_after(PATIENCE_S):
            async with table.stream(1) as stream:
                message: Any = None

                async def before() -> None:
                    nonlocal message
                    insert(table, "x")
                    message = await stream.receive(PATIENCE_S)

                async def work() -> None:
                    options = () if how == "ack" else (timedelta(hours=1),)
                    await getattr(message, how)(*options)

                async def after() -> None:
                    try:
                        await message.ack()
                    except outbox.LeaseLost:
                        assert how == "nack"

                assert await each_step(canceller, work, before=before, after=after)

    run(backend, main)


@BACKENDS
def test_a_stream_that_is_opened_by_calls_that_are_cancelled(url: str, backend: str) -> None:
    """What it claimed is given back at once."""

    async def main(canceller: Canceller) -> None:
        with message_table(url) as table, anyio.fail_after(2 * PATIENCE_S):
            insert(table, "x")

            async def work() -> None:
                async with table.stream():
                    await anyio.sleep(0.02)

            async def after() -> None:
                async with table.stream() as stream:
                    message = await stream.receive(PATIENCE_S)
                    assert message is not None
                    await message.ack()
                insert(table, "x")

            for n in (1, 2, 3, 4, 5, 7, 9, 12, 15, 20, 30):
                await canceller.attempt(work, n)
                await after()

    run(backend, main)


@pytest.mark.promise("when-a-call-is-cancelled")
@BACKENDS
@pytest.mark.parametrize("how", ["receive", "anext"])
def test_a_queue_that_is_read_by_calls_that_are_cancelled(url: str, backend: str, how: str) -> None:
    """Also when asyncio cancels while the claim is being committed in a thread."""

    async def main(canceller: Canceller) -> None:
        queue = outbox.Queue(url, "jobs").create()
        with anyio.fail_after(PATIENCE_S):
            async with queue.consume(batch=1) as consumer:
                sent: list[bytes] = []
                got: list[bytes] = []

                async def before() -> None:
                    sent.append(b"%d" % len(sent))
                    with queue.database.engine.begin() as connection:
                        queue.put(connection, sent[-1])

                async def keep(batch: outbox.QueueBatch | None) -> None:
                    assert batch is not None
                    got.extend(one.body for one in batch)
                    await batch.ack()

                async def work() -> None:
                    batch = await (consumer.receive() if how == "receive" else anext(consumer))
                    got.extend(one.body for one in batch or ())

                async def after() -> None:
                    while len(got) < len(sent):
                        await keep(await consumer.receive(PATIENCE_S))

                assert await each_step(canceller, work, before=before, after=after)
                assert got == sent
        queue.database.close()

    run(backend, main)


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")  # a fork beside a thread
@BACKENDS
def test_a_fork(url: str, backend: str) -> None:
    async def main() -> None:
        with message_table(url) as table, anyio.fail_after(PATIENCE_S):
            queue = outbox.Queue(url, "jobs").create()
            async with table.hub() as hub, hub.subscribe() as stream, queue.consume() as consumer:
                insert(table, "1")
                message = await stream.receive(PATIENCE_S)
                assert message is not None
                said = await raised_in_child(
                    stream.receive,
                    stream.next_batch,
                    message.ack,
                    consumer.receive,
                    lambda: anext(consumer),
                    lambda: hub.subscribe().__aenter__(),
                )
                assert said == ["client_forked"] * 6
                await message.ack()
            queue.database.close()

    anyio.run(main, backend=backend)


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")  # a fork beside a thread
def test_a_table_that_was_opened_before_a_fork(url: str) -> None:
    """As in an application that is loaded before its workers: each has connections of its own."""
    with message_table(url) as table:
        insert(table, "of the parent")
        lock = table.database._writer
        with lock:  # another thread is writing
            pid = os.fork()
            if pid == 0:
                try:
                    insert(table, "of the child")
                    table.purge()
                    os._exit(0)
                finally:
                    os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        insert(table, "of the parent")
        assert table.stats().due == 3
