"""The pipeline on a cluster: master, workers, executors, driver and broker are processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tickwheel
from tests.integration.cli_harness import Shell
from tests.support.spark_cluster import Cluster, standalone_cluster

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
MESSAGES = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which `data` is that of a broker that runs."""
    folder = tmp_path_factory.mktemp("work")
    with tickwheel.embedded(folder / "data") as broker, broker.sync_client() as client:
        client.send_many("orders", [b"due"] * MESSAGES, keys=[f"k{n}" for n in range(MESSAGES)])
        (folder / "url").write_text(broker.url)
        yield folder


@pytest.fixture
def pipeline(cluster: Cluster, folder: Path) -> Any:
    """Runs a command of `tickwheel pipeline` on the cluster, and returns the JSON that it prints."""
    shell = Shell(folder)
    # PySpark leaves sockets and pipes to the interpreter's end.
    shell.environment["PYTHONWARNINGS"] = "error,ignore::ResourceWarning"
    conf = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]

    def run(*arguments: str) -> Any:
        done = shell.run("pipeline", *arguments, "--master", cluster.master, "--json", *conf)
        return json.loads(done.stdout)

    return run


def test_two_workers_read_what_the_broker_has(cluster: Cluster, pipeline: Any) -> None:
    (row,) = pipeline(
        "sql", "--data", "data", "select count(*) as n, count(distinct key) as keys from messages"
    )
    assert (row["n"], row["keys"]) == (MESSAGES, MESSAGES)
    (application,) = cluster.state()["completedapps"]
    assert application["cores"] == 2
