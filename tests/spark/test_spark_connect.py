"""A client of Spark Connect: what docs/how-to/spark-cluster.md says of it. In processes of their own, because a process
has either a Spark of its own or a server's.

Needs the client's packages (pip install 'pyspark[connect]'), which nothing else here does.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tickwheel
from tests.support.spark.standalone import connect_server

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        importlib.util.find_spec("grpc_status") is None,
        reason="the client of Spark Connect is not installed: pip install 'pyspark[connect]'",
    ),
]

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


def test_a_client_of_a_server_reads_and_writes(tmp_path: Path) -> None:
    with (
        connect_server(tmp_path / "server") as master,
        tickwheel.embedded(tmp_path / "data") as broker,
        broker.sync_client() as client,
    ):
        client.send_many("orders", [b"x"] * 10, keys=[f"k{n}" for n in range(10)])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master, broker.url, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("events") >= 10
    assert found.pop("streamed") >= 110
    assert found == {"read": 10, "filtered": ["k3"], "written": 100, "sent by a stream": 100}
