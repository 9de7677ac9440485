"""The fixtures of Dramatiq's tests, with Tickwheel in the place of the broker in memory.

Their tests also use what only that broker has: its queues as objects, the list of its dead letters, and a ``join`` that
raises what an actor raised. `SuiteBroker` has these beside `TickwheelBroker`, which is tested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers import stub
from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.rate_limits.backends import RedisBackend as RedisRates
from dramatiq.rate_limits.backends import StubBackend as StubRates
from dramatiq.results import ResultBackend
from dramatiq.results.backends import RedisBackend as RedisResults
from dramatiq.results.backends import StubBackend as StubResults

from tickwheel import sync
from tickwheel.dramatiq import TickwheelBroker

BROKER = os.environ["TICKWHEEL_SUITE_BROKER"]
REDIS = os.environ["TICKWHEEL_SUITE_REDIS"]
JOIN_MS = 60_000
_numbers = count()


class Queue:
    """A queue of the broker in memory, on a topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def put(self, body: bytes) -> None:
        with sync.Client(BROKER) as client:
            client.send(self._topic, body)

    def get(self, timeout: float) -> bytes:
        with sync.Client(BROKER) as client:
            fetched = client.fetch(self._topic, "dramatiq", wait=timedelta(seconds=timeout))
            (body,) = fetched.bodies()
            fetched.ack(confirm=True)
            return body


class DeadLetters(dramatiq.Middleware):
    """Remembers what a worker of this process gave up, and why."""

    def __init__(self) -> None:
        self.letters: list[tuple[dramatiq.MessageProxy, BaseException | None]] = []

    def before_nack(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        # A test replaces this method to find out whether messages let go of their exceptions.
        forgets = stub._StubMessageProxy.clear_exception is dramatiq.MessageProxy.clear_exception
        self.letters.append((message, None if forgets else message._exception))


class SuiteBroker(TickwheelBroker):
    def __init__(self) -> None:
        super().__init__(BROKER, prefix=f"suite{next(_numbers)}.")
        self._dead = DeadLetters()
        self.add_middleware(self._dead)

    def declare_queue(self, queue_name: str) -> None:
        is_new = queue_name not in self.queues
        super().declare_queue(queue_name)
        if is_new:
            self.queues[queue_name] = Queue(self.topic_of(queue_name))  # type: ignore[assignment]

    @property
    def dead_letters(self) -> list[Any]:
        return [message for message, _ in self._dead.letters]

    def join(
        self, queue_name: str, *, interval: int = 10, timeout: int | None = None, fail_fast: bool = True
    ) -> None:
        super().join(queue_name, interval=interval, timeout=timeout or JOIN_MS)
        for message, error in self._dead.letters:
            if fail_fast and message.queue_name == queue_name:
                raise error or Exception("It failed.")


@pytest.fixture
def stub_broker() -> Iterator[SuiteBroker]:
    broker = SuiteBroker()
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_worker(stub_broker: SuiteBroker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(stub_broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def redis_result_backend() -> ResultBackend:
    return RedisResults(url=REDIS)


@pytest.fixture(params=["stub", "redis"])
def result_backend(request: pytest.FixtureRequest) -> ResultBackend:
    return StubResults() if request.param == "stub" else RedisResults(url=REDIS)


@pytest.fixture(params=["stub", "redis"])
def rate_limiter_backend(request: pytest.FixtureRequest) -> RateLimiterBackend:
    return StubRates() if request.param == "stub" else RedisRates(url=REDIS)
