"""The pipeline on a cluster: master, workers, executors, driver and broker are processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.run.profile import limit_s
from tests.support.run.warned import filters_of_a_process
from tests.support.spark.standalone import WORKER_HOSTS, Cluster, standalone_cluster

pytestmark = pytest.mark.timeout(limit_s(900))  # each command starts Spark anew, on a cluster of processes
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
MESSAGES = 3_000
FAR_MS = 1_935_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder in which `data` is that of a broker that runs, and the broker's URL."""
    folder = tmp_path_factory.mktemp("work")
    with tickwheel.embedded(folder / "data") as broker, broker.sync_client() as client:
        client.send_many("orders", [b"due"] * MESSAGES, keys=[f"k{n}" for n in range(MESSAGES)])
        yield folder, broker.url


@pytest.fixture
def client(work: tuple[Path, str]) -> Iterator[tickwheel.sync.Client]:
    with tickwheel.sync.Client(work[1]) as client:
        yield client


@pytest.fixture
def pipeline(cluster: Cluster, work: tuple[Path, str]) -> Any:
    """Runs a command of `tickwheel pipeline` on the cluster, and returns the JSON that it prints."""
    shell = Shell(*work)
    # PySpark leaves sockets and pipes to the interpreter's end.
    shell.environment["PYTHONWARNINGS"] = filters_of_a_process("ignore::ResourceWarning")
    conf = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]

    def run(*arguments: str) -> Any:
        done = shell.run("pipeline", *arguments, "--master", cluster.master, "--json", *conf)
        return json.loads(done.stdout)

    return run


def used_by_both_workers(cluster: Cluster) -> bool:
    """Whether the last application had an executor on each."""
    return bool(cluster.state()["completedapps"][0]["cores"] == len(WORKER_HOSTS))


@pytest.mark.soak  # each command starts Spark anew; `test_scheduling` shows as much of the cluster
def test_reading(cluster: Cluster, pipeline: Any) -> None:
    (row,) = pipeline(
        "sql", "--data", "data", "select count(*) as n, count(distinct key) as keys from messages"
    )
    assert (row["n"], row["keys"]) == (MESSAGES, MESSAGES)
    assert used_by_both_workers(cluster)


def test_scheduling(
    cluster: Cluster, pipeline: Any, work: tuple[Path, str], client: tickwheel.sync.Client
) -> None:
    (work[0] / "reminders.parquet").mkdir()
    for part in range(4):
        numbers = range(part, MESSAGES, 4)
        columns = {
            "key": [f"r{number}" for number in numbers],
            "body": ["later"] * len(numbers),
            "deliver_at": pa.array([FAR_MS + number for number in numbers], pa.timestamp("ms", "UTC")),
        }
        pq.write_table(pa.table(columns), work[0] / "reminders.parquet" / f"{part}.parquet")
    done = pipeline("schedule", "--from", "reminders.parquet", "--topic", "reminders")
    assert (done["messages"], done["rejected"]) == (MESSAGES, 0)
    assert used_by_both_workers(cluster)
    sql = "select state, count(*), count(distinct key), min(deliver_at) from reminders group by state"
    (found,) = client.query(sql).rows
    assert found[:3] == ["scheduled", MESSAGES, MESSAGES]


@pytest.mark.soak
def test_archiving(
    cluster: Cluster, pipeline: Any, work: tuple[Path, str], client: tickwheel.sync.Client
) -> None:
    with client.subscribe("orders", credit=MESSAGES, batch=1_000) as subscription:
        acked = 0
        for batch in subscription.batches():
            batch.ack()
            acked += len(batch)
            if acked == MESSAGES:
                break
    done = pipeline("archive", "--older-than", "0s", "--to", "archive")
    assert (done["messages"], done["dropped"], done["kept"]) == (MESSAGES, MESSAGES, 0)
    assert used_by_both_workers(cluster)
    files = [file for file in (work[0] / "archive").rglob("*.parquet") if "_tickwheel" not in file.parts]
    archived = [key for file in files for key in pq.read_table(file, columns=["key"])["key"].to_pylist()]
    assert sorted(archived) == sorted(f"k{number}" for number in range(MESSAGES))
    assert client.query("select count(*) from orders").rows == [[0]]
