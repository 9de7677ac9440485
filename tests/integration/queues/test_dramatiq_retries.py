"""What Dramatiq promises of retries holds for its own middleware here, and for the one that uses the broker's attempts.

Its own tests of this are not in its source distribution, which ``make dramatiq-suite`` runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Retries

from tests.integration.queues.test_dramatiq import JOIN_MS, working
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync
from tickwheel.dramatiq import BrokerRetries, TickwheelBroker

pytestmark = pytest.mark.shared_daemon

_numbers = count()


@pytest.fixture(params=[Retries, BrokerRetries], ids=lambda one: one.__name__)
def broker(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[TickwheelBroker]:
    others: list[Any] = [one() for one in dramatiq.middleware.default_middleware if one is not Retries]
    retries = request.param(max_retries=2, min_backoff=1, max_backoff=2)
    made = TickwheelBroker(daemon.url, prefix=f"r{next(_numbers)}.", middleware=[*others, retries])
    yield made
    made.close()


def run(broker: TickwheelBroker) -> None:
    with working(broker):
        broker.join("default", timeout=JOIN_MS)


def letters(broker: TickwheelBroker, daemon: Daemon) -> int:
    with sync.Client(daemon.url) as client:
        return sum(
            one.messages for one in client.topics() if one.name == f"{broker.topic_of('default')}.dead"
        )


@pytest.mark.parametrize(("of_actor", "of_message", "calls"), [(None, None, 3), (0, None, 1), (4, 1, 2)])
def test_as_often_as_is_said_by_the_message_the_actor_or_the_middleware(
    broker: TickwheelBroker, daemon: Daemon, of_actor: int | None, of_message: int | None, calls: int
) -> None:
    called: list[int] = []

    @dramatiq.actor(broker=broker, **({} if of_actor is None else {"max_retries": of_actor}))
    def fail() -> None:
        called.append(1)
        raise ValueError("never")

    fail.send_with_options(**({} if of_message is None else {"max_retries": of_message}))
    run(broker)
    assert len(called) == calls
    assert letters(broker, daemon) == 1


def test_a_function_decides(broker: TickwheelBroker, daemon: Daemon) -> None:
    asked: list[tuple[int, str]] = []

    def is_retried(retries: int, error: BaseException) -> bool:
        asked.append((retries, str(error)))
        return retries < 4

    @dramatiq.actor(broker=broker, retry_when=is_retried)
    def fail() -> None:
        raise ValueError("never")

    fail.send()
    run(broker)
    assert asked == [(retries, "never") for retries in range(5)]
    assert letters(broker, daemon) == 1


def test_an_actor_asks_for_a_retry_at_a_time(broker: TickwheelBroker, daemon: Daemon) -> None:
    began: list[float] = []

    @dramatiq.actor(broker=broker)
    def ask() -> None:
        began.append(time.monotonic())
        if len(began) == 1:
            raise dramatiq.Retry("later", delay=300)

    ask.send()
    run(broker)
    assert len(began) == 2
    assert began[1] - began[0] >= 0.3
    assert letters(broker, daemon) == 0


def test_what_an_actor_throws_on_purpose_is_not_retried(broker: TickwheelBroker, daemon: Daemon) -> None:
    called: list[int] = []

    @dramatiq.actor(broker=broker, throws=(KeyError,))
    def throw() -> None:
        called.append(1)
        raise KeyError("meant")

    throw.send()
    run(broker)
    assert len(called) == 1
    assert letters(broker, daemon) == 1


def test_an_actor_hears_of_what_was_retried_in_vain(broker: TickwheelBroker) -> None:
    told: list[dict[str, Any]] = []

    @dramatiq.actor(broker=broker)
    def mourn(message: dict[str, Any], about: dict[str, int]) -> None:
        told.append({"args": message["args"], **about})

    @dramatiq.actor(broker=broker, max_retries=1, on_retry_exhausted="mourn")
    def fail(number: int) -> None:
        raise ValueError("never")

    fail.send(17)
    run(broker)
    assert told == [{"args": [17], "retries": 1, "max_retries": 1}]


def test_pipelines_and_callbacks_go_on_after_a_retry(broker: TickwheelBroker) -> None:
    told: list[Any] = []

    @dramatiq.actor(broker=broker)
    def add(left: int, right: int) -> int:
        told.append("add")
        if told == ["add"]:
            raise ValueError("not yet")
        return left + right

    @dramatiq.actor(broker=broker)
    def note(message: dict[str, Any], result: int) -> None:
        told.append(result)

    dramatiq.pipeline([add.message(1, 2), add.message(4)], broker=broker).run()
    add.send_with_options(args=(10, 20), on_success=note)
    run(broker)
    assert sorted(one for one in told if one != "add") == [30]
    assert told.count("add") == 4
