"""A client of Spark Connect: what docs/how-to/spark-cluster.md says of it. In processes of their own, because a process
has either a Spark of its own or a server's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

import tickwheel
from tests.support.flight.calling import flight_url
from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import limit_s
from tests.support.spark.archives import archived, work_off
from tests.support.spark.standalone import connect_server

_DUE: Final = datetime(2032, 1, 1, tzinfo=UTC)
PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import functions as F
from tickwheel.spark import conditions, session

master, url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
data = str(folder / "data")
spark = session(master=master)
found = {}
messages = lambda **options: spark.read.format("tickwheel").options(**options).load(data)
found["read"] = messages().count()
found["filtered"] = [row.key for row in messages(columns="id,key", filters=conditions(("key", "=", "k3"))).collect()]
found["events"] = messages(table="events").count()
rows = spark.range(100).select(
    F.expr("timestamp_seconds(2000000000 + id)").alias("deliver_at"),
    F.col("id").cast("string").alias("key"),
    F.lit("b").alias("body"),
)
rows.write.format("tickwheel").mode("append").options(url=url, topic="written").save()
found["written"] = messages().where("topic = 'written'").count()

def finished(writer):
    query = writer.option("checkpointLocation", str(folder / writer_name)).trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert query.exception() is None

writer_name = "read state"
finished(
    spark.readStream.format("tickwheel").option("table", "events").load(data)
    .writeStream.format("parquet").option("path", str(folder / "history"))
)
found["streamed"] = spark.read.parquet(str(folder / "history")).count()
rows.write.parquet(str(folder / "rows"))
writer_name = "write state"
finished(
    spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
    .writeStream.format("tickwheel").options(url=url, topic="stream")
)
found["sent by a stream"] = messages().where("topic = 'stream'").count()
print(json.dumps(found))
"""


pytestmark = [pytest.mark.ci, pytest.mark.timeout(limit_s(900))]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server."""
    with connect_server(tmp_path_factory.mktemp("server")) as url:
        yield url


def test_a_client_of_a_server_reads_and_writes(master: str, tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        client.send_many("orders", [b"x"] * 10, keys=[f"k{n}" for n in range(10)])
        found = json.loads(_output("-c", PROGRAM, master, broker.url, str(tmp_path)).splitlines()[-1])
    assert found.pop("events") >= 10
    assert found.pop("streamed") >= 110
    assert found == {"read": 10, "filtered": ["k3"], "written": 100, "sent by a stream": 100}


@pytest.mark.parametrize("way", ["flight", pytest.param("in place", marks=pytest.mark.soak)])
def test_each_command_with_a_server(master: str, tmp_path: Path, way: str) -> None:
    """Driver and tasks are in the server's process, the client has neither Java nor a session of its own."""
    rows = [{"deliver_at": _DUE.isoformat(), "key": f"k{n}", "body": f"b{n}"} for n in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (
        Daemon(tmp_path / "data", flight=True, flight_listen="127.0.0.1:0", purge_after="365d") as daemon,
        tickwheel.sync.Client(daemon.url) as client,
    ):
        flight_url(daemon)
        client.send_many("done", [b"d"] * 20)
        work_off(client, "done", 20)
        source = ["--data", str(tmp_path / "data")] if way == "in place" else ["--url", daemon.url]
        read, url = ["--read", way], ["--url", daemon.url]

        def run(command: str, *words: str) -> str:
            return _output("-m", "tickwheel", "pipeline", command, *words, "--master", master)

        planned = run(
            "schedule",
            "--from",
            str(tmp_path / "rows.jsonl"),
            *url,
            "--topic",
            "later",
            "--staged",
            way,
            "--json",
        )
        assert [json.loads(planned)[name] for name in ("messages", "staged")] == [50, way]
        assert json.loads(run("sql", *source, "select count(*) as n from messages", "--json")) == [{"n": 70}]
        where = "KEY < 'k2' and topic = 'later'"
        repaired = run("reschedule", *url, "--where", where, "--at", "2033-01-01T00:00Z", "--json")
        assert [json.loads(repaired)[name] for name in ("selected", "done")] == [12, 12]
        run("report", *source, "--out", str(tmp_path / "report"))
        assert "later" in (tmp_path / "report" / "index.html").read_text()
        archive = ("--older-than", "0s", "--to", str(tmp_path / "archive"), "--json")
        assert json.loads(run("archive", *url, *read, *archive))["messages"] == 20
        assert len(archived(tmp_path / "archive")) == 20
        restore = ("--from", str(tmp_path / "archive"), "--since", "2020-01-01T00:00Z", "--json")
        assert json.loads(run("restore", *url, *restore))["stored"] == 20
        assert client.topic("done.restored").messages == 20
        told = run("doctor", *url).splitlines()
        parts = ("pyspark", "driver", "job", "executor")
        assert [line.split()[:2] for line in told] == [["ok", part] for part in parts]


def _output(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
