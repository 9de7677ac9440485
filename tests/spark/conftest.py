"""One Spark session for all tests of this folder, as fast as it gets, and its Java."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import DRAWS
from tickwheel.spark import session
from tickwheel_cli.main import root
from tickwheel_cli.pipeline.group import COMMANDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Runs `tickwheel pipeline` with these words.
Pipeline: TypeAlias = Callable[..., Result]

FAST = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
#: Few rows go through each query: to compile it takes longer than all else. In `nightly` Spark compiles it.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, each task may be tried three times. Java is found or the tests fail: `make test` installs one."""
    os.environ.pop("SPARK_HOME", None)
    folder: Path = tmp_path_factory.mktemp("spark")
    fast = FAST if DRAWS else FAST | INTERPRETED
    conf = {**fast, "spark.sql.warehouse.dir": str(folder), "spark.local.dir": str(folder)}
    running = session(app="tests", master="local[2,3]", conf=conf, progress=False)
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A broker in a process of its own, with a new directory and the usual settings."""
    with Daemon(tmp_path / "data") as running:
        yield running


@pytest.fixture
def pipeline(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Runs commands of `tickwheel pipeline` on the session of these tests. Errors are raised, or else are in the result
    (`catch`)."""

    @contextmanager
    def ours(master: str, conf: tuple[str, ...], *, progress: bool | None = None) -> Iterator[SparkSession]:
        yield spark

    for name in COMMANDS:
        monkeypatch.setattr(f"tickwheel_cli.pipeline.{name}.open_spark", ours)

    def run(*words: str, catch: bool = False) -> Result:
        with mock.patch.dict(os.environ):  # options such as `--token-file` are left there for the tasks
            return CliRunner().invoke(
                root, ["pipeline", *words], standalone_mode=False, catch_exceptions=catch
            )

    return run
