"""Bulk scheduling without Spark: what a task writes and tells, what a failed one leaves, what the driver then makes."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.stores.bulk import JOB
from tickwheel import AdoptResult
from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.errors import DiskFull
from tickwheel.spark.errors import ScheduleFailed, StagingError
from tickwheel.spark.scheduling import Options, guess_format
from tickwheel.spark.scheduling.driver import job_id, with_duplicates
from tickwheel.spark.scheduling.rejects import write_rejects
from tickwheel.spark.scheduling.report import KEPT_SAMPLES, TASK_SAMPLES, TaskReport, merged
from tickwheel.spark.scheduling.result import ScheduleResult
from tickwheel.spark.scheduling.tasks import Task, Work
from tickwheel.spark.scheduling.ways import discard
from tickwheel.spark.storage import DirectoryFiles
from timerlog.bulk.write import MANIFEST, Manifest, TopicPlan, write_manifest
from timerlog.store import Store

LATER_MS = NOW_MS + 60_000


@dataclass
class StoreBroker:
    """Asks a store directly."""

    store: Store
    asked: list[str] = field(default_factory=list)

    def reserve_ids(self, count: int) -> int:
        return self.store.bulk.reserve_ids(count)

    def topics(self, names: Sequence[str]) -> dict[str, TopicPlan]:
        self.asked += names
        return self.store.bulk.plan(JOB, names, NOW_MS).topics


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close()


@pytest.fixture
def work(store: Store, tmp_path: Path) -> Work:
    directory = tmp_path / "staged"
    directory.mkdir()
    store.topics.create("t", {"priority": 9}, 0, NOW_MS)
    plan = store.bulk.plan(JOB, ["t"], NOW_MS)
    return Work(Options(topic="t", run_bytes=100_000), plan, directory, "run")


def batches(*parts: dict[str, Any]) -> Iterator[Any]:
    for part in parts:
        yield pa.RecordBatch.from_pydict(part)


def rows(count: int, first: int = 0, **more: Any) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "deliver_at": [LATER_MS - n % 97 for n in numbers],
        "body": [b"body %d" % n for n in numbers],
        "key": [f"k{n}" for n in numbers],
    } | more


def adopt(store: Store, work: Work, *reports: TaskReport) -> int:
    write_manifest(Manifest(plan=work.plan, segments=merged(reports).segments), work.directory)
    return store.adopt(work.directory, 0, NOW_MS).messages


def test_a_task_writes_runs_that_a_store_takes_in(store: Store, work: Work) -> None:
    task = Task(work, StoreBroker(store), attempt=7, partition=0)
    report = task.run(batches(*(rows(1_000, first) for first in range(0, 5_000, 1_000))))
    assert report.rows == sum(one.messages for one in report.segments) == 5_000
    assert len({one.file.split("-")[2] for one in report.segments}) > 1, "several runs"
    assert all(one.file.startswith("run-7-") for one in report.segments)
    assert adopt(store, work, report) == 5_000
    ids = store.select.find("t", [f"k{n}" for n in range(5_000)])
    assert len(set(ids)) == 5_000
    assert {int(store.tables.rows[i]["deliver_at_ms"]) for i in ids} == {LATER_MS - n for n in range(97)}


def test_topics_priorities_headers_and_ordering_keys(store: Store, work: Work) -> None:
    store.topics.create("sharded", {}, 4, NOW_MS)
    broker = StoreBroker(store)
    part = rows(
        6,
        topic=["sharded", None, "fresh", "sharded", None, "not a name"],
        priority=pa.array([1, None, 3, None, 5, 6], pa.int32()),
        headers=['{"a":"b"}', None, "{}", None, None, None],
        order_key=pa.array([None, "o", None, "o", None, None], pa.string()),
    )
    report = Task(work, broker, 0, 0).run(batches(part, part | {"key": [f"x{n}" for n in range(6)]}))
    assert broker.asked == ["sharded", "fresh"], "once, and not for bad rows"
    assert report.counts == {"bad_topic": 2}
    assert len(report.segments) == 1, "topics share a file"
    assert adopt(store, work, report) == 10
    assert {one["name"]: one["scheduled"] for one in store.look.topics() if not one.get("parent")}[
        "fresh"
    ] == 2
    (first,) = store.select.find("sharded", ["k0"])
    (ordered,) = store.select.find("t", ["k1"])
    assert int(store.tables.rows[first]["priority"]) == 1
    assert int(store.tables.rows[ordered]["priority"]) == 50, "an ordering key has one lane"
    given, usual = store.select.find("t", ["k4", "x4"])
    assert int(store.tables.rows[given]["priority"]) == int(store.tables.rows[usual]["priority"]) == 5


def test_who_names_no_priority_has_that_of_the_topic(store: Store, work: Work) -> None:
    part = rows(3, priority=pa.array([None, 0, None], pa.int32()), topic=[None, "t", "other"])
    report = Task(work, StoreBroker(store), 0, 0).run(batches(part))
    assert adopt(store, work, report) == 3
    found = [store.select.find(topic, [key])[0] for topic, key in (("t", "k0"), ("t", "k1"), ("other", "k2"))]
    assert [int(store.tables.rows[i]["priority"]) for i in found] == [9, 0, 50]


def test_bad_rows_are_counted_with_their_places(store: Store, work: Work) -> None:
    limit = work.plan.topics["t"].max_body_bytes
    bad = rows(100, body=[None if n % 2 else b"x" for n in range(100)])
    large = rows(3, 100, body=[b"x", bytes(limit), bytes(limit + 1)])
    report = Task(work, StoreBroker(store), 0, partition=3).run(batches(bad, large))
    assert report.counts == {"no_body": 50, "body_too_large": 1}
    assert sum(one.messages for one in report.segments) == 52
    assert len(report.samples) == TASK_SAMPLES + 1
    assert [one.row for one in report.samples[:3]] == [1, 3, 5]
    last = report.samples[-1]
    assert (last.partition, last.row, last.key, last.topic) == (3, 102, "k102", "t")


def test_headers_are_judged_by_what_the_broker_takes(store: Store, work: Work) -> None:
    """An older broker takes 16 KiB."""
    headers = ['{"h":"%s"}' % ("x" * count) for count in (16_378, 16_379, 32_762, 32_763)]
    assert len(msgspec.msgpack.encode(msgspec.json.decode(headers[0]))) == 16_384
    report = Task(work, StoreBroker(store), 0, 0).run(batches(rows(4, headers=headers)))
    assert report.counts == {"headers_too_large": 1}
    older = msgspec.structs.replace(work.plan, max_headers_bytes=16_384)
    task = Task(replace(work, plan=older), StoreBroker(store), 1, 0)
    assert task.run(batches(rows(4, 4, headers=headers))).counts == {"headers_too_large": 3}


def test_a_task_without_good_rows_asks_for_nothing(store: Store, work: Work) -> None:
    before = store.tables.next_id
    report = Task(work, StoreBroker(store), 0, 0).run(
        batches(rows(3, body=pa.array([None] * 3, pa.binary())))
    )
    assert (report.segments, report.rows) == ([], 3)
    assert Task(work, StoreBroker(store), 1, 0).run(iter([])).rows == 0
    assert store.tables.next_id == before
    assert list(work.directory.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (OSError(errno.ENOSPC, "no space"), ScheduleFailed, "disk_full"),
        (PermissionError(errno.EACCES, "not allowed"), StagingError, "staging"),
        (DiskFull(), ScheduleFailed, "disk_full"),
        (RuntimeError("a defect"), RuntimeError, None),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_what_a_failed_attempt_wrote_goes(
    store: Store, work: Work, error: BaseException, kind: type[BaseException], code: str | None
) -> None:
    broker = StoreBroker(store)
    other = Task(work, broker, 1, 0).run(batches(rows(10)))
    reserve = mock.Mock(side_effect=[store.bulk.reserve_ids(3_000), error])
    with mock.patch.object(broker, "reserve_ids", reserve), pytest.raises(kind) as caught:
        Task(work, broker, 2, 0).run(batches(rows(3_000, 100), rows(3_000, 3_100)))
    assert getattr(caught.value, "code", None) == code
    assert [path.name for path in work.directory.iterdir()] == [other.segments[0].file]


def test_reports_travel_and_add_up() -> None:
    one = TaskReport(rows=5, counts={"no_body": 2})
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=TaskReport)
    total = merged([back, TaskReport(rows=3, counts={"no_body": 1, "bad_key": 1}), TaskReport()])
    assert (total.rows, total.counts) == (8, {"no_body": 3, "bad_key": 1})


def test_samples_are_bounded(store: Store, work: Work) -> None:
    none = rows(50, body=pa.array([None] * 50, pa.binary()))
    reports = [Task(work, StoreBroker(store), n, n).run(batches(none)) for n in range(30)]
    total = merged(reports)
    assert total.counts == {"no_body": 1_500}
    assert len(total.samples) == KEPT_SAMPLES


def test_duplicates_are_told_apart(store: Store, work: Work, tmp_path: Path) -> None:
    report = Task(work, StoreBroker(store), 0, 0).run(batches(rows(10)))
    first = report.segments[0].first_id
    found = AdoptResult(7, 3, [("a", "t", first + 2), ("b", "t", first + 10)], False, inside=1)
    before = ScheduleResult("j", rejected=4, counts={"no_body": 4}, rows=14)
    result = with_duplicates(before, found, report.segments)
    assert result.counts == {"no_body": 4, "key_twice": 1, "key_taken": 2}
    assert result.rejected == 7
    assert [(one.reason, one.key) for one in result.samples] == [("key_twice", "a"), ("key_taken", "b")]
    assert "2 × the key is that of a message that the broker has" in result.summary()
    table = pq.read_table(
        write_rejects(replace(result, job=JOB), DirectoryFiles(tmp_path / "deep" / "rejects"))
    ).to_pylist()
    assert [(row["reason"], row["rows"], row["earlier_id"]) for row in table] == [
        ("key_twice", 1, first + 2),
        ("key_taken", 2, first + 10),
    ]
    assert [path.name for path in (tmp_path / "deep" / "rejects").iterdir()] == [f"rejects-{JOB}.parquet"]


def test_a_run_removes_only_what_is_its_own(store: Store, work: Work) -> None:
    mine = Task(work, StoreBroker(store), 0, 0).run(batches(rows(5)))
    other = Task(replace(work, run="other"), StoreBroker(store), 0, 0).run(batches(rows(5, 5)))
    write_manifest(Manifest(plan=work.plan, segments=other.segments), work.directory)
    discard(work.directory, "run")
    assert {path.name for path in work.directory.iterdir()} == {MANIFEST, other.segments[0].file}
    assert mine.segments[0].file.startswith("run-")
    discard(work.directory, "other")
    assert not work.directory.exists()
    discard(work.directory, "other")  # it is gone: nothing to do


def test_what_a_task_writes_while_its_run_is_discarded_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "run-0-0.log").touch()
    late, unlink = ["run-1-1.log", "run-1-0.log"], Path.unlink

    def and_one_comes(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if late:
            (directory / late.pop()).touch()

    monkeypatch.setattr(Path, "unlink", and_one_comes)
    discard(directory, "run")
    assert not late
    assert not directory.exists()


def test_names_of_jobs() -> None:
    assert job_id(JOB) == JOB
    assert job_id("monday") == job_id("monday") != job_id("tuesday")
    assert job_id(None) != job_id(None)
    assert all(len(bytes.fromhex(job_id(name))) == 16 for name in (None, "x", JOB, JOB.upper()))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/reminders.parquet", "parquet"),
        ("reminders.parquet/", "parquet"),
        ("s3://bucket/x.CSV.gz", "csv"),
        ("x.jsonl", "json"),
        ("x.snappy.parquet", "parquet"),
    ],
)
def test_formats_are_guessed(path: str, kind: str) -> None:
    assert guess_format(path) == kind


def test_a_format_that_nobody_can_guess() -> None:
    for path in ("reminders", "csv", "x.txt", "x.gz"):
        with pytest.raises(SourceError, match="does not say its format"):
            guess_format(path)


@pytest.mark.parametrize(
    "wrong",
    [{"topic": "a b"}, {"max_rejects": -1}, {"run_bytes": 1}, {"job": " "}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(SourceError):
        Options(**wrong).check()
