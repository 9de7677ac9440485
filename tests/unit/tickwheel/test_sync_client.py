"""The blocking client against an embedded broker: the same names and errors, from ordinary threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import tickwheel
from tests.support.clients import both_ways
from tickwheel import CancelResult, RescheduleResult, SendResult, sync
from tickwheel.errors import ClientClosed, NaiveDatetime, NeverDelivered, NotConnected

PATIENCE_S = 60.0


@pytest.fixture(autouse=True, params=both_ways.WAYS)
def _way_of_sends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    both_ways.choose(request.param, monkeypatch)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[sync.Client]:
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        yield client


def test_send_and_receive_one_by_one(client: sync.Client) -> None:
    results = client.send_many("tea", [b"a", b"b", b"c"], keys=["x", None, "z"])
    assert [type(item) for item in results] == [SendResult] * 3
    with client.subscribe("tea") as sub:
        assert (sub.topic, sub.group) == ("tea", "default")
        got = []
        for message in sub:
            message.ack()
            got.append((message.id, message.key, message.body))
            if len(got) == 3:
                break
        sub.flush()
        assert sub.receive(timeout=0.01) is None
    ids = list(results.ids())
    assert got == list(zip(ids, ["x", None, "z"], [b"a", b"b", b"c"], strict=True))
    with client.subscribe("tea") as sub:
        assert sub.receive(timeout=0.05) is None


def test_receive_and_ack_by_batches(client: sync.Client) -> None:
    client.send_many("tea", [b"%d" % n for n in range(50)])
    bodies: list[bytes] = []
    with client.subscribe("tea", batch=10) as sub:
        for batch in sub.batches():
            bodies += batch.bodies()
            batch.ack(confirm=len(bodies) == 50)
            if len(bodies) == 50:
                break
    assert bodies == [b"%d" % n for n in range(50)]
    (topic,) = client.topics()
    assert topic.groups[0].acked == 50


def test_a_stopped_subscription_takes_nothing_more(client: sync.Client) -> None:
    ids = client.send_many("tea", [b"a", b"b", b"c"]).ids()
    with client.subscribe("tea", credit=2, batch=1) as sub:
        first = sub.receive(PATIENCE_S)
        assert first is not None
        sub.stop()
        first.ack()
        assert 1 <= len([message.ack() for message in sub]) + 1 <= 2
    assert client.cancel(id=list(ids)[2]) == "cancelled"


def test_an_ack_does_not_wait_for_the_next_one(client: sync.Client) -> None:
    client.send("tea", b"a")
    with client.subscribe("tea") as sub:
        message = sub.receive(timeout=PATIENCE_S)
        assert message is not None
        message.ack()
        while not client.topics()[0].groups[0].acked:
            client.ping()


def test_a_refused_ack_is_raised(client: sync.Client) -> None:
    client.send("tea", b"a")
    with client.subscribe("tea") as sub:
        message = sub.receive(timeout=PATIENCE_S)
        assert message is not None
        later = client.send("tea", b"b", delay=timedelta(days=1))
        message.id = later.id
        with pytest.raises(NeverDelivered):
            message.ack(confirm=True)


def test_what_was_fetched_ahead_and_not_seen_is_no_attempt(client: sync.Client) -> None:
    client.create_topic("tea", max_attempts=1)
    client.send_many("tea", [b"%d" % n for n in range(4)])
    for number in range(4):
        with client.subscribe("tea") as sub:
            message = sub.receive(timeout=PATIENCE_S)
            assert message is not None
            assert message.body == b"%d" % number
            message.ack(confirm=True)
    assert [topic.name for topic in client.topics()] == ["tea"]


def test_what_was_stopped_is_not_handed_out(client: sync.Client) -> None:
    sent = client.send_many("tea", [b"a", b"b", b"c"])
    with client.subscribe("tea") as sub:
        first = sub.receive(timeout=PATIENCE_S)
        assert first is not None
        assert client.cancel(id=sent[1].id, stop=True) is CancelResult.STOPPED
        client.ping()  # behind it, the subscription knows
        second = sub.receive(timeout=PATIENCE_S)
        assert second is not None
        assert second.body == b"c"


def test_closing_leaves_what_nobody_left(client: sync.Client) -> None:
    client.send("tea", b"a")
    client.subscribe("tea", group="never-entered")
    sub = client.subscribe("tea").__enter__()
    message = sub.receive(timeout=PATIENCE_S)
    assert message is not None
    message.ack()
    client.close()
    with pytest.raises(ClientClosed):
        client.ping()


def test_many_threads_share_a_client(client: sync.Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(lambda n: client.send("tea", b"%d" % n).id, range(100)))
    assert len(set(sent)) == 100


def test_cancel_reschedule_and_looking(client: sync.Client) -> None:
    sent = client.send("tea", b"a", key="k", delay=timedelta(hours=1))
    assert client.reschedule(id=sent.id, delay=timedelta(hours=2)) is RescheduleResult.RESCHEDULED
    assert client.cancel("tea", key="k") is CancelResult.CANCELLED
    assert client.cancel(ids=[sent.id]) == [CancelResult.ALREADY_CANCELLED]
    assert client.stats().cancelled == 1
    assert len(client.wheel().levels) == 4
    assert client.ping() > 0


def test_errors_are_those_of_the_other_client(client: sync.Client) -> None:
    with pytest.raises(NaiveDatetime):
        client.send("tea", b"a", deliver_at=datetime(2031, 1, 1))
    client.close()
    with pytest.raises(ClientClosed):
        client.send("tea", b"a")


def test_no_broker_is_a_typed_error_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(NotConnected), sync.Client(f"tickwheel+unix://{tmp_path}/none", connect_timeout=0.05):
        pass
    assert threading.active_count() <= before
