"""Dramatiq's actors on a real broker: what is delayed, retried, given up, taken back, and what workers hold."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import ConnectionFailed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Retries
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.guarded import Place
from tickwheel import sync
from tickwheel.dramatiq import BrokerRetries, TickwheelBroker
from tickwheel.errors import BadArgument, BadTopicName, ConnectionDenied
from tickwheel_bench.processes import wait_until

pytestmark = pytest.mark.shared_daemon

_numbers = count()
JOIN_MS = int(PATIENCE_S * 1_000)


@pytest.fixture
def broker(daemon: Daemon) -> Iterator[TickwheelBroker]:
    made = TickwheelBroker(daemon.url, prefix=f"d{next(_numbers)}.")
    made.emit_after("process_boot")
    yield made
    made.close()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[sync.Client]:
    with sync.Client(daemon.url) as one:
        yield one


@contextmanager
def working(broker: TickwheelBroker, threads: int = 4) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_actors_are_called(broker: TickwheelBroker) -> None:
    seen: list[int] = []

    @dramatiq.actor(broker=broker)
    def note(number: int) -> None:
        seen.append(number)

    with working(broker):
        for number in range(20):
            note.send(number)
        broker.join("default", timeout=JOIN_MS)
    assert sorted(seen) == list(range(20))
    assert broker.unfinished("default") == 0


def test_what_is_delayed_waits_in_the_broker_and_in_its_own_queue(
    broker: TickwheelBroker, client: sync.Client
) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    began = datetime.now(UTC)
    for days in (1, 400):
        note.send_with_options(delay=timedelta(days=days))
    with working(broker) as worker:
        assert set(worker.consumers) == {"default"}
        assert broker.get_declared_delay_queues() == set()
        waiting = client.browse(broker.topic_of("default"), states="scheduled")
        assert [round((one.deliver_at - began) / timedelta(days=1)) for one in waiting] == [1, 400]
        assert not worker.work_queue.qsize()
        with pytest.raises(QueueJoinTimeout):
            broker.join("default", timeout=1)


def test_nothing_is_early_and_all_comes(broker: TickwheelBroker) -> None:
    late_ms: list[float] = []

    @dramatiq.actor(broker=broker)
    def note(due_ms: float) -> None:
        late_ms.append(time.time() * 1_000 - due_ms)

    with working(broker):
        for delay_ms in (0, 50, 200, 300):
            note.send_with_options(args=(int(time.time() * 1_000) + delay_ms,), delay=delay_ms)
        broker.join("default", timeout=JOIN_MS)
    assert len(late_ms) == 4
    assert min(late_ms) >= 0


def test_one_of_another_brokers_delay_queue_is_due_as_it_was_there(
    broker: TickwheelBroker, client: sync.Client
) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=7)
    old: dramatiq.Message[Any] = dramatiq.Message(
        "mails.DQ", "write", (), {}, {"eta": int(due.timestamp() * 1_000)}
    )
    broker.enqueue(old)
    (one,) = client.browse(broker.topic_of("mails"))
    assert one.deliver_at == due
    assert b"eta" not in one.body
    assert broker.get_declared_queues() == {"mails"}


@pytest.mark.parametrize("option", ["deliver_at", "delay_ms"])
def test_a_time_that_would_be_passed_over_is_refused(
    broker: TickwheelBroker, client: sync.Client, option: str
) -> None:
    @dramatiq.actor(broker=broker, queue_name="passed")
    def write() -> None: ...

    with pytest.raises(BadArgument, match=f"{option} is no option of Dramatiq's") as caught:
        write.send_with_options(**{option: 1_900_000_000_000})
    assert "delay=" in caught.value.advice
    with pytest.raises(BadArgument):
        broker.enqueue_many([write.message_with_options(**{option: 5})])
    assert "passed" not in [topic.name for topic in client.topics() if topic.ready or topic.scheduled]


def test_parts_of_a_millisecond_are_rounded_up(broker: TickwheelBroker, client: sync.Client) -> None:
    due_ms = 1_900_000_000_000.25
    old: dramatiq.Message[Any] = dramatiq.Message("fine.DQ", "write", (), {}, {"eta": due_ms})
    broker.enqueue(old)
    broker.enqueue_many([old])
    later: Any = 3_600_000.25  # as the other brokers take it
    began_ms = client.stats().now_ms
    broker.enqueue(dramatiq.Message("fine", "write", (), {}, {}), delay=later)
    first, second, third = client.browse(broker.topic_of("fine"))
    assert first.deliver_at_ms == second.deliver_at_ms == 1_900_000_000_001
    assert third.deliver_at_ms >= began_ms + 3_600_001


def test_retries_of_dramatiq_work_as_they_are(broker: TickwheelBroker) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=3, min_backoff=1, max_backoff=2)
    def fail_twice() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("not yet")

    with working(broker):
        fail_twice.send()
        broker.join("default", timeout=JOIN_MS)
    assert len(attempts) == 3


def dead(client: sync.Client, broker: TickwheelBroker, queue: str = "default") -> list[Any]:
    return client.browse(f"{broker.topic_of(queue)}.dead")


def test_what_fails_for_good_is_a_dead_letter_with_its_reason(
    broker: TickwheelBroker, client: sync.Client
) -> None:
    @dramatiq.actor(broker=broker, max_retries=0)
    def fail(name: str) -> None:
        raise ValueError(f"no such card: {name}")

    with working(broker):
        fail.send("ada")
        broker.join("default", timeout=JOIN_MS)
    (letter,) = dead(client, broker)
    assert dramatiq.Message.decode(letter.body).args == ("ada",)
    assert "no such card: ada" in str(letter.headers)


def test_a_message_for_an_unknown_actor_and_one_that_is_none(
    broker: TickwheelBroker, client: sync.Client
) -> None:
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "nobody_knows", (), {}, {}))
    client.send(broker.topic_of("default"), b"\xff not json")
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert sorted(letter.body == b"\xff not json" for letter in dead(client, broker)) == [False, True]


@pytest.fixture
def counting(daemon: Daemon) -> Iterator[TickwheelBroker]:
    others = [one() for one in dramatiq.middleware.default_middleware if one is not Retries]
    made = TickwheelBroker(
        daemon.url,
        prefix=f"d{next(_numbers)}.",
        middleware=[*others, BrokerRetries(min_backoff=1, max_backoff=2)],
    )
    yield made
    made.close()


def test_the_brokers_retries_are_attempts_of_one_message(
    counting: TickwheelBroker, client: sync.Client
) -> None:
    told: list[int] = []
    backend = StubBackend()
    counting.add_middleware(Results(backend=backend))
    counting.add_middleware(dramatiq.middleware.CurrentMessage())

    @dramatiq.actor(broker=counting, max_retries=2, store_results=True)
    def fail_twice() -> str:
        message = dramatiq.middleware.CurrentMessage.get_current_message()
        assert message is not None
        told.append(message.options.get("retries", 0))
        if len(told) < 3:
            raise ValueError("not yet")
        return "done"

    message = fail_twice.send()
    with working(counting):
        assert message.get_result(backend=backend, block=True, timeout=JOIN_MS) == "done"
        counting.join("default", timeout=JOIN_MS)
    assert told == [0, 1, 2]
    (one,) = client.browse(counting.topic_of("default"))
    assert one.groups[0]["epoch"] == 3


def test_the_brokers_retries_end(counting: TickwheelBroker, client: sync.Client) -> None:
    exhausted: list[Any] = []

    @dramatiq.actor(broker=counting)
    def mourn(message: dict[str, Any], about: dict[str, Any]) -> None:
        exhausted.append((message["actor_name"], about["retries"]))

    @dramatiq.actor(broker=counting, max_retries=2, on_retry_exhausted="mourn", queue_name="fails")
    def fail() -> None:
        raise ValueError("never")

    @dramatiq.actor(broker=counting, throws=KeyError, queue_name="throws")
    def throw() -> None:
        raise KeyError("at once")

    with working(counting):
        fail.send()
        throw.send()
        for queue in ("fails", "throws", "default"):
            counting.join(queue, timeout=JOIN_MS)
    assert exhausted == [("fail", 2)]
    assert len(dead(client, counting, "fails")) == len(dead(client, counting, "throws")) == 1


def test_attempts_that_no_worker_survived_count_with_the_brokers_retries(
    counting: TickwheelBroker, client: sync.Client
) -> None:
    called: list[int] = []

    @dramatiq.actor(broker=counting, max_retries=2)
    def poison() -> None:
        called.append(1)

    poison.send()
    topic = counting.topic_of("default")
    for _ in range(3):  # three workers are killed: their leases end without a word
        with client.subscribe(topic, "dramatiq") as held:
            message = held.receive(PATIENCE_S)
            assert message is not None
            message.nack(delay_ms=0)
    with working(counting):
        counting.join("default", timeout=JOIN_MS)
    assert not called
    assert len(dead(client, counting)) == 1


def test_many_at_once(broker: TickwheelBroker, client: sync.Client) -> None:
    seen: list[int] = []

    @dramatiq.actor(broker=broker, queue_name="many")
    def note(number: int) -> None:
        seen.append(number)

    @dramatiq.actor(broker=broker, queue_name="many", priority=5)
    def late(number: int) -> None:
        seen.append(number)

    @dramatiq.actor(broker=broker, queue_name="others")
    def other(number: int) -> None:
        seen.append(number)

    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    old = note.message_with_options(args=(999,), eta=int(due.timestamp() * 1_000))
    sent = broker.enqueue_many(
        [
            *(note.message(n) for n in range(100)),
            late.message(100),
            *(other.message(n) for n in (101, 102)),
            old,
        ]
    )
    assert [one.args[0] for one in sent] == [*range(103), 999]
    broker.enqueue_many([note.message(1_000)], delay=3_600_000)
    waiting = client.browse(broker.topic_of("many"), states="scheduled")
    assert waiting[0].deliver_at == due
    assert len(waiting) == 2
    assert all(broker.cancel(one) == "cancelled" for one in sent if one.args == (999,))
    with working(broker):
        wait_until(lambda: len(seen) == 103)
        broker.join("others", timeout=JOIN_MS)
    assert sorted(seen) == list(range(103))
    assert broker.enqueue_many([]) == []


def test_cancelled_in_time_and_too_late(broker: TickwheelBroker) -> None:
    seen: list[str] = []

    @dramatiq.actor(broker=broker)
    def note(what: str) -> None:
        seen.append(what)

    later = note.send_with_options(args=("later",), delay=3_600_000)
    now = note.send("now")
    with working(broker):
        wait_until(lambda: seen)
        assert broker.cancel(later) == "cancelled"
        broker.join("default", timeout=JOIN_MS)
        assert broker.cancel(now) in ("already_acked", "already_delivered")
    assert seen == ["now"]
    with pytest.raises(BadArgument, match="was not enqueued here"):
        broker.cancel(note.message("elsewhere"))


def test_a_message_that_was_enqueued_again_is_cancelled_each_time(
    broker: TickwheelBroker, client: sync.Client
) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    message = note.send()
    topic = broker.topic_of("default")
    with client.subscribe(topic, "dramatiq") as held:
        assert held.receive(PATIENCE_S) is not None
        broker.enqueue(message, delay=3_600_000)
        broker.enqueue_many([message, message], delay=7_200_000)
        assert broker.cancel(message) == "cancelled"
    assert broker.unfinished("default") == 0
    assert broker.cancel(message) in ("already_cancelled", "not_found", "already_acked")


def test_flushing(broker: TickwheelBroker) -> None:
    @dramatiq.actor(broker=broker)
    def note() -> None: ...

    broker.flush_all()  # there is no topic yet
    note.send()
    note.send_with_options(delay=3_600_000)
    assert broker.unfinished("default") == 2
    broker.flush("default")
    assert broker.unfinished("default") == 0


def test_urgent_ones_are_first(broker: TickwheelBroker, client: sync.Client) -> None:
    order: list[str] = []

    @dramatiq.actor(broker=broker, priority=10)
    def patient() -> None:
        order.append("patient")

    @dramatiq.actor(broker=broker, priority=-10)
    def urgent() -> None:
        order.append("urgent")

    for _ in range(6):
        patient.send()
    for _ in range(6):
        urgent.send()
    topic = broker.topic_of("default")
    wait_until(lambda: [one.ready for one in client.topics() if one.name == topic] == [12])
    # The worker asks for two messages at a time, so that only the broker can have sorted them.
    with working(broker, threads=1):
        broker.join("default", timeout=JOIN_MS)
    assert order.count("urgent") == order.count("patient") == 6
    assert order[:4].count("urgent") >= 3


@pytest.mark.skipif(
    not hasattr(dramatiq.worker, "_WorkQueueItem"), reason="workers of Dramatiq 2.1 keep no order"
)
def test_one_thread_works_in_the_order_of_sending(broker: TickwheelBroker) -> None:
    seen: list[int] = []

    @dramatiq.actor(broker=broker)
    def note(number: int) -> None:
        seen.append(number)

    with working(broker, threads=1):
        for number in range(30):
            note.send(number)
        broker.join("default", timeout=JOIN_MS)
    assert seen == list(range(30))


def test_a_worker_holds_no_more_than_its_prefetch_and_gives_back_what_it_did_not_begin(
    broker: TickwheelBroker, client: sync.Client
) -> None:
    is_free, begun = threading.Event(), threading.Event()

    @dramatiq.actor(broker=broker)
    def wait() -> None:
        begun.set()
        is_free.wait(PATIENCE_S)

    for _ in range(50):
        wait.send()
    topic = broker.topic_of("default")
    with working(broker, threads=1):
        assert begun.wait(PATIENCE_S)
        wait_until(lambda: client.groups(topic)[0].leased == 2)
        is_free.set()
    (group,) = client.groups(topic)
    assert group.leased == 0
    assert group.acked + group.backlog == 50


def test_leases_are_renewed_while_actors_run(daemon: Daemon, client: sync.Client) -> None:
    prefix = f"d{next(_numbers)}."
    client.create_topic(f"{prefix}slow", ack_wait=timedelta(seconds=1))
    made = TickwheelBroker(daemon.url, prefix=prefix)
    calls: list[int] = []

    @dramatiq.actor(broker=made, queue_name="slow")
    def sleep() -> None:
        calls.append(1)
        time.sleep(3)  # three leases

    try:
        with working(made):
            sleep.send()
            made.join("slow", timeout=JOIN_MS)
    finally:
        made.close()
    assert len(calls) == 1


def test_a_paused_worker_keeps_what_it_has(broker: TickwheelBroker, client: sync.Client) -> None:
    """Dramatiq closes a consumer for a pause; what was prefetched must not run twice."""
    is_free, calls = threading.Event(), []

    @dramatiq.actor(broker=broker)
    def wait() -> None:
        calls.append(1)
        is_free.wait(PATIENCE_S)

    wait.send()
    topic = broker.topic_of("default")
    with working(broker, threads=1) as worker:
        wait_until(lambda: calls)
        consumer = worker.consumers["default"]
        consumer.pause()
        assert consumer.paused_event.wait(PATIENCE_S)
        assert client.groups(topic)[0].leased == 1
        is_free.set()
        wait_until(lambda: client.groups(topic)[0].acked == 1)
        wait_until(lambda: client.groups(topic)[0].subscribers == 0)
        consumer.resume()
        wait.send()
        broker.join("default", timeout=JOIN_MS)
    assert len(calls) == 2


def test_queues_that_are_not_declared(broker: TickwheelBroker) -> None:
    for ask in (broker.consume, broker.flush, broker.join):
        with pytest.raises(QueueNotFound):
            ask("none")  # type: ignore[operator]


def test_no_broker_and_bad_arguments() -> None:
    nowhere = TickwheelBroker("tickwheel://127.0.0.1:1", connect_timeout=0.2)
    with pytest.raises(ConnectionFailed, match="There is no connection"):
        nowhere.enqueue(dramatiq.Message("default", "note", (), {}, {}))
    with pytest.raises(BadTopicName):
        TickwheelBroker(prefix="a b")
    with pytest.raises(BadArgument):
        TickwheelBroker(timeout="long")  # type: ignore[arg-type]


def test_two_kinds_of_retries_are_refused() -> None:
    """Each failure would be retried by both."""
    broker = TickwheelBroker()
    with pytest.raises(BadArgument, match="take the place of Retries"):
        broker.add_middleware(BrokerRetries())
    assert not any(isinstance(one, BrokerRetries) for one in broker.middleware)
    with pytest.raises(BadArgument, match="take the place of Retries"):
        TickwheelBroker(middleware=[BrokerRetries(), Retries()])


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")  # a fork beside a thread
def test_a_child_has_a_connection_of_its_own(broker: TickwheelBroker, client: sync.Client) -> None:
    @dramatiq.actor(broker=broker)
    def note(pid: int) -> None: ...

    note.send(os.getpid())
    child = os.fork()
    if not child:
        code = 1
        try:
            logging.disable()
            note.send(os.getpid())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    note.send(os.getpid())
    bodies = [dramatiq.Message.decode(one.body).args[0] for one in client.browse(broker.topic_of("default"))]
    assert bodies == [os.getpid(), child, os.getpid()]


def test_a_broker_that_is_closed_under_its_worker(daemon: Daemon, client: sync.Client) -> None:
    made = TickwheelBroker(daemon.url, prefix=f"d{next(_numbers)}.")
    is_free, begun = threading.Event(), threading.Event()

    @dramatiq.actor(broker=made)
    def wait() -> None:
        begun.set()
        is_free.wait(PATIENCE_S)

    wait.send()
    with working(made, threads=1) as worker:
        assert begun.wait(PATIENCE_S)
        made.close()
        is_free.set()
        worker.work_queue.join()  # it is not told again and again that there is no client
    made.close()
    (group,) = client.groups(made.topic_of("default"))
    assert (group.leased, group.acked) in ((0, 0), (0, 1))


def is_denied(broker: TickwheelBroker) -> bool:
    try:
        broker.enqueue(dramatiq.Message("default", "note", (), {}, {}))
    except ConnectionDenied:
        return True
    return False


def test_a_token_that_is_replaced(tmp_path: Path) -> None:
    """A client that is not let in is over; the next call has another one, with what is in the file by then."""
    place = Place(tmp_path)
    file = tmp_path / "token"
    file.write_text(place.create("old", "publish:*", "consume:*"))
    with place.daemon() as daemon:
        made = TickwheelBroker(daemon.url, token_file=file)
        message: dramatiq.Message[Any] = dramatiq.Message("default", "note", (), {}, {})
        made.enqueue(message)
        renewed = place.create("new", "publish:*", "consume:*")
        place.tokens("revoke", "old", "--yes")
        wait_until(lambda: is_denied(made))
        file.write_text(renewed)
        assert not is_denied(made)
        made.close()
