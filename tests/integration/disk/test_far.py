"""Brokers whose log has positions beyond 2^44 bytes, seen by clients and commands; and odd sizes of segments."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon
from tests.support.stores.far import begin, begin_late
from tickwheel import DiskFull
from tickwheel.sync import Client
from timerlog.commitlog.addresses import END_POSITION
from timerlog.settings import MIB, StoreSettings

SETTINGS = {"segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}
STORE = StoreSettings(segment_bytes=9 * MIB, max_frame_bytes=256 * 1024, max_body_bytes=64 * 1024)
WAIT = timedelta(seconds=10)
BODIES = [b"%05d" % number * 10_000 for number in range(400)]


def send_all(client: Client, bodies: list[bytes]) -> None:
    for start in range(0, len(bodies), 20):
        client.send_many("t", bodies[start : start + 20])


def test_a_broker_crosses_and_starts_again(tmp_path: Path) -> None:
    data, shell = tmp_path / "data", Shell(tmp_path)
    begin(data, (1 << 44) - STORE.segment_bytes, STORE)
    with Daemon(data, **SETTINGS) as daemon, Client(daemon.url) as client:
        send_all(client, BODIES)
        first = client.fetch("t", group="g", count=5, wait=WAIT)
        assert first
        assert [message.body for message in first] == BODIES[: len(first)]
        client.ack(first.group_id, [(message.id, message.epoch) for message in first])
        life = client.history(id=1)
        assert life is not None
        assert [event.event for event in life.events][:2] == ["sent", "due"]
        assert client.query("select count(*) as n from messages").rows == [[len(BODIES)]]
        shell.run("backup", str(data), str(tmp_path / "copy"))
        daemon.kill()
    assert max(int(path.stem) for path in (data / "commitlog").iterdir()) > 1 << 44
    shell.run("restore", str(tmp_path / "copy"), str(tmp_path / "restored"))
    for directory in (data, tmp_path / "restored"):
        with Daemon(directory, **SETTINGS) as daemon, Client(daemon.url) as client:
            found = client.message(id=400)
            assert found is not None
            assert found.body == BODIES[399]
            client.purge()


@pytest.mark.parametrize(("first_id", "seq"), [(11_453_246_000, 7), (1_000, 134_217_600), (1 << 37, 1 << 37)])
def test_messages_topics_and_groups_go_on_as_after_years(tmp_path: Path, first_id: int, seq: int) -> None:
    """Over the places where all messages, and those of a group, once ended; killed in between."""
    data = tmp_path / "data"
    begin_late(data, first_id, seq, ("t",), STORE)
    done: list[int] = []
    for _ in range(3):
        with Daemon(data, **SETTINGS) as daemon, Client(daemon.url) as client:
            client.send_many("t", [b"%d" % number for number in range(300)])
            fetched = client.fetch("t", group="g", count=200, wait=WAIT)
            client.ack(fetched.group_id, [(message.id, message.epoch) for message in fetched])
            done += [message.id for message in fetched]
            life = client.history(id=done[-1])
            assert life is not None
            assert [event.event for event in life.events] == ["sent", "due", "delivered", "acked"]
            count = client.query("select count(*) as n from messages where state = 'acked'").rows
            assert count == [[len(done)]]
            daemon.kill()
    assert sorted(set(done)) == sorted(done)
    assert min(done) >= first_id
    with Daemon(data, **SETTINGS) as daemon, Client(daemon.url) as client:
        assert client.query("select count(*) as n from messages").rows == [[900]]
        assert daemon.stop() == 0


def test_the_end_of_the_log_is_told(tmp_path: Path) -> None:
    begin(tmp_path / "data", END_POSITION - STORE.segment_bytes, STORE)
    with Daemon(tmp_path / "data", **SETTINGS) as daemon, Client(daemon.url) as client:
        with pytest.raises(DiskFull, match="the log is at its end") as refused:
            send_all(client, BODIES)
        assert "another one" in refused.value.advice
        fetched = client.fetch("t", group="g", wait=WAIT)
        (message,) = fetched
        assert message.body == BODIES[0]
        client.ack(fetched.group_id, [(message.id, message.epoch)])
        assert daemon.stop() == 0


def test_segments_of_an_odd_size(tmp_path: Path) -> None:
    """Ten million bytes are no multiple of a page: the second segment could not be mapped."""
    settings = {**SETTINGS, "segment_bytes": "9500000"}
    with Daemon(tmp_path / "data", **settings) as daemon, Client(daemon.url) as client:
        send_all(client, BODIES[:250])
        assert daemon.stop() == 0
    with Daemon(tmp_path / "data", **settings) as daemon, Client(daemon.url) as client:
        found = client.message(id=250)
        assert found is not None
        assert found.body == BODIES[249]
