"""Bulk scheduling with Spark and a running broker: all rows once, also when tasks fail, are killed, or run again."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from click.testing import Result
from pyspark import TaskContext
from pyspark.sql import functions as F

import tickwheel
from tests.spark.conftest import Pipeline
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.spark.workers import python_workers
from tickwheel.errors import NotConnected
from tickwheel.spark import (
    RowsRefused,
    ScheduleFailed,
    ScheduleUncertain,
    SourceError,
    StagingError,
    schedule_file,
    schedule_messages,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOON = "2031-05-01T12:00:00Z"
SOON_MS = 1_935_403_200_000


def reminders(spark: SparkSession, count: int, partitions: int = 2, at: str = SOON) -> DataFrame:
    number = F.col("id")
    return spark.range(count, numPartitions=partitions).select(
        F.concat(F.lit("k"), number).alias("key"),
        (F.lit(at).cast("timestamp") + F.make_dt_interval(secs=number % 60)).alias("deliver_at"),
        F.concat(F.lit("call "), number).alias("body"),
    )


def stored(daemon: Daemon, columns: str = "key, body", where: str = "true") -> list[Any]:
    with tickwheel.sync.Client(daemon.url) as client:
        return client.query(f"select {columns} from messages where {where} order by id", limit=100_000).rows


def staged(daemon: Daemon) -> list[str]:
    """What is left of jobs."""
    folder = daemon.directory / "staging"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def test_messages_of_a_job_are_like_sent_ones(spark: SparkSession, daemon: Daemon) -> None:
    now = datetime.now(UTC).isoformat()
    with tickwheel.sync.Client(daemon.url) as client:
        sent = client.send("reminders", b"sent", key="k7", delay_ms=3_600_000)
        rows = reminders(spark, 500).withColumn(
            "deliver_at",
            F.when(F.col("key").isin("k1", "k2", "k3", "k4"), F.lit(now).cast("timestamp")).otherwise(
                F.col("deliver_at")
            ),
        )
        result = schedule_messages(rows, url=daemon.url, topic="reminders", max_rejects=1)
        assert (result.messages, result.rejected, result.rows) == (499, 1, 500)
        assert result.counts == {"key_taken": 1}
        assert [(one.key, one.topic, one.earlier_id) for one in result.samples] == [
            ("k7", "reminders", sent.id)
        ]
        assert client.send("reminders", b"again", key="k8").duplicate, "its key is taken"
        assert client.cancel("reminders", key="k9") == "cancelled"
        assert client.reschedule("reminders", key="k10", deliver_at=datetime.now(UTC)) == "rescheduled"
        (state,) = client.query(
            "select state, cast(epoch_ms(deliver_at) as bigint) from messages where key = 'k11'"
        ).rows
        assert state == ["scheduled", SOON_MS + 11_000]
        keys = []
        with client.subscribe("reminders") as subscription:
            for message in subscription:
                message.ack()
                keys.append(message.key)
                if len(keys) == 5:
                    break
        assert sorted(keys) == ["k1", "k10", "k2", "k3", "k4"]
    assert staged(daemon) == []


def test_they_are_delivered_in_order_of_time(spark: SparkSession, daemon: Daemon) -> None:
    """What is due before the job is taken in comes in the order of its rows, as with sends: so it must be quick enough,
    or is tried again with more time."""
    for lead_s in (3, 10, 30):
        first_ms = int((time.time() + lead_s) * 1_000)
        rows = spark.range(2_000, numPartitions=3).select(
            (F.lit(first_ms) + F.pmod(F.hash("id"), F.lit(500))).cast("bigint").alias("deliver_at"),
            F.lit("x").alias("body"),
        )
        topic = f"after-{lead_s}"
        result = schedule_messages(rows, url=daemon.url, topic=topic, run_bytes=1 << 16)
        assert result.messages == 2_000
        if time.time() * 1_000 < first_ms:
            break
    with tickwheel.sync.Client(daemon.url) as client, client.subscribe(topic, credit=5_000) as subscription:
        due = []
        for message in subscription:
            due.append(message.deliver_at_ms)
            message.ack()
            if len(due) == 2_000:
                break
    assert due == sorted(due)
    assert len(set(due)) > 400


def test_every_column_and_several_topics(spark: SparkSession, daemon: Daemon) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        client.create_topic("sharded", shards=4)
    rows = spark.sql(
        """
        select 7L as key, timestamp'2031-05-01T12:00:00.0001Z' as deliver_at, 'one' as body, 3 as priority,
               map('trace', 'x') as headers, 'sharded' as topic, cast(null as string) as order_key
        union all select 8L, timestamp'2031-05-01T12:00:00Z', 'two', null, map(), 'fresh', 'ada'
        union all select null, timestamp'2031-05-01T12:00:00Z', 'three', null, null, null, null
        """
    )
    assert schedule_messages(rows, url=daemon.url, topic="other").messages == 3
    columns = "key, body, cast(epoch_ms(deliver_at) as bigint), priority, headers, order_key"
    # A message is never early: what lies inside a millisecond waits for its end. An ordering key has one lane.
    assert sorted(stored(daemon, columns), key=str) == [
        ["7", b"one", SOON_MS + 1, 3, '{"trace":"x"}', None],
        ["8", b"two", SOON_MS, 50, None, "ada"],
        [None, b"three", SOON_MS, 50, None, None],
    ]
    topics = [row[0].split("/")[0] for row in stored(daemon, "topic")]
    assert {name.removesuffix("-40").split(":")[0] for name in topics} >= {"fresh", "other"}


def break_once(marker: Path, how: str, always: bool = False) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For mapInArrow: goes wrong at the end of partition 0, when a part of it was written for certain."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() != 0 or (marker.exists() and not always):
            return
        marker.touch()
        if how == "raise":
            raise RuntimeError("the machine went away")
        os._exit(9)

    return pass_on


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Spark hands over 200 rows at a time, so that a task writes while the rows before it are still being made."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def large_reminders(spark: SparkSession, function: Any, count: int = 2_000) -> DataFrame:
    rows = reminders(spark, count).withColumn("body", F.rpad("body", 1_000, "."))
    return rows.mapInArrow(function, rows.schema)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_task_that_fails_in_the_middle_runs_again(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, how: str
) -> None:
    rows = large_reminders(spark, break_once(tmp_path / "marker", how))
    result = schedule_messages(rows, url=daemon.url, topic="reminders", run_bytes=1 << 17)
    assert (result.messages, result.rows) == (2_000, 2_000)
    assert result.files > 4, "several runs a task"
    bodies = [row[0].rstrip(b".") for row in stored(daemon, "body")]
    assert Counter(bodies) == Counter(b"call %d" % n for n in range(2_000))
    assert staged(daemon) == []


@pytest.mark.usefixtures("small_batches")
def test_a_worker_that_is_killed_while_it_writes(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    """Its files stay until the job is taken in, and count for nothing."""
    marker = tmp_path / "marker"

    def wait_to_be_killed(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 0 and not marker.exists():
            time.sleep(PATIENCE_S * 3)

    killed: list[int] = []

    def kill_the_writer() -> None:
        """As soon as the attempts of both partitions have written files: that of partition 0 has not ended then."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and not killed:
            if len({name.split("-")[1] for name in staged(daemon) if name.endswith(".log")}) == 2:
                marker.touch()
                for pid in python_workers():
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_the_writer)
    killer.start()
    try:
        rows = large_reminders(spark, wait_to_be_killed)
        result = schedule_messages(rows, url=daemon.url, topic="reminders", run_bytes=1 << 17)
    finally:
        killer.join()
    assert killed
    assert result.messages == 2_000
    assert len({key for (key,) in stored(daemon, "key")}) == len(stored(daemon)) == 2_000
    assert staged(daemon) == []


@pytest.mark.usefixtures("small_batches")
def test_a_job_that_fails_for_good_leaves_nothing(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    rows = large_reminders(spark, break_once(tmp_path / "marker", "raise", always=True))
    with pytest.raises(ScheduleFailed, match="the machine went away"):
        schedule_messages(rows, url=daemon.url, topic="reminders", run_bytes=1 << 17)
    assert stored(daemon) == []
    assert staged(daemon) == []


def test_a_job_is_done_once(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    rows = reminders(spark, 300).drop("key")
    first = schedule_messages(
        rows, url=daemon.url, topic="t", job="monday", rejects=str(tmp_path / "rejects")
    )
    assert (first.messages, first.repeated) == (300, False)
    again = schedule_messages(rows, url=daemon.url, topic="t", job="monday")
    assert (again.messages, again.repeated, again.job) == (300, True, first.job)
    daemon.kill()
    daemon.start()
    assert schedule_messages(rows, url=daemon.url, topic="t", job=first.job).repeated
    assert schedule_messages(rows, url=daemon.url, topic="t").messages == 300, (
        "without a name it is another job"
    )
    assert len(stored(daemon)) == 600
    assert spark.read.parquet(str(tmp_path / "rejects")).count() == 0


def test_two_runs_of_one_job_at_a_time(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    """The other one wins while this one writes; it notices, and nothing is doubled."""
    url = daemon.url
    rows = reminders(spark, 300).drop("key")

    def other(text: str) -> None:
        if "tasks write" in text:
            assert schedule_messages(rows, url=url, topic="t", job="monday").messages == 300

    result = schedule_messages(rows, url=url, topic="t", job="monday", progress=other)
    assert (result.messages, result.repeated) == (300, True)
    assert len(stored(daemon)) == 300
    assert staged(daemon) == []


def bad_rows(spark: SparkSession) -> DataFrame:
    """A hundred rows: two bad times, three without a body, five with a key of another row, one with a long key."""
    key = F.when(F.col("id") == 60, F.expr("repeat('k', 300)")).otherwise(F.concat(F.lit("k"), F.col("id")))
    return spark.range(100, numPartitions=2).select(
        F.when(F.col("id").between(90, 94), "k1").otherwise(key).alias("key"),
        F.when(F.col("id").isin(5, 55), None).otherwise(F.lit(SOON_MS)).alias("deliver_at"),
        F.when(F.col("id").between(20, 22), None).otherwise("x").alias("body"),
    )


REFUSED = {"no_time": 2, "no_body": 3, "bad_key": 1, "key_twice": 5, "key_taken": 1}


def test_rejects_of_each_kind(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        sent = client.send("t", b"sent", key="k40", delay_ms=3_600_000)
    with pytest.raises(RowsRefused) as caught:
        schedule_messages(
            bad_rows(spark), url=daemon.url, topic="t", max_rejects=11, rejects=str(tmp_path / "rejects")
        )
    error = caught.value
    assert (error.result.messages, error.result.rejected) == (0, 12)
    assert error.result.counts == REFUSED
    assert "12 of 100 rows cannot be scheduled, and 11 may fail, so nothing was" in error.message
    assert "5 × the key is that of another row" in error.message
    assert len(stored(daemon)) == 1
    assert staged(daemon) == []
    table = [row.asDict() for row in spark.read.parquet(str(tmp_path / "rejects")).collect()]
    assert {row["reason"]: row["rows"] for row in table} == REFUSED
    assert Counter(row["reason"] for row in table) == REFUSED
    (long_key,) = [row for row in table if row["reason"] == "bad_key"]
    assert (long_key["partition"], long_key["row"], long_key["topic"]) == (1, 10, "t")
    assert {row["key"] for row in table if row["reason"] == "key_twice"} == {"k1"}
    assert [row["earlier_id"] for row in table if row["reason"] == "key_taken"] == [sent.id]

    result = schedule_messages(bad_rows(spark), url=daemon.url, topic="t", max_rejects=12)
    assert (result.messages, result.rejected, result.counts) == (88, 12, REFUSED)
    assert len(stored(daemon)) == 89

    with pytest.raises(RowsRefused) as caught:
        schedule_messages(bad_rows(spark), url=daemon.url, topic="t", max_rejects=5)
    assert caught.value.result.counts == {"no_time": 2, "no_body": 3, "bad_key": 1}, (
        "the broker was not asked"
    )
    assert staged(daemon) == []


CSV = """key,deliver_at,body,priority,headers
a,2031-05-01T12:00:00Z,"two
lines, and ""quotes""\",3,"{""n"":1}"
b,2031-05-01 12:00:00,y,,
,1935403200000,z,,
,2031-05-01T14:00+02:00,"",,
,tomorrow,z,,
q,1935403200000,,1,
z,1,2,3,4,5
"""
JSON = """{"key": 7, "deliver_at": 1935403200000, "body": "b", "headers": {"a": "b"}, "priority": 3}
{"deliver_at": "2031-05-01T12:00:00Z", "body": {"x": 1}}
{"deliver_at": "2031-05-01T12:00", "body": "y"}
{"deliver_at": null, "body": "y"}
{
"""


def test_csv(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "reminders.csv").write_text(CSV)
    result = schedule_file(spark, str(tmp_path / "reminders.csv"), url=daemon.url, topic="t", max_rejects=4)
    assert result.counts == {"naive_time": 1, "unreadable_time": 1, "no_body": 1, "unreadable_row": 1}
    assert sorted(stored(daemon, "body, key, priority, headers, cast(epoch_ms(deliver_at) as bigint)")) == [
        [b"", None, 50, None, SOON_MS],
        [b'two\nlines, and "quotes"', "a", 3, '{"n":1}', SOON_MS],
        [b"z", None, 50, None, SOON_MS],
    ]
    details = {one.reason: one.detail for one in result.samples}
    assert details["naive_time"] == "2031-05-01 12:00:00"
    assert details["unreadable_time"] == "tomorrow"


def test_json(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "reminders.jsonl").write_text(JSON)
    result = schedule_file(spark, str(tmp_path / "reminders.jsonl"), url=daemon.url, topic="t", max_rejects=3)
    assert result.counts == {"naive_time": 1, "no_time": 1, "unreadable_row": 1}
    assert sorted(stored(daemon, "body, key, priority, headers, cast(epoch_ms(deliver_at) as bigint)")) == [
        [b"b", "7", 3, '{"a":"b"}', SOON_MS],
        [b'{"x": 1}', None, 50, None, SOON_MS],
    ]


def test_wrong_columns_are_refused_before_anything_runs(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    rows = reminders(spark, 10)
    naive = rows.withColumn("deliver_at", F.col("deliver_at").cast("timestamp_ntz"))
    with pytest.raises(
        SourceError, match=r"no column 'delay'.*no time zone.*The columns are: key string"
    ) as caught:
        schedule_messages(naive.withColumn("delay", F.lit(3)), url=daemon.url, topic="t")
    assert "Cast them to timestamp" in caught.value.advice
    with pytest.raises(SourceError, match="There is no topic"):
        schedule_messages(rows, url=daemon.url)
    (tmp_path / "x.csv").write_text("key,when,body\na,1,x\n")
    with pytest.raises(SourceError, match=r"no column 'when'.*no column deliver_at"):
        schedule_file(spark, str(tmp_path / "x.csv"), url=daemon.url, topic="t")
    (tmp_path / "x.json").write_text('{"key": "a", "at": 1, "body": "x"}\n')
    with pytest.raises(SourceError, match=r"no column 'at'.*no column deliver_at"):
        schedule_file(spark, str(tmp_path / "x.json"), url=daemon.url, topic="t")
    naive.write.parquet(str(tmp_path / "x.parquet"))
    with pytest.raises(SourceError, match="no time zone"):
        schedule_file(spark, str(tmp_path / "x.parquet"), url=daemon.url, topic="t")
    with pytest.raises(SourceError, match="cannot be read as parquet"):
        schedule_file(spark, str(tmp_path / "nothing.parquet"), url=daemon.url, topic="t")
    assert stored(daemon) == []
    assert staged(daemon) == []


def test_what_the_driver_or_the_broker_cannot_do(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    rows = reminders(spark, 10)
    with pytest.raises(StagingError, match="cannot be seen from here"):
        schedule_messages(rows, url=daemon.url, topic="t", staging=str(tmp_path / "elsewhere"))
    mounted = tmp_path / "mounted"
    mounted.symlink_to(daemon.directory / "staging")
    assert schedule_messages(rows, url=daemon.url, topic="t", staging=str(mounted)).messages == 10
    failing = mock.patch("tickwheel.sync.Client.adopt_job", side_effect=NotConnected("it went away"))
    with failing, pytest.raises(ScheduleUncertain) as caught:
        schedule_messages(rows, url=daemon.url, topic="u", job="monday")
    assert len([name for name in staged(daemon) if name.endswith(".log")]) == 2, "the broker may be at it"
    assert "job (--job)" in caught.value.advice
    assert schedule_messages(rows, url=daemon.url, topic="u", job="monday").messages == 10
    assert [name for name in staged(daemon) if name.endswith(".log")] == []
    daemon.stop()
    with pytest.raises(NotConnected):
        schedule_messages(rows, url=daemon.url, topic="t")


@pytest.fixture
def command(pipeline: Pipeline, daemon: Daemon) -> Pipeline:
    def run(*options: str) -> Result:
        return pipeline("schedule", "--url", daemon.url, "--topic", "t", *options, catch=True)

    return run


def test_the_command(spark: SparkSession, command: Any, daemon: Daemon, tmp_path: Path) -> None:
    reminders(spark, 100).write.parquet(str(tmp_path / "reminders.parquet"))
    done = command("--from", str(tmp_path / "reminders.parquet"), "--job", "monday")
    assert done.exception is None
    assert done.stdout.startswith("scheduled 100 messages in ")
    assert "the broker takes them in" in done.stderr
    again = command("--from", str(tmp_path / "reminders.parquet"), "--job", "monday")
    assert again.stdout.startswith("repeated: job ")
    (tmp_path / "reminders.csv").write_text(CSV)
    rejects = tmp_path / "rejects"
    done = command(
        "--from", str(tmp_path / "reminders.csv"), "--max-rejects", "4", "--rejects", str(rejects), "--json"
    )
    answer = json.loads(done.stdout)
    assert (answer["messages"], answer["rejected"]) == (3, 4)
    assert answer["rejects"] == str(next(rejects.iterdir()))
    assert done.stderr == ""
    done = command("--from", str(tmp_path / "reminders.csv"), "--max-rejects", "3")
    assert isinstance(done.exception, RowsRefused)
    assert "1 × there is no body" in done.stderr
    assert "partition 0, row 1, key 'b', topic t, '2031-05-01 12:00:00'" in done.stderr
    assert len(stored(daemon)) == 103
