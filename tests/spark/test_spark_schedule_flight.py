"""Bulk scheduling by Arrow Flight, with Spark and a broker of which neither driver nor tasks see the directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F

from tests.spark.conftest import Pipeline
from tests.spark.test_spark_schedule import (
    bad_rows,
    break_once,
    large_reminders,
    reminders,
    stored,
)
from tests.support.flight.calling import flight_url
from tests.support.flight.writing import staged
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Place
from tickwheel.errors import Forbidden, LoginRequired, NotConnected
from tickwheel.spark import (
    RowsRefused,
    ScheduleFailed,
    SourceError,
    StagingError,
    repair,
    reschedule_messages,
    schedule_messages,
)
from tickwheel.spark.scheduling import driver
from tickwheel.spark.scheduling.tasks import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHT: dict[str, Any] = {"flight": True, "flight_listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests, each of which has topics of its own."""
    with Daemon(tmp_path_factory.mktemp("flight") / "data", **FLIGHT) as running:
        flight_url(running)
        yield running


def rows_of(daemon: Daemon, topic: str) -> list[Any]:
    columns = "key, body, cast(epoch_ms(deliver_at) as bigint), priority, headers, order_key, state"
    return sorted(stored(daemon, columns, f"topic like '{topic}%'"), key=str)


def test_both_ways_give_equal_messages(spark: SparkSession, daemon: Daemon) -> None:
    rows = reminders(spark, 1_000, partitions=3).select(
        "*",
        (F.hash("key") % 100).cast("int").alias("number"),
    )
    rows = rows.select(
        "key",
        "deliver_at",
        "body",
        F.when(F.col("number") > 50, F.col("number")).alias("priority"),
        F.when(F.col("number") % 2 == 0, F.create_map(F.lit("n"), F.col("number").cast("string"))).alias(
            "headers"
        ),
        F.when(F.col("number") % 3 == 0, F.concat(F.lit("o"), F.col("number"))).alias("order_key"),
    )
    rows = rows.withColumn("priority", F.when(F.col("priority") < 0, None).otherwise(F.col("priority")))
    found = {}
    for staged_by, topic in (("in place", "placed"), ("flight", "flown")):
        result = schedule_messages(
            rows, url=daemon.url, topic=topic, staged=staged_by, run_bytes=1 << 16, max_rejects=1_000
        )
        assert result.staged == staged_by
        found[topic] = (result.messages, result.rejected, result.counts, rows_of(daemon, topic))
    assert found["placed"] == found["flown"]
    assert found["flown"][0] > 500
    assert staged(daemon.directory) == []


def test_where_the_directory_is_seen_it_is_used(spark: SparkSession, daemon: Daemon) -> None:
    result = schedule_messages(reminders(spark, 10), url=daemon.url, topic="seen")
    assert result.staged == "in place"
    assert staged(daemon.directory) == []


def test_tasks_that_do_not_see_what_the_driver_sees(
    spark: SparkSession, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster whose driver runs beside the broker."""
    as_it_is = driver.Job._work

    def elsewhere(job: driver.Job, plan: Any) -> Work:
        return replace(as_it_is(job, plan), directory=daemon.directory / "nowhere")

    monkeypatch.setattr(driver.Job, "_work", elsewhere)
    result = schedule_messages(reminders(spark, 10), url=daemon.url, topic="half-seen")
    assert (result.messages, result.staged) == (10, "flight")
    assert staged(daemon.directory) == []


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_task_that_fails_in_the_middle_runs_again(
    spark: SparkSession, daemon: Daemon, tmp_path: Path, how: str
) -> None:
    rows = large_reminders(spark, break_once(tmp_path / "marker", how))
    topic = f"again-{how}"
    result = schedule_messages(rows, url=daemon.url, topic=topic, run_bytes=1 << 17, staged="flight")
    assert (result.messages, result.rows, result.staged) == (2_000, 2_000, "flight")
    assert result.files > 4, "several runs a task"
    keys = [row[0] for row in rows_of(daemon, topic)]
    assert sorted(keys) == sorted(f"k{number}" for number in range(2_000))
    assert staged(daemon.directory) == []


@pytest.mark.usefixtures("small_batches")
def test_a_job_that_fails_for_good_leaves_nothing(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    rows = large_reminders(spark, break_once(tmp_path / "marker", "raise", always=True))
    with pytest.raises(ScheduleFailed, match="the machine went away"):
        schedule_messages(rows, url=daemon.url, topic="failing", run_bytes=1 << 17, staged="flight")
    assert rows_of(daemon, "failing") == []
    assert staged(daemon.directory) == []
    local = [path for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
    assert not [path for folder in local for path in Path(folder).glob("tickwheel-run-*")]


def test_a_slow_attempt_beside_the_one_that_won(spark: SparkSession, daemon: Daemon) -> None:
    """As with speculation: both put, one is named."""
    marker = daemon.directory.parent / "second"

    def twice(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        rows = [*batches]
        yield from rows
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            marker.touch()
            raise RuntimeError("it was told to stop, after it had put what it had")

    rows = reminders(spark, 300)
    rows = rows.mapInArrow(twice, rows.schema)
    result = schedule_messages(rows, url=daemon.url, topic="twice", staged="flight", run_bytes=1 << 16)
    assert marker.exists()
    assert result.messages == len(rows_of(daemon, "twice")) == 300
    assert staged(daemon.directory) == []


def test_rejects_and_repeats(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(RowsRefused) as caught:
        schedule_messages(bad_rows(spark), url=daemon.url, topic="bad", max_rejects=10, staged="flight")
    assert caught.value.result.counts == {"no_time": 2, "no_body": 3, "bad_key": 1, "key_twice": 5}
    assert caught.value.result.staged == "flight"
    assert staged(daemon.directory) == []
    with pytest.raises(RowsRefused):
        schedule_messages(bad_rows(spark), url=daemon.url, topic="bad", max_rejects=5, staged="flight")
    assert staged(daemon.directory) == []
    result = schedule_messages(
        bad_rows(spark), url=daemon.url, topic="bad", max_rejects=11, staged="flight", job="tuesday"
    )
    assert (result.messages, result.rejected) == (89, 11)
    again = schedule_messages(
        bad_rows(spark), url=daemon.url, topic="bad", max_rejects=11, staged="flight", job="tuesday"
    )
    assert (again.messages, again.repeated, again.staged) == (89, True, None)
    assert len(rows_of(daemon, "bad")) == 89


def test_two_runs_of_one_job_at_a_time(spark: SparkSession, daemon: Daemon) -> None:
    rows, url = reminders(spark, 300).drop("key"), daemon.url

    def other(text: str) -> None:
        if "tasks write" in text:
            found = schedule_messages(rows, url=url, topic="raced", job="monday", staged="flight")
            assert found.messages == 300

    result = schedule_messages(rows, url=url, topic="raced", job="monday", progress=other, staged="flight")
    assert (result.messages, result.repeated) == (300, True)
    assert len(rows_of(daemon, "raced")) == 300
    assert staged(daemon.directory) == []


def test_a_full_disk_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", max_staging_bytes=1 << 20, **FLIGHT) as daemon:
        flight_url(daemon)
        rows = reminders(spark, 4_000).withColumn("body", F.rpad("body", 1_000, "."))
        with pytest.raises(ScheduleFailed) as caught:
            schedule_messages(rows, url=daemon.url, topic="large", staged="flight")
        assert caught.value.code == "staging_full"
        assert rows_of(daemon, "large") == []
        assert staged(daemon.directory) == []
        assert (
            schedule_messages(rows.limit(100), url=daemon.url, topic="large", staged="flight").messages == 100
        )


def test_what_is_wrong_is_said_before_java_starts(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline
) -> None:
    def never(*args: Any, **named: Any) -> Any:
        pytest.fail("Spark is started")

    monkeypatch.setattr("tickwheel_cli.pipeline.schedule.open_spark", never)
    source = tmp_path / "rows.csv"
    source.write_text("deliver_at,body\n2031-05-01T12:00:00Z,x\n")
    place = Place(tmp_path)
    tokens = {name: place.create(name, grant) for name, grant in (("few", "publish:a.*"), ("all", "all:*"))}

    def said(url: str, *options: str, token: str = "") -> Any:
        monkeypatch.setenv("TICKWHEEL_TOKEN", token)
        words = ("schedule", "--url", url, "--from", str(source), "--staged", "flight", *options)
        return pipeline(*words, catch=True).exception

    assert isinstance(said(daemon.url, "--topic", "not a topic"), Exception)
    assert "not a topic" in str(said(daemon.url, "--topic", "not a topic"))
    assert isinstance(said("tickwheel://127.0.0.1:9", "--topic", "t"), NotConnected)
    with place.daemon() as without:
        error = said(without.url, "--topic", "t", token=tokens["all"])
        assert isinstance(error, StagingError)
        assert "has no Arrow Flight" in error.message
        assert isinstance(said(without.url, "--topic", "t", token=tokens["few"]), Forbidden)
        assert isinstance(said(without.url, "--topic", "t"), LoginRequired)
    # Where it says that it is, nothing listens.
    monkeypatch.setattr("tickwheel.arrow.network.PATIENCE_S", 0.5)
    with Daemon(tmp_path / "other", flight_advertise="127.0.0.1:9") as lying:
        error = said(lying.url, "--topic", "t")
        assert isinstance(error, NotConnected)
        assert "127.0.0.1:9" in error.message


def test_what_is_rescheduled_is_read_by_flight(
    spark: SparkSession, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_messages(reminders(spark, 60), url=daemon.url, topic="moved", staged="flight")
    moment = datetime(2032, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(repair, "describe_log", mock.Mock(side_effect=SourceError("It is not there.")))
    where = "topic = 'moved' and key < 'k3'"
    found = reschedule_messages(spark, where, at=moment, url=daemon.url)
    keys = [f"k{number}" for number in range(60) if f"k{number}" < "k3"]
    assert (found.selected, found.done) == (len(keys), len(keys))
    at_ms = int(moment.timestamp() * 1_000)
    assert sorted(row[0] for row in rows_of(daemon, "moved") if row[2] == at_ms) == sorted(keys)
    with pytest.raises(SourceError, match="not there"):
        reschedule_messages(spark, where, at=moment, url=daemon.url, source=daemon.directory)


def test_the_command(spark: SparkSession, daemon: Daemon, pipeline: Pipeline, tmp_path: Path) -> None:
    reminders(spark, 100).write.parquet(str(tmp_path / "reminders.parquet"))
    words = ("schedule", "--url", daemon.url, "--topic", "command", "--staged", "flight", "--job", "command")
    done = pipeline(*words, "--from", str(tmp_path / "reminders.parquet"))
    assert "staged by Arrow Flight" in done.stdout
    again = pipeline(*words, "--from", str(tmp_path / "reminders.parquet"), "--json")
    assert json.loads(again.stdout)["repeated"] is True
    assert len(rows_of(daemon, "command")) == 100
