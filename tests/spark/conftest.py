"""One Spark session for all tests of this folder, as fast as it gets, and its Java."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tickwheel.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, each task may be tried three times. Java is found or the tests fail: `make test` installs one."""
    os.environ.pop("SPARK_HOME", None)
    folder: Path = tmp_path_factory.mktemp("spark")
    conf = {**FAST, "spark.sql.warehouse.dir": str(folder), "spark.local.dir": str(folder)}
    running = session(app="tests", master="local[2,3]", conf=conf, progress=False)
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()
