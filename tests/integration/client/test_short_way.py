"""Sends of the blocking client to the real daemon, by the short way and by the usual one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.certificates import Files
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.losing import LosingProxy
from tickwheel import sync
from tickwheel.blocking import short_way
from tickwheel.errors import SendUncertain, TickwheelError
from tickwheel_native import call as _call

pytestmark = pytest.mark.shared_daemon


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often the short way was taken."""
    found: list[int] = []
    genuine = _call.send

    def send(*arguments: Any) -> bool:
        found.append(1)
        return genuine(*arguments)

    monkeypatch.setattr(_call, "send", send)
    yield found
    if not short_way.is_open:
        assert found == []


def test_many_sends_of_one_thread(daemon: Daemon, topic: str, written: list[int]) -> None:
    due = datetime(2031, 5, 1, tzinfo=UTC)
    with sync.Client(daemon.url) as client:
        ids = [client.send(topic, b"%d" % number).id for number in range(300)]
        later = client.send(topic, b"later", key="k", deliver_at=due)
        again = client.send(topic, b"later", key="k", deliver_at=due)
        other = client.send(topic, b"other", key="k", deliver_at=due)
        assert (again.id, again.duplicate, again.differs) == (later.id, True, False)
        assert (other.id, other.duplicate, other.differs) == (later.id, True, True)
        delayed = client.send(topic, b"delayed", delay=timedelta(hours=1))
        empty = client.send(topic, b"")
        assert ids == sorted(set(ids))
        found = {one.id: one for one in client.browse(topic, limit=1_000)}
        assert [found[number].body for number in ids] == [b"%d" % number for number in range(300)]
        assert (found[later.id].deliver_at, found[later.id].key) == (due, "k")
        ahead_s = (found[delayed.id].deliver_at - datetime.now(UTC)).total_seconds()
        assert 3_000 < ahead_s < 3_700
        assert found[empty.id].body == b""
        assert len(found) == 303
    if short_way.is_open:
        assert len(written) > 250


def test_without_keys_and_with_bodies_of_all_sizes(daemon: Daemon, topic: str, written: list[int]) -> None:
    """Over the Unix socket, too."""
    sizes = [1, 4_095, 4_096, 65_536, 65_537, 1 << 20, 3]
    for url in (daemon.url, daemon.unix_url):
        with sync.Client(url, auto_key=False) as client:
            ids = [client.send(topic, bytes([size % 251]) * size).id for size in sizes]
            with client.subscribe(topic) as subscription:
                for number, size in zip(ids, sizes, strict=True):
                    message = subscription.receive(PATIENCE_S)
                    assert message is not None
                    assert (message.id, message.body) == (number, bytes([size % 251]) * size)
                    message.ack()


def test_threads_that_meet_now_and_then(daemon: Daemon, topic: str, written: list[int]) -> None:
    """Each message is stored once, whoever was alone and whoever was not."""
    with sync.Client(daemon.url) as client, ThreadPoolExecutor(6) as pool:

        def work(part: int) -> list[tuple[int, bytes]]:
            sent = []
            for number in range(60):
                body = b"%d/%d" % (part, number)
                sent.append((client.send(topic, body).id, body))
                if number % 7 == part:
                    time.sleep(0.003)
                if number % 20 == 0:
                    client.ping()
            return sent

        sent = [one for part in pool.map(work, range(6)) for one in part]
        found = {one.id: one.body for one in client.browse(topic, limit=1_000)}
        assert found == dict(sent)
        assert len(found) == 360


def test_who_subscribes_sends(daemon: Daemon, topic: str, written: list[int]) -> None:
    """While messages are held, and when they are not any more; what comes beside an answer is not missed."""
    with sync.Client(daemon.url) as client, client.subscribe(topic, credit=10) as subscription:
        for number in range(60):
            client.send(topic, b"%d" % number)
            if number % 3 == 0:
                continue
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            message.ack(confirm=number % 2 == 0)
        for _ in range(20):
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            message.ack()
        subscription.flush()
        (group,) = next(one for one in client.topics() if one.name == topic).groups
        assert (group.acked, group.leased) == (60, 0)


def test_through_tls(tmp_path: Path, written: list[int]) -> None:
    files = Files(tmp_path / "certificates")
    with (
        Daemon(tmp_path / "data", tls_certificate=files.certificate_path, tls_key=files.key_path) as daemon,
        sync.Client(daemon.tls_url, ca_file=files.ca_path) as client,
    ):
        ids = [client.send("tea", b"x").id for _ in range(20)]
        assert len(set(ids)) == 20
    assert written == []


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_connection_that_is_cut_again_and_again(
    daemon: Daemon, topic: str, written: list[int], has_keys: bool
) -> None:
    """With keys each message is stored once; without, one that is uncertain is stored once or not."""
    uncertain, stored = set(), set()
    with LosingProxy(daemon.url) as proxy:

        def cut() -> None:
            for _ in range(5):
                time.sleep(0.02)
                proxy.cut()

        cutting = threading.Thread(target=cut)
        with sync.Client(proxy.url, token="", auto_key=has_keys) as client:
            client.send(topic, b"first")
            cutting.start()
            number = 0
            while cutting.is_alive() or number < 50:
                body = b"%d" % number
                try:
                    client.send(topic, body)
                    stored.add(body)
                except SendUncertain:
                    uncertain.add(body)
                number += 1
    with sync.Client(daemon.url) as client:
        found = [one.body for one in client.browse(topic, limit=1_000) if one.body != b"first"]
    assert len(found) == len(set(found))
    assert stored <= set(found) <= stored | uncertain
    if has_keys:
        assert uncertain == set()


def test_a_broker_that_is_killed(fresh_daemon: Daemon, written: list[int]) -> None:
    """What was answered is there when it has started again."""
    stored: list[int] = []
    with sync.Client(fresh_daemon.unix_url, timeout=PATIENCE_S) as client:
        client.send("tea", b"first")

        def work() -> None:
            for number in range(400):
                stored.append(client.send("tea", b"%d" % number).id)

        sending = threading.Thread(target=work)
        sending.start()
        while len(stored) < 50:
            time.sleep(0.001)
        fresh_daemon.kill()
        fresh_daemon.start()
        sending.join(PATIENCE_S)
        assert not sending.is_alive()
        bodies = [one.body for one in client.browse("tea", limit=1_000)]
    assert sorted(bodies) == sorted([b"first", *(b"%d" % number for number in range(400))])
    assert len(set(stored)) == 400


def test_refusals_of_the_broker(daemon: Daemon, topic: str, written: list[int]) -> None:
    with sync.Client(daemon.url) as client:
        client.send(topic, b"1")
        client.delete_topic(topic)
        assert client.send(topic, b"2").duplicate is False
        assert [one.body for one in client.browse(topic)] == [b"2"]
        with pytest.raises(TickwheelError) as raised:
            client.send(topic, b"x" * (client.max_body_bytes + 1))
        assert raised.value.code == "body_too_large"
        client.send(topic, b"3")
