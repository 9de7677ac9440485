"""``spark.read.format("tickwheel")``, on real Spark: all columns, filters, several directories, a broker at work."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import tickwheel
from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.processes.daemon_harness import Daemon
from tests.support.spark.rows import rows_of
from tests.support.stores.queried import expected_rows, send_all
from tests.support.stores.reader import Reader
from tickwheel.spark import SourceError, conditions, understood
from timerlog.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def fill(directory: Path) -> list[dict[str, Any]]:
    """A directory with 300 messages in many states; returns what its tables say, row by row."""
    store = Store.open(directory, SMALL, NOW_MS)
    orders, lone = store.topics.open("orders", NOW_MS), store.topics.open("lone", NOW_MS)
    billing, _ = Reader(store, orders, "billing"), Reader(store, orders, "audit")
    for topic, count in ((orders, 200), (lone, 100)):
        numbers = range(count)
        send_all(
            store=store,
            topic_id=topic,
            bodies=[b"body %d" % n for n in numbers],
            times_ms=[NOW_MS + 100 * n for n in numbers],
            keys=[b"key-%d" % n if n % 3 else b"" for n in numbers],
            headers=[b"\x81\xa1a\x01" if n % 2 else b"" for n in numbers],
            now_ms=NOW_MS,
        )
    store.change.cancel([150, 151], NOW_MS)
    pump(store, NOW_MS + 5_000)
    receipts = billing.fetch(30, now_ms=NOW_MS + 5_000)
    billing.ack(*receipts[:20])
    billing.nack(*receipts[20:22], delay_ms=900_000_000_000, error="no")
    # States are told by the clock of who asks, the real one here: it must not come to the end of these leases.
    billing.extend(*receipts[22:], until_ms=NOW_MS + 900_000_000_000)
    expected = expected_rows(store, NOW_MS + 5_000)
    store.close()
    return expected


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("read") / "data"
    return directory, fill(directory)


def messages(spark: SparkSession, *directories: Path, **options: Any) -> DataFrame:
    return spark.read.format("tickwheel").options(**options).load([str(one) for one in directories])


def test_every_row_and_column(spark: SparkSession, filled: tuple[Path, list[dict[str, Any]]]) -> None:
    directory, expected = filled
    found = rows_of(messages(spark, directory, rowsPerPartition=70))
    assert len(found) == len(expected) == 500
    table = [{name: row[name] for name in expected[0]} for row in found]
    by = lambda row: (row["id"], row["group"] or "")  # noqa: E731
    assert sorted(table, key=by) == sorted(expected, key=by)
    for row in found:
        number = row["id"] - 1 - 200 * (row["topic"] == "lone")
        assert row["body"] == b"body %d" % number
        assert row["key"] == (f"key-{number}" if number % 3 else None)
        assert row["headers"] == ('{"a":1}' if number % 2 else None)
        assert (row["order_key"], row["shard"], row["dead_reason"]) == (None, None, None)
        assert (row["body_bytes"], row["directory"]) == (len(row["body"]), str(directory))


def test_partitions_and_column_pruning(
    spark: SparkSession, filled: tuple[Path, list[dict[str, Any]]]
) -> None:
    directory, _ = filled
    frame = messages(spark, directory, rowsPerPartition=70, columns="state, id")
    assert frame.columns == ["state", "id"]
    assert frame.rdd.getNumPartitions() == 5
    assert frame.count() == 500
    assert frame.where("state = 'acked'").count() == 20


CASES = [
    (("state", "=", "acked"), "state = 'acked'"),
    (("state", "!=", "acked"), "state != 'acked'"),
    (("state", "in", ["waiting", "leased"]), "state in ('waiting', 'leased')"),
    (("group", "is null"), "`group` is null"),
    (("group", "=", "audit"), "`group` = 'audit'"),
    (("id", ">", 190), "id > 190"),
    (("id", "=", 7), "id = 7"),
    (("topic", "starts with", "lo"), "topic like 'lo%'"),
    (("key", "=", "key-7"), "key = 'key-7'"),
    (("key", "is null"), "key is null"),
    (("key", "not in", ["key-7", "key-8"]), "key not in ('key-7', 'key-8')"),
    (("deliver_at", ">=", "2030-03-17T17:46:45Z"), "deliver_at >= timestamp'2030-03-17T17:46:45Z'"),
    (("time_acked", "is not null"), "time_acked is not null"),
    (("time_next", "<", "2030-03-17T17:46:50+00:00"), "time_next < timestamp'2030-03-17T17:46:50Z'"),
    (("priority", "<=", 3), "priority <= 3"),
    (("attempts", ">", 0), "attempts > 0"),
    (("body_bytes", "<", 7), "body_bytes < 7"),
    (("headers", "is not null"), "headers is not null"),
]


@pytest.mark.parametrize(("condition", "sql"), CASES, ids=[sql for _, sql in CASES])
def test_what_is_filtered_here_is_what_spark_would_filter(
    spark: SparkSession, filled: tuple[Path, list[dict[str, Any]]], condition: Any, sql: str
) -> None:
    directory, _ = filled
    columns = "id,group,state"
    by_spark = rows_of(messages(spark, directory).where(sql).select("id", "group", "state"), "id", "group")
    by_option = messages(spark, directory, columns=columns, filters=conditions(condition))
    assert 0 < len(by_spark) < 500
    assert rows_of(by_option, "id", "group") == by_spark
    pushed = messages(spark, directory, pushFilters="true").where(sql).select("id", "group", "state")
    assert rows_of(pushed, "id", "group") == by_spark


def test_pushed_filters_reach_us_only_when_asked_for(
    spark: SparkSession, filled: tuple[Path, list[dict[str, Any]]]
) -> None:
    directory, _ = filled

    def scanned(frame: DataFrame) -> int:
        # Spark's own filter would be in the plan.
        plan = frame._jdf.queryExecution().executedPlan().toString()
        return plan.count("Filter (")

    assert scanned(messages(spark, directory).where("id > 190")) == 1
    assert scanned(messages(spark, directory, pushFilters="true").where("id > 190")) == 0
    two_filters = messages(spark, directory, pushFilters="true").where("id > 190 or id < 5")
    assert (scanned(two_filters), two_filters.select("id").distinct().count()) == (1, 114)


def test_one_frame_may_be_used_with_many_filters_at_once(
    spark: SparkSession, filled: tuple[Path, list[dict[str, Any]]]
) -> None:
    directory, _ = filled
    frame = messages(spark, directory).select("id").distinct()
    low, high = frame.where("id <= 10"), frame.where("id > 290")
    assert (low.count(), frame.count(), high.count(), frame.count()) == (10, 300, 10, 300)
    assert sorted(row.id for row in low.union(high).collect()) == [*range(1, 11), *range(291, 301)]


def test_several_directories(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b"):
        fill(tmp_path / name)
    frame = messages(spark, tmp_path / "a", tmp_path / "b")
    counted = {row["directory"]: row["count"] for row in frame.groupBy("directory").count().collect()}
    assert counted == {str(tmp_path / "a"): 500, str(tmp_path / "b"): 500}
    only = messages(
        spark, tmp_path / "a", tmp_path / "b", filters=conditions(("directory", "=", str(tmp_path / "b")))
    )
    assert (only.count(), only.select("directory").distinct().count()) == (500, 1)
    paths = json.dumps([str(tmp_path / "a"), str(tmp_path / "b")])
    assert spark.read.format("tickwheel").option("paths", paths).load().count() == 1_000


def test_shards_and_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        client.create_topic("split", shards=2)
        client.send_many("split", [b"x"] * 40, keys=[f"k{n}" for n in range(40)], delay_ms=3_600_000)
        client.create_topic("doomed", max_attempts=1)
        client.send_many("doomed", [b"y"] * 3)
        with client.subscribe("doomed") as subscription:
            for _ in range(3):
                message = subscription.receive(20)
                assert message is not None
                message.nack(error="the card is not valid")
    shards = messages(spark, tmp_path / "data").where("shard is not null").groupBy("shard").count()
    assert {row["shard"] for row in shards.collect()} == {"-80", "80-"}
    assert sum(row["count"] for row in shards.collect()) == 40
    letters = messages(spark, tmp_path / "data").where("topic = 'doomed.dead'").collect()
    assert [row.dead_reason for row in letters] == ["the card is not valid"] * 3
    assert messages(spark, tmp_path / "data", filters=conditions(("shard", "=", "-80"))).count() > 0


def test_an_empty_broker_gives_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    Store.open(tmp_path / "data", SMALL, NOW_MS).close()
    assert messages(spark, tmp_path / "data").collect() == []
    assert messages(spark, tmp_path / "data", table="events").count() == 0


def test_a_broker_at_work_is_read_without_asking_it(spark: SparkSession, tmp_path: Path) -> None:
    """What was acknowledged before is there, and each row that is there is whole."""
    with Daemon(tmp_path / "data") as daemon, tickwheel.sync.Client(daemon.url) as client:
        client.send_many("orders", [b"first"] * 1_000, keys=[f"a{n}" for n in range(1_000)])
        stop = threading.Event()

        def send() -> None:
            number = 0
            while not stop.is_set():
                keys = [f"b{number}-{n}" for n in range(100)]
                client.send_many("orders", [b"later %d" % number] * 100, keys=keys)
                number += 1

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(3):
                before = client.stats().messages
                found = messages(spark, tmp_path / "data", columns="id,key,body").collect()
                assert len(found) >= before
                assert [row.id for row in found] == list(range(1, len(found) + 1))
                assert all(row.key and row.body.startswith((b"first", b"later")) for row in found)
        finally:
            stop.set()
            sender.join()
        total = client.stats().messages
        assert messages(spark, tmp_path / "data").count() == total
        daemon.kill()
        # What was acknowledged is committed, also when nobody is there to say so.
        assert messages(spark, tmp_path / "data").count() == total


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "nothing"}, "no column 'nothing'"),
        ({"table": "queues"}, "no table 'queues'"),
        ({"committed": "perhaps"}, "perhaps"),
        ({"rowsPerPartition": "0"}, "rowsPerPartition"),
        ({"filters": '[["state", "~", 1]]'}, "no condition"),
    ],
)
def test_wrong_options_are_typed_errors(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        messages(spark, tmp_path, **options).collect()
    error = understood(caught.value)
    assert isinstance(error, SourceError)
    assert (error.code, message in error.message) == ("bad_source", True)


def test_a_wrong_directory_is_a_typed_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as caught:
        messages(spark, tmp_path).collect()
    error = understood(caught.value)
    assert isinstance(error, SourceError)
    assert "not a data directory" in error.message
