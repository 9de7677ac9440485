"""Spark on machines without the data directory: workers and driver have mount namespaces of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.guarded import Place
from tests.support.run.warned import filters_of_a_process
from tests.support.spark.standalone import Cluster, standalone_cluster, without
from tickwheel import sync

pytestmark = pytest.mark.ci  # starts four Javas
COUNT = 3_000
#: A driver with nothing but a URL and a file that holds a token.
DRIVER = """
import json, os, sys
from tickwheel.spark import session

master, url, token, data = sys.argv[1:]
with_token = {"url": url, "tokenFile": token}
with session(app="apart", master=master, progress=False, conf={
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}) as spark:
    def table(**options):
        return spark.read.format("tickwheel").options(**with_token, **options).load()

    def seen(part):
        yield len(os.listdir(data))

    messages = table(rowsPerPartition=500)
    keys = [row.key for row in messages.where("id > 10").select("key").collect()]
    sent = table(table="events", events="sent").select("id").distinct().count()
    files = spark.sparkContext.parallelize(range(8), 8).mapPartitions(seen).collect()
    print(json.dumps({
        "keys": keys,
        "topics": [row[0] for row in messages.select("topic").distinct().collect()],
        "sent": sent,
        "files": [*files, len(os.listdir(data))],
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }))
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A broker's URL, its data directory, and a file with a token for one of its two topics."""
    folder = tmp_path / "guarded"
    folder.mkdir()
    place = Place(folder)
    owner, token = place.create("owner", "all:*"), tmp_path / "reader.token"
    token.write_text(place.create("reader", "query:orders"))
    with place.daemon(flight=True, flight_listen="127.0.0.1:0") as daemon:
        with sync.Client(daemon.url, token=owner) as client:
            for topic in ("orders", "secret"):
                keys = [f"{topic} {number}" for number in range(COUNT)]
                client.send_many(topic, [b"far"] * COUNT, keys=keys, delay_ms=10_000_000)
        yield daemon.url, daemon.directory, token


def test_reading_where_the_directory_is_not(guarded: tuple[str, Path, Path], tmp_path: Path) -> None:
    url, data, token = guarded
    assert os.listdir(data)
    with standalone_cluster(tmp_path / "cluster", before=without(data)) as cluster:
        found = drive(cluster, url, token, data)
    assert found["files"] == [0] * 9
    assert found["executors"] == 2
    assert found["topics"] == ["orders"]
    assert sorted(found["keys"]) == sorted(f"orders {number}" for number in range(10, COUNT))
    assert found["sent"] == COUNT


def drive(cluster: Cluster, url: str, token: Path, data: Path) -> dict[str, Any]:
    """What the driver prints, which finds the directory empty, too."""
    environment = {**os.environ, "PYTHONWARNINGS": filters_of_a_process("ignore::ResourceWarning")}
    words = [sys.executable, "-c", DRIVER, cluster.master, url, str(token), str(data)]
    done = subprocess.run(
        [*without(data), *words], env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed
