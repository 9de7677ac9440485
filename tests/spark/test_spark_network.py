"""``option("url", …)``: tables of a broker by Arrow Flight, on real Spark, without its data directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import tickwheel.arrow
from tests.spark.conftest import Pipeline
from tests.support.flight.calling import flight_url
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Place
from tests.support.spark.archives import work_off
from tests.support.spark.rows import rows_of
from tests.support.spark.streaming import run_to_the_end
from tickwheel import sync
from tickwheel.errors import LoginRequired
from tickwheel.spark import archive_messages, reschedule_messages, restore_messages
from tickwheel.spark.errors import understood

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 90
OWNER = "owner.token"
FLIGHT = {"flight": True, "flight_listen": "127.0.0.1:0"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a broker with tokens and messages in two topics, and a file with a token that may read the first. A
    file beside it, ``OWNER``, has a token that may do everything."""
    folder = tmp_path / "guarded"
    folder.mkdir()
    place = Place(folder)
    owner, token = place.create("owner", "all:*"), folder / "reader.token"
    for path, secret in ((token, place.create("reader", "query:a.*")), (folder / OWNER, owner)):
        path.write_text(secret)
        path.chmod(0o600)
    with place.daemon(**FLIGHT) as daemon:
        flight_url(daemon)  # a busy machine takes longer to start it than a reader waits
        with sync.Client(daemon.url, token=owner) as client:
            for topic in ("a.orders", "b.secret"):
                bodies = [b"%s %d" % (topic.encode(), number) for number in range(COUNT)]
                client.send_many(topic, bodies, delay_ms=10_000_000)
        yield daemon.url, token


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("tickwheel").options(url=url, **options).load()


def test_tables_streams_and_refusals(spark: SparkSession, guarded: tuple[str, Path], tmp_path: Path) -> None:
    url, token = guarded
    secret = {"tokenFile": str(token)}
    frame = read(spark, url, rowsPerPartition=70, **secret)
    assert frame.rdd.getNumPartitions() == 3
    assert "body" not in frame.columns
    found = sorted(rows_of(frame), key=lambda row: row["id"])
    expected = tickwheel.arrow.messages(url, token_file=token).read_all().to_pylist()
    assert [row["id"] for row in found] == [row["id"] for row in expected]
    assert len(found) == COUNT
    assert {row["topic"] for row in found} == {"a.orders"}
    # Filters travel, and mean the same.
    some = frame.where("id > 10 and not (key is not null) and topic like 'a.%' and deliver_at > time_created")
    assert some.count() == COUNT - 10
    assert read(spark, url, filters='[["id", "<=", 7]]', **secret).count() == 7
    assert "twk_" not in some._jdf.queryExecution().toString()  # type: ignore[operator]

    # A stream goes on where it was.
    def run() -> list[int]:
        source = spark.readStream.format("tickwheel").options(
            url=url, table="events", events="sent", **secret
        )
        writer = source.option("maxRowsPerTrigger", "40").load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        return run_to_the_end(lambda: writer.start(str(tmp_path / "out")))

    assert sum(run()) == COUNT
    assert sum(run()) == 0
    assert spark.read.parquet(str(tmp_path / "out")).select("id").distinct().count() == COUNT
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert path.is_dir() or b"twk_" not in path.read_bytes()
    # What is wrong is said as an error of ours.
    for options, code in (
        ({"columns": "id,body", **secret}, "forbidden"),
        ({}, "login_required"),
        ({"columns": "nothing", **secret}, "bad_source"),
        ({"tokenFile": str(tmp_path / "gone")}, "bad_config"),
    ):
        with pytest.raises(PySparkException) as caught:
            read(spark, url, **options).count()
        error = understood(caught.value)
        assert error is not None, caught.value
        assert error.code == code


def test_tasks_that_send_know_where_the_token_is(
    spark: SparkSession, guarded: tuple[str, Path], tmp_path: Path
) -> None:
    """Sink, archive and what brings an archive back are told the name of a file: a task has no other token."""
    url, reader = guarded
    owner, root = reader.with_name(OWNER), tmp_path / "archive"
    rows = spark.createDataFrame([(1_935_000_000_000, "late")], "deliver_at long, body string")
    to = rows.write.format("tickwheel").mode("append").options(url=url, topic="a.sent")
    to.option("tokenFile", str(owner)).save()
    secret = owner.read_text()
    with sync.Client(url, token=secret) as client:
        assert client.query("select body from messages where topic = 'a.sent'").rows == [[b"late"]]
        client.send("a.done", b"done")
        work_off(client, "a.done", 1)
        files = {"url": url, "token_file": str(owner)}
        archived = archive_messages(spark, root, older_than=timedelta(), topics=["a.done"], **files)
        assert (archived.messages, archived.dropped) == (1, 1)
        restored = restore_messages(spark, root, until=datetime(2040, 1, 1, tzinfo=UTC), **files)
        assert (restored.messages, restored.stored) == (1, 1)
        moved = reschedule_messages(spark, "topic = 'a.sent'", at=datetime(2040, 1, 1, tzinfo=UTC), **files)
        assert (moved.selected, moved.done) == (1, 1)
    for options, code in (
        ({"tokenFile": str(reader)}, "forbidden"),
        ({}, "login_required"),
        ({"tokenFile": str(tmp_path / "gone")}, "bad_config"),
        ({"token": secret}, "bad_source"),
    ):
        with pytest.raises(PySparkException) as caught:
            rows.write.format("tickwheel").mode("append").options(url=url, topic="b.x", **options).save()
        error = understood(caught.value)
        assert error is not None, caught.value
        assert error.code == code
        assert secret not in str(caught.value)
    with pytest.raises(LoginRequired):
        restore_messages(spark, root, until=datetime(2040, 1, 1, tzinfo=UTC), url=url)


def test_questions_of_the_command_line(
    daemon: Daemon, pipeline: Pipeline, guarded: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, token = guarded
    monkeypatch.setenv("TICKWHEEL_TOKEN_FILE", str(token))
    said = pipeline("sql", "--url", url, "select topic, count(*) from messages group by topic", "--json")
    assert [[*row.values()] for row in json.loads(said.stdout)] == [["a.orders", COUNT]]
    refused = pipeline("sql", "--url", daemon.url, "select 1 from messages", catch=True)
    assert "has no Arrow Flight" in str(refused.exception)
    both = pipeline("sql", "--url", url, "--data", str(daemon.directory), "select 1", catch=True)
    assert "give one of them" in str(both.exception)
    neither = pipeline("sql", "select 1", catch=True)
    assert "--url" in str(neither.exception)


def test_the_doctor_looks_at_driver_and_executors(
    pipeline: Pipeline, guarded: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, token = guarded
    monkeypatch.setenv("TICKWHEEL_TOKEN_FILE", str(token))
    found = json.loads(pipeline("doctor", "--url", url, "--json").stdout)
    assert [one["name"] for one in found if one["name"] != "java"] == ["pyspark", "driver", "job", "executor"]
    assert all(one["ok"] for one in found), found
    for one in found[-1], found[-3]:
        assert "may query a.*; a stream of" in one["detail"]
        assert "the broker does not tell its clock" in one["detail"]
    token.write_text("twk_wrong_token")
    refused = pipeline("doctor", "--url", url, "--json", catch=True)
    (driver,) = (one for one in json.loads(refused.stdout) if one["name"] == "driver")
    assert not driver["ok"]
    assert "twk_" not in driver["detail"].replace("twk_…", "")
