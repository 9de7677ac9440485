"""The archive with a real Spark and a real broker: what it holds, what it counts, and what it does about damage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tickwheel
from tests.support.processes.daemon_harness import Daemon
from tests.support.spark.archives import archived, check_each_once, files_of, ids_at, work_off
from tickwheel.arrow.archive_table import SCHEMA
from tickwheel.spark import ArchiveBusy, ArchiveDamaged, SourceError, archive_messages
from tickwheel.spark.archive import ArchiveReport, TopicCount, archiving
from tickwheel.spark.archive.directory import DirectoryArchive
from tickwheel.spark.archive.manifest import OURS
from tickwheel.spark.archive.tasks import run_tasks
from tickwheel.spark.storage import DirectoryFiles, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = timedelta()
LONG = {"purge_after": "365d"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "data", **LONG) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[tickwheel.sync.Client]:
    with tickwheel.sync.Client(daemon.unix_url) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def run(spark: SparkSession, daemon: Daemon, root: Path, **options: Any) -> ArchiveReport:
    chosen = {"older_than": NOW, "url": daemon.unix_url, "rows_per_task": 70} | options
    return archive_messages(spark, root, **chosen)


def test_all_that_is_known_of_a_message_is_archived(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    client.create_topic("split", shards=2)
    sent = [
        client.send("orders", b"\x00one", key="k1", headers={"n": [1, 2]}, priority=7).id,
        client.send("orders", b"", order_key="ada", headers={"raw": b"\xff"}).id,
        client.send("split", b"three", key="k3").id,
        client.send("orders", b"not acked").id,
        client.send("orders", b"far", delay=timedelta(days=9)).id,
    ]
    work_off(client, "orders", 2, "billing")
    work_off(client, "orders", 3, "audit")
    work_off(client, "split", 1)
    before = {row["id"]: row for row in client.query("select * from messages").dicts()}
    planned = run(spark, daemon, root, dry_run=True)
    assert (planned.messages, {t: c.messages for t, c in planned.topics.items()}) == (
        3,
        {"orders": 2, "split": 1},
    )
    assert not root.exists(), "a dry run makes nothing"
    report = run(spark, daemon, root)
    assert (report.messages, report.dropped, report.gone, report.kept) == (3, 3, 0, 0)
    assert report.warnings == []
    log_id = client.log_place().log_id
    days = {number: before[number]["deliver_at"].date().isoformat() for number in sent[:3]}
    assert {str(path.parent.relative_to(root)) for path in files_of(root)} == {
        f"topic=orders/date={days[sent[0]]}",
        f"topic=orders/date={days[sent[1]]}",
        f"topic=split/date={days[sent[2]]}",
    }
    one, two, three = archived(root)
    assert [row["id"] for row in (one, two, three)] == sent[:3]
    for row in (one, two, three):
        assert row["log_id"] == log_id
        for name in ("time_created", "deliver_at"):
            assert row[name] == before[row["id"]][name]
        assert row["time_acked"] == max(group["time"] for group in row["groups"])
    assert (one["key"], one["body"], one["priority"], one["headers"]) == ("k1", b"\x00one", 7, '{"n":[1,2]}')
    assert [(g["name"], g["state"], g["epoch"], g["attempts"]) for g in one["groups"]] == [
        ("billing", "acked", 1, 1),
        ("audit", "acked", 1, 1),
    ]
    assert (two["key"], two["order_key"], two["body"]) == (before[sent[1]]["key"], "ada", b"")
    assert two["headers_packed"] == b"\x81\xa3raw\xc4\x01\xff"
    assert three["shard"] in ("-80", "80-")
    check_each_once(root, client, sent)
    again = client.send("orders", b"new", key="k1")
    assert not again.duplicate, "its key is free"
    assert run(spark, daemon, root).messages == 0


@pytest.mark.promise("V81")
def test_dropped_is_dropped_after_a_kill_too(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    sent = list(client.send_many("t", [bytes(500)] * 300).ids())
    work_off(client, "t", 250)
    report = run(spark, daemon, root, purge=True)
    assert (report.messages, report.dropped) == (250, 250)
    assert report.freed_bytes is not None
    assert report.freed_bytes > 0, "with a purge_after of a year only the archive's word can have made room"
    daemon.kill()
    daemon.start()
    with tickwheel.sync.Client(daemon.unix_url) as client:
        assert run(spark, daemon, root).messages == 0
        check_each_once(root, client, sent)
    assert spark.read.parquet(str(root)).where("topic = 't'").count() == 250


def test_the_broker_is_killed_while_it_drops(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list(client.send_many("t", [b"x"] * 200).ids())
    work_off(client, "t", 200)
    calls, drop = [], tickwheel.sync.Client.drop

    def killing(self: tickwheel.sync.Client, *args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            daemon.kill()
            daemon.start()
        return drop(self, *args, **options)

    monkeypatch.setattr(tickwheel.sync.Client, "drop", killing)
    monkeypatch.setattr(archiving, "_DROP_IDS", 30)
    report = run(spark, daemon, root)
    assert len(calls) > 3
    assert (report.messages, report.dropped + report.gone, report.kept) == (200, 200, 0)
    with tickwheel.sync.Client(daemon.unix_url) as client:
        check_each_once(root, client, sent)


def test_what_was_called_for_again_stays_and_is_archived_once(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list(client.send_many("t", [b"x"] * 5).ids())
    work_off(client, "t", 5)

    def meanwhile(*args: Any) -> None:
        assert client.redeliver(ids=[sent[2]], acked=True) == ["redelivered"]

    with monkeypatch.context() as patched:
        patched.setattr(archiving, "check_files", meanwhile)
        report = run(spark, daemon, root)
    assert (report.messages, report.dropped, report.kept) == (5, 4, 1)
    assert ids_at(client) == [sent[2]]
    again = run(spark, daemon, root)
    assert (again.messages, again.resumed) == (0, {})
    work_off(client, "t", 1)
    assert run(spark, daemon, root, dry_run=True).messages == 0
    last = run(spark, daemon, root)
    assert (last.messages, last.resumed) == (0, {report.run: 1})
    check_each_once(root, client, sent)
    assert run(spark, daemon, root).resumed == {}


def test_damage_is_found_before_anything_is_dropped(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list(client.send_many("t", [b"body %d" % n for n in range(100)]).ids())
    work_off(client, "t", 100)
    check_files = archiving.check_files

    def spoil(spark: SparkSession, storage: Storage, files: list[tuple[str, Any]]) -> None:
        path = root / files[0][0]
        table = pq.ParquetFile(path).read().to_pylist()
        table[3]["body"] = b"body x"
        pq.write_table(pa.Table.from_pylist(table, SCHEMA), path)
        check_files(spark, storage, files)

    with monkeypatch.context() as patched:
        patched.setattr(archiving, "check_files", spoil)
        with pytest.raises(ArchiveDamaged, match=r"\.zstd\.parquet has the checksum"):
            run(spark, daemon, root)
    assert ids_at(client) == sent
    assert DirectoryArchive(DirectoryFiles(root)).manifests() == []
    assert list((root / OURS / "staging").iterdir()) == []
    assert run(spark, daemon, root).dropped == 100
    check_each_once(root, client, sent)


def test_a_file_that_was_damaged_behind_the_manifest(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list(client.send_many("t", [b"x"] * 50).ids())
    work_off(client, "t", 50)

    def crash(*args: Any, **options: Any) -> None:
        raise ConnectionError("pulled")

    with monkeypatch.context() as patched:
        patched.setattr(tickwheel.sync.Client, "drop", crash)
        with pytest.raises(ConnectionError):
            run(spark, daemon, root)
    (path,) = files_of(root)
    content = path.read_bytes()
    path.write_bytes(content[:10] + bytes(byte ^ 1 for byte in content[10:100]) + content[100:])
    with pytest.raises(ArchiveDamaged, match=path.name):
        run(spark, daemon, root)
    assert ids_at(client) == sent, "nothing is dropped that the archive does not hold"
    path.write_bytes(content)
    (dropped,) = run(spark, daemon, root).resumed.values()
    assert dropped == 50
    check_each_once(root, client, sent)


def test_only_what_is_old_enough_and_of_the_topics(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    for topic in ("a", "b"):
        client.send_many(topic, [b"x"] * 3)
        work_off(client, topic, 3)
    assert run(spark, daemon, root, older_than=timedelta(hours=1)).messages == 0
    report = run(spark, daemon, root, topics=["b"])
    assert {topic: count.messages for topic, count in report.topics.items()} == {"b": 3}
    with pytest.raises(SourceError, match="no topic 'c'"):
        run(spark, daemon, root, topics=["c"])
    with pytest.raises(SourceError, match="states"):
        run(spark, daemon, root, states=["cancelled"])
    with pytest.raises(SourceError, match="negative"):
        run(spark, daemon, root, older_than=timedelta(-1))


def test_dead_letters_go_when_that_is_asked_for(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    client.create_topic("t", max_attempts=1)
    client.send("t", b"x")
    with client.subscribe("t", "g") as subscription:
        message = subscription.receive(20)
        assert message is not None
        message.nack()
    assert run(spark, daemon, root).messages == 0
    assert run(spark, daemon, root, states=["acked", "dead"]).messages == 1
    (row,) = archived(root)
    assert [group["state"] for group in row["groups"]] == ["dead"]


def test_two_at_once_and_another_broker(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path, tmp_path: Path
) -> None:
    with DirectoryArchive(DirectoryFiles(root)).locked(), pytest.raises(ArchiveBusy, match="Another process"):
        run(spark, daemon, root)
    with Daemon(tmp_path / "other", **LONG) as other:
        with pytest.raises(SourceError, match="holds the log"):
            run(spark, daemon, root, source=other.directory)
        # One archive for two brokers: each has its own messages in it, and numbers of its own.
        for each in (daemon, other):
            with tickwheel.sync.Client(each.unix_url) as its:
                its.send_many("t", [b"x"] * 4)
                work_off(its, "t", 4)
            assert run(spark, each, root).dropped == 4
        assert run(spark, daemon, root).messages == 0
    rows = archived(root)
    assert len({(row["log_id"], row["id"]) for row in rows}) == len(rows) == 8


def test_a_topic_that_purges_too_soon_is_named(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, root: Path
) -> None:
    client.create_topic("hasty", purge_after=timedelta(hours=1))
    client.send("calm", b"x")
    (warning,) = run(spark, daemon, root, older_than=timedelta(days=30)).warnings
    assert "3,600 s for hasty" in warning
    assert "calm" not in warning


def test_only_answers_of_attempts_that_succeed_count(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def work(part: int, attempt: str) -> TopicCount:
        Path(folder, attempt).write_text(str(part))
        if part == 1 and len(list(Path(folder).glob("00001-*"))) == 1:
            raise RuntimeError("this attempt fails")
        return TopicCount(part, 0)

    found = run_tasks(spark, [0, 1, 2], work, TopicCount)
    assert sorted(one.messages for one in found) == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 4
