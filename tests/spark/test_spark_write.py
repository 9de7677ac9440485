"""``df.write`` and ``df.writeStream`` to a running broker: each row once, also when tasks fail and run again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.spark.streaming import run_to_the_end
from tickwheel.spark import RowsRejected, SourceError, understood

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOON = "2031-05-01T12:00:00.000Z"


def reminders(spark: SparkSession, count: int, partitions: int = 2, *, with_key: bool = True) -> DataFrame:
    frame = spark.range(count, numPartitions=partitions)
    columns = {
        "deliver_at": F.lit(SOON).cast("timestamp") + F.make_dt_interval(secs=F.col("id")),
        "body": F.concat(F.lit("call "), F.col("id")),
    }
    if with_key:
        columns["key"] = F.concat(F.lit("k"), F.col("id"))
    return frame.select(*[column.alias(name) for name, column in columns.items()])


def write(frame: DataFrame, daemon: Daemon, **options: Any) -> dict[str, Any]:
    """The report of a write."""
    report = daemon.directory.parent / "report.json"
    fixed = {"url": daemon.url, "topic": "reminders", "report": str(report)}
    frame.write.format("tickwheel").mode("append").options(**fixed | options).save()
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def stored(daemon: Daemon, columns: str = "key, body, deliver_at, priority, headers, order_key") -> list[Any]:
    with tickwheel.sync.Client(daemon.url) as client:
        return client.query(f"select {columns} from messages order by id", limit=100_000).rows


def test_every_column_arrives(spark: SparkSession, daemon: Daemon) -> None:
    rows = spark.sql(
        """
        select 'a' as key, timestamp'2031-05-01T12:00:00.0001Z' as deliver_at, 'one' as body, 3 as priority,
               map('trace', 'x') as headers, 'first' as topic, 'ada' as order_key
        union all
        select 'b', timestamp'2031-05-01T12:00:00Z', 'two', null, null, null, null
        """
    ).coalesce(1)
    assert write(rows, daemon) == {"complete": True, "rows": 2, "stored": 2, "duplicates": 0, "tasks": 1}
    columns = "topic, key, body, cast(epoch_ms(deliver_at) as bigint), priority, headers, order_key"
    # A message is never early: what lies inside a millisecond waits for its end. An ordering key has one lane.
    assert sorted(stored(daemon, columns)) == [
        ["first", "a", b"one", 1_935_403_200_001, 50, '{"trace":"x"}', "ada"],
        ["reminders", "b", b"two", 1_935_403_200_000, 50, None, None],
    ]


def test_other_types_of_the_same_columns(spark: SparkSession, daemon: Daemon) -> None:
    rows = spark.sql(
        """select 7L as key, 1935403200000L as deliver_at, cast('x' as binary) as body, cast(9 as smallint) as priority,
                  '{"n": [1, 2]}' as headers"""
    )
    write(rows, daemon)
    assert stored(daemon, "key, body, priority, headers") == [["7", b"x", 9, '{"n":[1,2]}']]


def test_writing_again_changes_nothing(spark: SparkSession, daemon: Daemon) -> None:
    rows = reminders(spark, 500)
    assert write(rows, daemon)["stored"] == 500
    again = write(rows, daemon)
    assert (again["stored"], again["duplicates"], again["rows"]) == (0, 500, 500)
    assert len(stored(daemon)) == 500


def test_rows_without_a_key_are_messages_of_their_own(spark: SparkSession, daemon: Daemon) -> None:
    same = spark.range(100, numPartitions=3).select(
        F.lit(SOON).cast("timestamp").alias("deliver_at"), F.lit("the same").alias("body")
    )
    assert write(same, daemon)["stored"] == 100
    assert write(same, daemon)["stored"] == 100  # another job
    assert write(same, daemon, jobId="monday")["stored"] == 100
    assert write(same, daemon, jobId="monday")["duplicates"] == 100  # the same one again
    assert len(stored(daemon)) == 300
    keys = [row[0] for row in stored(daemon, "key")]
    assert len(set(keys)) == 300
    assert all(key.startswith("spark-") for key in keys)


def fail_in_the_middle(url: str, stored_before: int, *, always: bool = False) -> Any:
    """A function for mapInArrow that fails at the end of partition 0, when part of it was sent for certain: in the
    first try only, or ``always``. Its rows must be so large that no buffer on the way holds all of them."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 0 and (always or context.attemptNumber() == 0):
            _wait_for(url, stored_before + 1)
            raise RuntimeError("the machine went away")

    return pass_on


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Spark hands over 50 rows at a time."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def _wait_for(url: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with tickwheel.sync.Client(url) as client:
        while client.stats().messages < count:
            assert time.monotonic() < deadline, "nothing was sent"
            time.sleep(0.05)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("with_key", [True, False])
def test_a_task_that_fails_in_the_middle_and_runs_again(
    spark: SparkSession, daemon: Daemon, with_key: bool
) -> None:
    rows = reminders(spark, 2_000, partitions=2, with_key=with_key)
    rows = rows.withColumn("body", F.rpad("body", 1_000, "."))
    report = write(rows.mapInArrow(fail_in_the_middle(daemon.url, 1_000), rows.schema), daemon)
    assert (report["rows"], report["complete"], report["tasks"]) == (2_000, True, 2)
    assert report["duplicates"] >= 1  # the first try had sent some
    bodies = [row[0].rstrip(b".") for row in stored(daemon, "body")]
    assert sorted(bodies) == sorted(b"call %d" % n for n in range(2_000))


def test_bad_rows_are_named_and_their_batch_is_not_sent(spark: SparkSession, daemon: Daemon) -> None:
    rows = reminders(spark, 100, partitions=1)
    bad = rows.withColumn("body", F.when(F.col("key") == "k73", None).otherwise(F.col("body")))
    with pytest.raises(PySparkException) as caught:
        write(bad, daemon, batchRows=10)
    error = understood(caught.value)
    assert isinstance(error, RowsRejected)
    assert "1 of a batch of 10 rows cannot be sent, so none of it was: 1 × there is no body" in error.message
    assert '"key":"k73"' in error.message
    # Three tries: the first stored the seven batches before, the others found them there.
    assert "Partition 0 had sent 70 rows before (0 stored, 70 known already)." in error.message
    assert len(stored(daemon)) == 70
    report = json.loads((daemon.directory.parent / "report.json").read_text())
    assert (report["complete"], report["rows"]) == (False, 0)


def test_what_the_broker_refuses(spark: SparkSession, tmp_path: Path) -> None:
    rows = reminders(spark, 10, partitions=1)
    large = rows.withColumn("body", F.when(F.col("key") == "k3", F.expr("repeat('x', 2000)")).otherwise("x"))
    with Daemon(tmp_path / "data", max_body_bytes=1_000) as daemon:
        with pytest.raises(PySparkException) as caught:
            write(large, daemon)
        assert len(stored(daemon)) == 9
    error = understood(caught.value)
    assert isinstance(error, RowsRejected)
    assert "[body_too_large]" in error.message
    assert "1 rows were refused" in error.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows.withColumn("deliver_at", F.col("deliver_at").cast("timestamp_ntz")),
            "no time zone",
        ),
        (lambda rows: rows.withColumn("delay", F.lit(3)), "no column 'delay'"),
        (lambda rows: rows.drop("body"), "no column body"),
        (lambda rows: rows.withColumn("priority", F.lit("high")), "priority is string"),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_sent(
    spark: SparkSession, daemon: Daemon, change: Any, message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(change(reminders(spark, 10)), daemon)
    error = understood(caught.value)
    assert isinstance(error, SourceError)
    assert message in error.message
    assert stored(daemon) == []


def test_messages_cannot_be_overwritten(spark: SparkSession, daemon: Daemon) -> None:
    rows = reminders(spark, 10)
    with pytest.raises(PySparkException) as caught:
        rows.write.format("tickwheel").mode("overwrite").options(url=daemon.url, topic="t").save()
    assert isinstance(understood(caught.value), SourceError)


class Stream:
    """A streaming query from a folder of JSON files to the broker."""

    def __init__(self, spark: SparkSession, folder: Path, daemon: Daemon) -> None:
        self.spark, self.folder, self.daemon = spark, folder, daemon
        (folder / "in").mkdir()
        self.files = 0

    def add(self, count: int) -> None:
        row = {"deliver_at": SOON, "body": f"file {self.files}".ljust(1_000)}
        lines = [json.dumps(row) for _ in range(count)]
        (self.folder / "in" / f"{self.files}.json").write_text("\n".join(lines))
        self.files += 1

    def run(self, function: Any = None) -> None:
        schema = "deliver_at timestamp, body string"
        rows = (
            self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
        )
        if function is not None:
            rows = rows.mapInArrow(function, schema)
        writer = rows.writeStream.format("tickwheel").options(
            url=self.daemon.url,
            topic="timeouts",
            checkpointLocation=str(self.folder / "checkpoint"),
            batchRows="50",
        )
        run_to_the_end(writer.trigger(availableNow=True).start)


@pytest.mark.usefixtures("small_batches")
def test_a_stream_sends_each_row_once_also_when_a_batch_runs_again(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    """The query fails in its second batch, when part of that was sent, and is started again from its checkpoint."""
    stream, url = Stream(spark, tmp_path, daemon), daemon.url
    stream.add(30)
    stream.run()
    assert len(stored(daemon)) == 30
    stream.add(300)

    with pytest.raises(StreamingQueryException, match="the machine went away"):
        stream.run(fail_in_the_middle(url, 30, always=True))
    assert 30 < len(stored(daemon)) < 330
    stream.run()
    assert len(stored(daemon)) == 330
    stream.add(20)
    stream.run()
    bodies = [row[0][:6] for row in stored(daemon, "body")]
    assert [bodies.count(b"file %d" % n) for n in range(3)] == [30, 300, 20]
