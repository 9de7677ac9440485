"""Joins two streams with the broker as the clock: each order gets a timeout, and its payment takes that back.

Orders and payments are JSON files, which Structured Streaming reads as they come. A payment may come in the same batch
as its order, or before it, and a batch may be done twice.

Run: python examples/order_timeouts_spark.py [URL of a broker]

It needs pip install 'tickwheel[spark]' and Java 17 or newer (`tickwheel pipeline doctor` says what is missing).
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tickwheel
from tickwheel.spark import session

PAY_WITHIN_S = 2
QUIET_S = 2.0  # when no timeout has come for so long, and all are due, there are no more
TOPIC = "order-timeouts"
#: A session that starts quickly; the work is small, too.
SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SCHEMA = "event string, order_id string, at timestamp"


class Join:
    """What is done with each batch. All of it may be done again: payments are written by batch, keys are unique, and a
    cancel says what it found."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.paid, self.report = url, folder / "paid", folder / "report.json"
        self.scheduled = 0
        self.paid_first: dict[
            int, int
        ] = {}  #: by batch: orders that were paid before they came, or in their batch
        self.answers: Counter[str] = Counter()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Payments are noted first, so that orders of the same batch find them. What is older than orders may be late
        can be deleted from the notes."""
        payments = batch.where("event = 'payment'").select("order_id").distinct()
        payments.write.mode("overwrite").parquet(str(self.paid / f"batch={batch_id}"))
        paid = batch.sparkSession.read.schema("order_id string, batch bigint").parquet(str(self.paid))
        orders = batch.where("event = 'order'")
        self.paid_first[batch_id] = orders.join(paid, "order_id", "left_semi").count()
        timeouts = orders.join(paid, "order_id", "left_anti").select(
            F.col("order_id").alias("key"),
            F.col("order_id").alias("body"),
            (F.col("at") + F.expr(f"interval {PAY_WITHIN_S} seconds")).alias("deliver_at"),
        )
        sink = timeouts.write.format("tickwheel").mode("append")
        sink.options(url=self.url, topic=TOPIC, report=str(self.report)).save()
        self.scheduled += json.loads(self.report.read_text())["stored"]
        url = self.url
        answers = payments.mapInPandas(lambda parts: take_back(url, parts), "answer string")
        self.answers.update(
            {row["answer"]: row["count"] for row in answers.groupBy("answer").count().collect()}
        )

    def __str__(self) -> str:
        first = sum(self.paid_first.values())
        return f"scheduled {self.scheduled}, cancelled {self.answers['cancelled']}, paid first {first}"


def take_back(url: str, parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Cancels the timeouts of paid orders, and says of each what became of it; it runs in Spark's workers."""
    with tickwheel.sync.Client(url) as client:
        for part in parts:
            keys = part["order_id"].tolist()
            yield pd.DataFrame({"answer": list(client.cancel(TOPIC, keys=keys)) if keys else []}, dtype=str)


def run(spark: SparkSession, folder: Path, join: Join) -> None:
    """Everything that is in the folder and was not read before, a file a batch."""
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    state = str(folder / "state")
    query = (
        files.writeStream.foreachBatch(join).option("checkpointLocation", state).trigger(availableNow=True)
    )
    query.start().awaitTermination()


def write(folder: Path, name: str, *events: tuple[str, int]) -> None:
    """One file of events that happen now; it is renamed, so that a stream sees it whole."""
    at = datetime.now(UTC).isoformat()
    lines = [
        json.dumps({"event": event, "order_id": f"order-{number}", "at": at}) for event, number in events
    ]
    (folder / "in").mkdir(exist_ok=True)
    made = folder / name
    made.write_text("\n".join(lines))
    made.rename(folder / "in" / name)
    time.sleep(0.01)  # the stream reads files in order of their times


def main() -> None:
    """Two batches, the second of them twice; the timeouts; then a payment that comes too late."""
    spark = session(master="local[1]", conf=SMALL)
    with tempfile.TemporaryDirectory() as name, broker_url(Path(name, "data")) as url:
        folder = Path(name)
        with tickwheel.sync.Client(url) as client:
            client.create_topic(TOPIC)
            join = Join(url, folder)
            write(folder, "1.json", *[("order", n) for n in range(1, 7)], ("payment", 2), ("payment", 7))
            write(
                folder, "2.json", ("order", 7), ("order", 8), ("payment", 1), ("payment", 3), ("payment", 8)
            )
            run(spark, folder, join)
            print(join)
            # As after a crash between the work of a batch and Spark's note that it is done.
            join(spark.read.schema(SCHEMA).json(str(folder / "in" / "2.json")), 1)
            print(f"after the second batch was done again: {join}")
            print(f"timed out: {', '.join(sorted(timed_out(client)))}")
            write(folder, "3.json", ("payment", 4))
            run(spark, folder, join)
            print(f"order-4 is paid too late: {join.answers['already_acked']}")
    spark.stop()


def timed_out(client: tickwheel.sync.Client) -> list[str]:
    """What the timeouts' subscriber is given. Here it comes last, so that the example ends alike on any machine: until
    a timeout is handed out, a payment takes it back. Elsewhere it runs all the time."""
    time.sleep(PAY_WITHIN_S)
    orders = []
    with client.subscribe(TOPIC, "orders") as subscription:
        while (message := subscription.receive(QUIET_S)) is not None:
            orders.append(message.body.decode())
            message.ack(confirm=True)
    return orders


@contextmanager
def broker_url(directory: Path) -> Iterator[str]:
    """The broker that the command line names, or one of our own."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    with tickwheel.embedded(directory) as broker:
        yield broker.url


if __name__ == "__main__":
    main()
