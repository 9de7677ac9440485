"""Where a task writes: what it sees decides, and what it writes on its own disk does not stay there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.stores.bulk import JOB
from tests.unit.tickwheel.spark.scheduling.test_spark_scheduling import StoreBroker, adopt, batches, rows
from tickwheel.arrow.jobs import Run, Stored
from tickwheel.arrow.network import Flights
from tickwheel.errors import BadJob, DiskFull
from tickwheel.spark.errors import ScheduleFailed
from tickwheel.spark.scheduling.options import Options
from tickwheel.spark.scheduling.places import ByFlight, InPlace, is_seen, mark
from tickwheel.spark.scheduling.tasks import FlightBroker, RemoteBroker, Task, Work
from tickwheel.spark.scheduling.ways import discard
from timerlog.store import Store

RUN = "a" * 32


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    yield opened
    opened.close()


@pytest.fixture
def work(store: Store, tmp_path: Path) -> Work:
    """Of a task that may put, if need be."""
    directory = tmp_path / "staged"
    directory.mkdir()
    store.topics.create("t", {"priority": 9}, 0, NOW_MS)
    plan = store.bulk.plan(JOB, ["t"], NOW_MS)
    flights = Flights("grpc://127.0.0.1:1", token="")
    return Work(Options(topic="t", run_bytes=100_000), plan, directory, RUN, flights)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk of a worker."""
    found = tmp_path / "local"
    found.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/nowhere,{found}")
    return found


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch, work: Work, local: Path) -> list[int]:
    """Puts go into the directory itself; how many files were on the worker's disk with each of them."""
    found: list[int] = []

    def put(run: Run, path: Path, name: str) -> Stored:
        assert work.directory is not None
        found.append(len([*local.rglob("*.log")]))
        content = path.read_bytes()
        (work.directory / name).write_bytes(content)
        return Stored(len(content), 0)

    monkeypatch.setattr(Run, "put", put)
    return found


def test_what_a_task_sees_decides(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert work.directory is not None
    assert isinstance(work.place(), ByFlight), "a directory of the same name is not that of the job"
    mark(work.directory, RUN)
    assert isinstance(work.place(), InPlace)
    for other in (tmp_path / "nowhere", None):
        assert isinstance(replace(work, directory=other).place(), ByFlight)
    assert isinstance(replace(work, run="b" * 32).place(), ByFlight)
    assert isinstance(replace(work, flights=None, run="b" * 32).place(), InPlace), "there is no other way"
    assert isinstance(work.broker(work.place()), RemoteBroker)
    assert isinstance(work.broker(replace(work, directory=None).place()), FlightBroker)
    # The broker takes files of its own user.
    monkeypatch.setattr(os, "geteuid", lambda: 4_711)
    assert isinstance(work.place(), ByFlight)
    assert is_seen(work.directory, has_flight=False)
    assert not is_seen(work.directory, has_flight=True)
    assert not is_seen(tmp_path / "nowhere", has_flight=False)
    discard(work.directory, RUN)
    assert not work.directory.exists(), "what stands for the run goes with it"


def test_files_are_put_while_others_are_written(
    store: Store, work: Work, local: Path, most: list[int]
) -> None:
    task = Task(work, StoreBroker(store), attempt=7, partition=0)
    report = task.run(batches(*(rows(1_000, first) for first in range(0, 9_000, 1_000))))
    assert report.staged == "flight"
    assert len(most) == len(report.segments) > 2
    assert max(most) <= 4, "a worker's disk has few of them"
    assert list(local.iterdir()) == []
    assert work.directory is not None
    assert adopt(store, work, report) == 9_000


@pytest.mark.parametrize(
    ("error", "code"), [(DiskFull(), "disk_full"), (BadJob(), "bad_job"), (OSError(errno.EIO, "broken"), "")]
)
def test_a_put_that_fails_ends_the_task(
    store: Store, work: Work, local: Path, error: Exception, code: str
) -> None:
    task = Task(work, StoreBroker(store), attempt=7, partition=0)
    with mock.patch.object(Run, "put", side_effect=error), pytest.raises(ScheduleFailed) as caught:
        task.run(batches(*(rows(1_000, first) for first in range(0, 9_000, 1_000))))
    assert caught.value.code == (code or ScheduleFailed.code)
    assert list(local.iterdir()) == []


def test_the_disk_of_a_worker_is_full(store: Store, work: Work, local: Path) -> None:
    def full(*args: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space")

    task = Task(work, StoreBroker(store), attempt=7, partition=0)
    with (
        mock.patch("timerlog.files.paced_file.PacedFile.write", full),
        pytest.raises(ScheduleFailed) as caught,
    ):
        task.run(batches(rows(1_000)))
    assert caught.value.code == "disk_full"
    assert str(local) in caught.value.message
    assert "spark.local.dir" in caught.value.advice
    assert list(local.iterdir()) == []
