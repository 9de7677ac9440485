"""What a task queue gives back or gives up, and the broker answers otherwise: the log tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import dramatiq
import pytest
from taskiq import Context, TaskiqDepends

from tests.support.frameworks.taskiq_brokers import new_broker, run, until, working
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync
from tickwheel.dramatiq import TickwheelBroker


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Daemon]:
    """There is no room for a topic of dead letters."""
    with Daemon(tmp_path / "data", max_topics=1) as daemon:
        yield daemon


def test_taskiq_cannot_reject(full: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    broker = new_broker(full.url)

    @broker.task
    async def refuse(context: Annotated[Context, TaskiqDepends()]) -> None:
        context.reject()

    async def is_told() -> bool:
        return f"message 1 of '{broker.topic}' was rejected, and is no dead letter: nacked" in caplog.text

    async def test() -> None:
        async with working(broker):
            await refuse.kiq()
            await until(is_told)

    run(broker, test)


def test_dramatiq_cannot_refuse(full: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    broker = TickwheelBroker(full.url)
    with sync.Client(full.url) as client:
        client.send(broker.topic_of("default"), b"\xff not json")
    broker.declare_queue("default")
    consumer = broker.consume("default", timeout=30_000)
    assert next(consumer) is None
    consumer.close()
    broker.close()
    assert "and is a dead letter now" not in caplog.text
    assert f"message 1 of '{broker.topic_of('default')}' was to be dead: nacked" in caplog.text


def test_dramatiq_cannot_requeue(full: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    broker = TickwheelBroker(full.url)
    broker.declare_queue("default")
    sent = broker.enqueue(dramatiq.Message("default", "nobody", (), {}, {}))
    consumer = broker.consume("default", timeout=30_000)
    message = next(consumer)
    assert message is not None
    message.received.ack(confirm=True)
    consumer.requeue([message])
    consumer.close()
    broker.close()
    assert f"message {sent.message_id} was to be nacked: already_acked" in caplog.text
