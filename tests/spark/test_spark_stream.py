"""``spark.readStream``: every event once, whatever is cut where, through restarts and purged positions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.spark.streaming import run_to_the_end
from tests.support.stores.far import FAR, begin
from tests.support.stores.purging import LATER_MS, mixed
from tests.support.stores.queried import send_all
from tests.support.stores.reader import Reader
from tickwheel.spark import PositionLost, SourceError, understood
from timerlog.readers.describe import describe_directory
from timerlog.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class World:
    """A store that lives on between two runs of a query, and where the query writes what it has read."""

    def __init__(self, spark: SparkSession, folder: Path, *names: str) -> None:
        self.spark, self.folder = spark, folder
        self.directories = [folder / name for name in names or ("data",)]
        self.stores = [Store.open(directory, SMALL, NOW_MS) for directory in self.directories]
        self.now_ms = NOW_MS

    def live(self, count: int, size_bytes: int = 10) -> None:
        """Sends, delivers and acks in each store; all of it is committed at the end."""
        for store in self.stores:
            topic_id = store.topics.open("orders", NOW_MS)
            reader = Reader(store, topic_id)
            none = [b""] * count
            for start in range(0, count, 3):
                part = min(3, count - start)
                bodies = [bytes(size_bytes)] * part
                send_all(
                    store=store,
                    topic_id=topic_id,
                    bodies=bodies,
                    times_ms=[self.now_ms] * part,
                    keys=none[:part],
                    headers=none[:part],
                    now_ms=self.now_ms,
                )
            pump(store, self.now_ms)
            receipts = reader.fetch(count, now_ms=self.now_ms + 5)
            reader.ack(*receipts[: len(receipts) // 2])
            store.sync()
        self.now_ms += 1_000

    def run(self, **options: Any) -> None:
        """One run of the query to the end of what is committed, from its checkpoint if it has one."""
        source = self.spark.readStream.format("tickwheel").option("table", "events").options(**options)
        stream = source.option("paths", json.dumps([str(one) for one in self.directories])).load()
        writer = stream.writeStream.format("parquet").option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        writer = writer.trigger(availableNow=True)
        self.batches = run_to_the_end(lambda: writer.start(str(self.folder / "out")))

    def seen(self) -> list[tuple[Any, ...]]:
        frame = self.spark.read.parquet(str(self.folder / "out"))
        names = ("directory", "position", "place", "event", "id", "group", "epoch")
        return sorted(tuple(row[name] for name in names) for row in frame.select(*names).collect())

    def there(self) -> list[tuple[Any, ...]]:
        """What the logs hold, by the batch reader, which has tests of its own."""
        source = self.spark.read.format("tickwheel").option("table", "events")
        frame = source.option("paths", json.dumps([str(one) for one in self.directories])).load()
        names = ("directory", "position", "place", "event", "id", "group", "epoch")
        return sorted(tuple(row[name] for name in names) for row in frame.select(*names).collect())

    def close(self) -> None:
        for store in self.stores:
            store.close()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Any:
    worlds: list[World] = []

    def make(*names: str) -> World:
        worlds.append(World(spark, tmp_path, *names))
        return worlds[-1]

    yield make
    for one in worlds:
        one.close()


def test_events_as_they_are(world: Any) -> None:
    here = world()
    here.live(20)
    here.run()
    assert here.seen() == here.there()
    assert Counter(row[3] for row in here.seen()) == {"sent": 20, "due": 20, "delivered": 20, "acked": 10}
    assert {row[4] for row in here.seen()} == set(range(1, 21))


def test_a_restart_goes_on_where_the_last_run_ended(world: Any) -> None:
    here = world("a", "b")
    here.live(12)
    here.run()
    first = here.seen()
    here.run()
    assert here.seen() == first == here.there()
    here.live(9)
    here.run()
    assert here.seen() == here.there()
    assert len(here.seen()) == 2 * (3 * 21 + 6 + 4)  # sent, due and delivered; acked in each run


@pytest.mark.parametrize("limit", [1, 25])
def test_batches_are_limited_and_lose_nothing(world: Any, limit: int) -> None:
    here = world("a", "b")
    here.live(6 if limit == 1 else 40)
    here.run(maxRowsPerTrigger=limit)
    assert here.seen() == here.there()
    assert len(here.batches) >= len(here.seen()) / max(limit, 40)
    assert len(here.batches) > 2


def test_it_reads_over_the_ends_of_segments_and_beyond_2_to_the_44th(
    world: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Rows, and offsets in the checkpoint; tests/unit/tickwheel/spark/ compares with a log that begins at 0."""
    begin(tmp_path / "data", FAR)
    here = world()
    here.live(450, size_bytes=16_000)
    half = describe_directory(here.directories[0], NOW_MS)
    here.run(maxRowsPerTrigger=500)
    here.live(5)
    here.run()
    end = describe_directory(here.directories[0], NOW_MS).end_position
    assert len(half.segments) == 2
    assert half.first_position > 1 << 44
    seen = here.seen()
    assert seen == here.there()
    assert {half.first_position <= row[1] < end for row in seen} == {True}
    assert {row[3] for row in seen if row[1] >= half.end_position} == {"sent", "due", "delivered", "acked"}
    assert sorted(row[4] for row in seen if row[3] == "sent") == list(range(1, 456))
    last = max((here.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (offset,) = json.loads(last.read_text().splitlines()[-1]).values()
    assert offset == end
    source = spark.read.format("tickwheel").option("columns", "id, body, state")
    found = source.load(str(here.directories[0])).orderBy("id").collect()
    assert [row["id"] for row in found] == list(range(1, 456))
    assert [len(row["body"]) for row in found] == [16_000] * 450 + [10] * 5
    assert Counter(row["state"] for row in found)["acked"] == len([row for row in seen if row[3] == "acked"])


def test_only_some_events_and_columns(world: Any, spark: SparkSession) -> None:
    here = world()
    here.live(20)
    here.run(events="acked,delivered", columns="position,place,event,id,group,epoch,directory,time")
    frame = spark.read.parquet(str(here.folder / "out"))
    assert Counter(row["event"] for row in frame.collect()) == {"acked": 10, "delivered": 20}
    assert frame.where("time is null").count() == 0


def test_starting_offsets(world: Any) -> None:
    here = world()
    here.live(5)
    end = describe_directory(here.directories[0], NOW_MS).end_position
    here.live(5)
    here.run(startingOffsets=str(end))
    assert here.seen() == [row for row in here.there() if row[1] >= end]
    assert len(here.seen()) > 10


def test_latest_reads_only_what_comes_then(world: Any) -> None:
    here = world()
    here.live(5)
    here.run(startingOffsets="latest")
    before = here.there()
    here.live(3)
    here.run(startingOffsets="latest")
    assert here.seen() == [row for row in here.there() if row not in before]
    assert here.seen() != []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_another_log_in_the_same_place(world: Any, fails: str) -> None:
    """As after a purge that went further than the query: what it would go on with is not there."""
    here = world()
    here.live(5)
    here.run()
    here.close()
    here.directories[0].rename(here.folder / "elsewhere")
    here.stores = [Store.open(here.directories[0], SMALL, NOW_MS)]
    here.live(4)
    if fails == "false":
        before = here.seen()
        here.run(failOnDataLoss="false")
        assert here.seen() == sorted(before + here.there())
        return
    with pytest.raises(StreamingQueryException) as caught:
        here.run()
    assert isinstance(understood(caught.value), PositionLost)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_purge_that_went_further_than_the_query(world: Any, tmp_path: Path, fails: str) -> None:
    here = world("none")
    here.close()
    here.stores, here.directories = [mixed(tmp_path / "data")], [tmp_path / "data"]
    here.run()
    before, position = here.seen(), describe_directory(here.directories[0], NOW_MS).end_position
    assert before == here.there()
    here.stores[0].purge(LATER_MS)
    here.live(4)
    assert describe_directory(here.directories[0], NOW_MS).first_position > position
    if fails == "false":
        here.run(failOnDataLoss="false")
        assert here.seen() == sorted(before + here.there())
        return
    with pytest.raises(StreamingQueryException) as caught:
        here.run()
    error = understood(caught.value)
    assert isinstance(error, PositionLost)
    assert "was purged" in error.message
    assert "startingOffsets=earliest" in error.message


def test_a_position_that_is_not_there(world: Any) -> None:
    here = world()
    here.live(5)
    with pytest.raises(StreamingQueryException) as caught:
        here.run(startingOffsets="123456789")
    error = understood(caught.value)
    assert isinstance(error, PositionLost)
    assert "committed" in error.message


def test_messages_are_no_stream(world: Any, spark: SparkSession) -> None:
    here = world()
    stream = spark.readStream.format("tickwheel").load(str(here.directories[0]))
    query = stream.writeStream.format("memory").queryName("none").trigger(availableNow=True)
    with pytest.raises(Exception, match="Only events") as caught:
        query.start().awaitTermination()
    assert isinstance(understood(caught.value), SourceError)


def test_a_moved_directory_is_the_same_log(world: Any) -> None:
    here = world()
    here.live(5)
    here.run()
    here.close()
    here.directories[0].rename(here.folder / "moved")
    here.directories = [here.folder / "moved"]
    here.stores = [Store.open(here.directories[0], SMALL, NOW_MS)]
    here.live(4)
    here.run()
    without_place = [row[1:] for row in here.seen()]
    assert sorted(without_place) == sorted(row[1:] for row in here.there())
