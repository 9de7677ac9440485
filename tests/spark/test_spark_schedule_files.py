"""Files of other programs, and damaged ones, as sources of bulk jobs."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import Pipeline
from tests.spark.test_spark_schedule import SOON, reminders, stored
from tests.support.processes.daemon_harness import Daemon
from tickwheel.spark import RowsRefused, ScheduleFailed, SourceError, schedule_file
from tickwheel.spark.scheduling.file_columns import look_into

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_nanoseconds_as_pandas_writes_them(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "pandas.parquet"
    late = pd.Timestamp("2031-05-01T09:00:00.000000001", tz="UTC")
    times = pd.Series([late, late + pd.Timedelta(days=1)]).astype("datetime64[ns, UTC]")
    frame = pd.DataFrame({"key": ["a", "b"], "deliver_at": times, "body": ["x", "y"]})
    frame.to_parquet(path, version="2.6")
    assert schedule_file(spark, str(path), url=daemon.url, topic="t").messages == 2
    due = [row[0] for row in stored(daemon, "deliver_at")]
    assert due == [datetime(2031, 5, day, 9, 0, 0, 1_000, UTC) for day in (1, 2)]
    frame["deliver_at"] = times.dt.tz_localize(None)
    frame.to_parquet(path, version="2.6")
    with pytest.raises(SourceError, match="without a time zone"):
        schedule_file(spark, str(path), url=daemon.url, topic="t")


def test_files_that_spark_cannot_read(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> None:
    """What is wrong is said in a line, without stacks, and with the file's name."""
    whole = tmp_path / "whole.parquet"
    reminders(spark, 500, partitions=1).write.parquet(str(whole))
    data = next(whole.glob("*.parquet")).read_bytes()
    short = tmp_path / "short.parquet"
    short.write_bytes(data[:-20])
    with pytest.raises(SourceError, match=r"short\.parquet cannot be read as parquet: ") as refused:
        schedule_file(spark, str(short), topic="t", url=daemon.url)
    assert "\n" not in str(refused.value)
    zeros = tmp_path / "zeros.parquet"
    zeros.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    with pytest.raises(ScheduleFailed, match=r"reading file .*zeros\.parquet") as failed:
        schedule_file(spark, str(zeros), topic="t", url=daemon.url)
    assert "\n" not in str(failed.value)
    mixed = tmp_path / "mixed.csv"
    mixed.mkdir()
    (mixed / "a.csv").write_text(f"key,deliver_at,body\na,{SOON},x\n")
    (mixed / "b.csv").write_text(f"body,deliver_at,key\nx,{SOON},b\n")
    with pytest.raises(ScheduleFailed, match="CSV header does not conform"):
        schedule_file(spark, str(mixed), topic="t", url=daemon.url)
    assert stored(daemon) == []


def test_times_of_a_zone_under_other_names(
    spark: SparkSession, pipeline: Pipeline, daemon: Daemon, tmp_path: Path
) -> None:
    """Each format, with columns that are renamed and times that have no zone, also in a session of another one."""
    local, nanos = datetime(2031, 5, 1, 9), pd.Timestamp("2031-05-01T09:00:00.000000001")
    rows = {"whén`s=it": [local], "text": ["x"], "key": ["micros"]}
    pq.write_table(pa.table(rows), tmp_path / "micros.parquet")
    frame = pd.DataFrame({**rows, "whén`s=it": pd.Series([nanos]).astype("datetime64[ns]"), "key": ["nanos"]})
    frame.to_parquet(tmp_path / "nanos.parquet", version="2.6")
    (tmp_path / "rows.csv").write_text("whén`s=it,text,key\n2031-05-01 09:00,x,csv\n")
    line = {"whén`s=it": "2031-05-01T09:00:00", "text": "x", "key": "json"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(line) + "\n")
    options = (
        "--url",
        daemon.url,
        "--topic",
        "t",
        "--rename",
        "whén`s=it=deliver_at",
        "--rename",
        "text=body",
    )
    zone = ("--tz", "Europe/Berlin")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for name in ("micros.parquet", "nanos.parquet", "rows.csv", "rows.jsonl"):
            said = pipeline("schedule", "--from", str(tmp_path / name), *options, *zone).stdout
            assert said.startswith("scheduled 1 message in "), name
        with pytest.raises(RowsRefused, match="no time zone"):
            pipeline("schedule", "--from", str(tmp_path / "rows.csv"), *options)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    seven = datetime(2031, 5, 1, 7, tzinfo=UTC)
    assert dict(stored(daemon, "key, deliver_at")) == {
        "micros": seven,
        "nanos": seven + timedelta(milliseconds=1),
        "csv": seven,
        "json": seven,
    }


def test_types_are_those_that_spark_sees(spark: SparkSession, tmp_path: Path) -> None:
    """What is said without Spark is what Spark would have said."""
    moment = pa.array([1_000], pa.timestamp("us"))
    columns = {
        "naive": moment, "zoned": moment.cast(pa.timestamp("ms", "UTC")), "text": ["x"], "bytes": [b"x"],
        "tiny": pa.array([1], pa.int8()), "small": pa.array([1], pa.int16()), "int": pa.array([1], pa.int32()),
        "long": [1], "double": [1.0], "float": pa.array([1], pa.float32()), "flag": [True], "day": [date(2031, 5, 1)],
        "decimal": pa.array([1], pa.decimal128(9, 2)), "category": pa.array(["x"]).dictionary_encode(),
        "map": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        "lasting": pa.array([1], pa.duration("us")), "a.b": ["x"],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "types.parquet")
    pq.write_table(pa.table({"old": moment}), tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    for name in ("types.parquet", "old.parquet"):
        found = look_into(str(tmp_path / name), "parquet")
        assert found is not None
        assert found.columns == dict(spark.read.parquet(str(tmp_path / name)).dtypes)


def test_headings_are_those_that_spark_sees(spark: SparkSession, tmp_path: Path) -> None:
    texts = ['\ufeffkey,body\n1,2\n', '\r\n"key","a ""b""\nc",\r\n1,2,3\n', "key;body\n"]  # fmt: skip
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.csv"
        path.write_text(text, newline="")
        found = look_into(str(path), "csv")
        assert found is not None
        read = spark.read.options(header=True, multiLine=True, escape='"').csv(str(path))
        assert list(found.columns) == read.columns
