"""Restoring with a real Spark and a real broker: the range and nothing else, once, and not from damaged files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tickwheel
from tests.support.processes.daemon_harness import Daemon
from tests.support.spark.archives import files_of, work_off
from tickwheel.spark import ArchiveDamaged, ArchiveError, SourceError, archive_messages, restore_messages
from tickwheel.spark.archive import RestoreReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_700_000_000_000
STEP_MS = 3_600_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "data", purge_after="365d") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[tickwheel.sync.Client]:
    with tickwheel.sync.Client(daemon.unix_url) as client:
        yield client


@pytest.fixture
def root(spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, tmp_path: Path) -> Path:
    """An archive of 48 messages of ``orders``, one an hour, in two runs, and of one of ``other``. Two have one key."""
    root = tmp_path / "archive"
    for half in (0, 24):
        for hour in range(half, half + 24):
            key, headers = ("same" if hour in (3, 30) else f"k{hour}"), {"hour": hour}
            at_ms = START_MS + hour * STEP_MS
            client.send("orders", b"body %d" % hour, key=key, headers=headers, deliver_at=at_ms, priority=9)
        work_off(client, "orders", 24)
        if half:
            client.send("other", b"o", headers={"raw": b"\xff"}, deliver_at=START_MS)
            work_off(client, "other", 1)
        archive_messages(spark, root, older_than=timedelta(), url=daemon.unix_url)
    return root


def restored(client: tickwheel.sync.Client, topic: str = "orders.restored") -> list[dict[str, Any]]:
    rows = client.query(f"""select * from messages where topic = '{topic}' order by deliver_at""").dicts()
    return list(rows)


def test_exactly_the_range_once(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    def bring(**options: Any) -> RestoreReport:
        since, until = START_MS + 2 * STEP_MS, START_MS + 31 * STEP_MS
        chosen = {"since": since, "until": until, "topics": ["orders"], "url": daemon.unix_url} | options
        return restore_messages(spark, root, **chosen)

    planned = bring(dry_run=True)
    assert (planned.messages, planned.topics, planned.stored) == (29, {"orders.restored": 29}, 0)
    assert restored(client) == []
    report = bring()
    assert (report.messages, report.stored, report.duplicates) == (29, 29, 0)
    rows = restored(client)
    assert [row["body"] for row in rows] == [b"body %d" % hour for hour in range(2, 31)]
    assert [row["deliver_at"].timestamp() * 1_000 for row in rows] == [
        START_MS + hour * STEP_MS for hour in range(2, 31)
    ]
    assert {row["priority"] for row in rows} == {9}
    again = bring()
    assert (again.messages, again.stored, again.duplicates) == (29, 0, 29)
    assert len(restored(client)) == 29
    messages = client.browse("orders.restored", limit=100)
    headers = {message.headers["hour"]: message.headers for message in messages}
    assert headers[3]["tickwheel-archived-key"] == headers[30]["tickwheel-archived-key"] == "same"
    assert headers[3]["tickwheel-archived-topic"] == "orders"
    assert headers[3]["tickwheel-archived-deliver-at"] == "2023-11-15T01:13:20.000+00:00"
    assert len({one["tickwheel-archived-id"] for one in headers.values()}) == 29


def test_into_a_topic_that_is_named(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    report = restore_messages(spark, root, since=START_MS, into="orders", url=daemon.unix_url)
    assert (report.messages, report.topics, report.stored) == (49, {"orders": 49}, 49)
    other = next(one for one in client.browse("orders", limit=100) if one.body == b"o")
    assert other.headers["tickwheel-archived-headers"] == "gaNyYXfEAf8="
    work_off(client, "orders", 49)
    assert archive_messages(spark, root, older_than=timedelta(), url=daemon.unix_url).messages == 49


def test_what_cannot_be_restored(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path, tmp_path: Path
) -> None:
    def bring(source: Path = root, **options: Any) -> RestoreReport:
        return restore_messages(spark, source, **{"since": START_MS, "url": daemon.unix_url} | options)

    with pytest.raises(ArchiveError, match="does not exist"):
        bring(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="no messages of a topic 'x'"):
        bring(topics=["x"])
    with pytest.raises(SourceError, match="range is empty"):
        bring(until=START_MS)
    with pytest.raises(SourceError, match="cannot be the name"):
        bring(into="no name")
    with pytest.raises(tickwheel.BadTime, match=r"since=1700000000 .*[Ss]econds"):
        bring(since=1_700_000_000)
    assert bring(until=START_MS + 1, topics=["orders"], since=datetime(1970, 1, 1, tzinfo=UTC)).messages == 1
    path = next(one for one in files_of(root) if one.parent.name == "date=2023-11-15")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ArchiveDamaged, match=path.name):
        bring(into="whole")
    assert restored(client, "whole") == [], "nothing is sent when a file is damaged"
    path.unlink()
    with pytest.raises(ArchiveDamaged, match=f"{path.name} is missing"):
        bring(into="whole")
    assert bring(until=START_MS + 60_000, topics=["orders"]).messages == 1, "that file is not needed"
