"""One subscription of the blocking client, and several threads that take its messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tickwheel
from tickwheel import sync
from tickwheel._embedded import EmbeddedBroker
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.outcomes import GiveUp, Retry
from tickwheel.worker.threads import ThreadWorker
from tickwheel.worker.worker import asked

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(way_of_sends: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with tickwheel.embedded(tmp_path_factory.mktemp("threads")) as running:
        yield running


def work(client: sync.Client, topic: str, handler: Any, threads: int, done: threading.Event) -> ThreadWorker:
    """Until it is done; a test that would wait for leases to end fails before."""
    options = Options(concurrency=threads, prefetch=0)
    judged = Handler(topic, handler, options)
    worker = ThreadWorker(
        judged, partial(client.subscribe_as, topic, "default", asked(judged)), timedelta(seconds=5)
    )
    running = threading.Thread(target=worker.run)
    running.start()
    is_done = done.wait(PATIENCE_S / 4)
    worker.stop()
    running.join(PATIENCE_S)
    assert is_done
    assert not running.is_alive()
    return worker


def test_messages_that_came_together_are_handled_at_once(broker: EmbeddedBroker) -> None:
    """The thread that begins a batch is at work with its first message: the others have the rest."""
    together, done = threading.Barrier(4), threading.Event()

    def handle(message: sync.Message) -> None:
        together.wait(PATIENCE_S / 4)
        done.set()

    with broker.sync_client() as client:
        client.send_many("together", [b"x"] * 4)
        work(client, "together", handle, 4, done)


def test_none_is_lost_between_threads(broker: EmbeddedBroker) -> None:
    """A thread that has waited for a batch does not put it in the place of one that another thread has begun."""
    found: Counter[bytes] = Counter()
    lock, done = threading.Lock(), threading.Event()

    def handle(message: sync.Message) -> None:
        with lock:
            found[message.body] += 1
            if len(found) == 2_000:
                done.set()

    with broker.sync_client() as client:
        client.send_many("many", [str(n).encode() for n in range(2_000)])
        work(client, "many", handle, 4, done)
    assert set(found.values()) == {1}


def test_what_another_thread_has_taken_is_no_end(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the arrival of a message and its return another thread may come."""
    taken: list[sync.Message] = []
    with broker.sync_client() as client, client.subscribe("taken", credit=1, batch=1) as subscription:
        carry = client.session.run

        def run(work: Any) -> Any:
            result = carry(work)
            if not taken:
                taken.append(subscription._messages.popleft())
                taken[0].ack()
            return result

        client.send_many("taken", [b"1", b"2"])
        monkeypatch.setattr(client.session, "run", run)
        message = subscription.receive()
        assert message is not None
        assert {message.body, taken[0].body} == {b"1", b"2"}
        message.ack()


@pytest.mark.parametrize(
    ("outcome", "is_acked", "told"),
    [
        (
            GiveUp("no such customer"),
            False,
            "is given_up, but it could not become a dead letter, and comes again",
        ),
        (Retry(), True, "is retry, but it was no longer this worker's: already_acked"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_counted_and_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    outcome: GiveUp | Retry,
    is_acked: bool,
    told: str,
) -> None:
    done = threading.Event()

    def handle(message: sync.Message) -> None:
        if is_acked:
            message.ack(confirm=True)
        done.set()
        raise outcome

    # It has no room for a topic of dead letters.
    with tickwheel.embedded(tmp_path, max_topics=1) as broker, broker.sync_client() as client:
        client.send("full", b"x")
        worker = work(client, "full", handle, 1, done)
    assert worker.tally.unsettled == 1
    assert told in caplog.text
