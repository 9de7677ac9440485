"""Files of other programs, and damaged ones, as sources of bulk jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.spark.test_spark_schedule import SOON, reminders, stored
from tests.support.processes.daemon_harness import Daemon
from tickwheel.spark import ScheduleFailed, SourceError, schedule_file

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
