"""What jobs of bulk scheduling leave: who clears it away and when, and what is not given because the disk is small."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import trio
import trio.testing

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.stores.bulk import JOB, columns, job
from tests.unit.broker.requests.test_core import Client
from tickwheel.protocol.bodies.bulk import PlanJob, ReserveIds
from tickwheel.protocol.errors import BadJob as JobDamaged
from tickwheel.protocol.errors import DiskFull
from tickwheel_broker.background.bulk_jobs import KEEP_S, SWEEP_S, old_jobs
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.group_commit import InPlace, SyncRunner, SyncThread
from timerlog.errors import BadJob
from timerlog.files.mapped_file import Region
from timerlog.store import Store

OTHER = "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path, SMALL, NOW_MS)
    yield opened
    opened.close(clean=False)


def age(directory: Path, by_s: float) -> None:
    """As if nothing had happened in it for so long."""
    for path in (*directory.iterdir(), directory):
        os.utime(path, (time.time() - by_s,) * 2)


def leave(staging: Path, name: str, age_s: float) -> Path:
    directory = staging / name
    directory.mkdir(parents=True)
    (directory / "run-0-0.log").write_bytes(b"x")
    age(directory, age_s)
    return directory


def make_broker(
    store: Store, directory: Path, nursery: trio.Nursery, runner: SyncRunner | None = None
) -> Broker:
    return Broker(
        settings=Settings(data_dir=str(directory)),
        store=store,
        clock=TrioClock(NOW_MS),
        runner=runner or InPlace(),
        nursery=nursery,
    )


def test_what_is_old(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    assert old_jobs(staging, time.time()) == []
    old, young = leave(staging, JOB, 1_000), leave(staging, OTHER, 1_000)
    (young / "run-1-0.log").touch()
    os.utime(young / "run-1-0.log", (time.time(),) * 2)
    leave(staging, "not-a-job", 1_000)
    (staging / ("0" * 32)).write_bytes(b"a file")
    assert old_jobs(staging, time.time() - 500) == [old]
    assert old_jobs(staging, time.time() - 2_000) == []


async def test_nobodys_jobs_go_after_a_day(
    store: Store, tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    staging = tmp_path / "staging"
    at_start = leave(staging, JOB, KEEP_S + 60)
    later = leave(staging, OTHER, KEEP_S - 60)
    async with trio.open_nursery() as nursery:
        broker = make_broker(store, tmp_path, nursery)
        nursery.start_soon(broker.bulk_jobs.sweep)
        await trio.sleep(SWEEP_S / 2)
        assert not at_start.exists()
        assert later.exists()
        age(later, KEEP_S + 60)
        await trio.sleep(SWEEP_S)
        assert not later.exists()
        nursery.cancel_scope.cancel()
    assert [record.message for record in caplog.records].count("a job that nobody finished was removed") == 2


async def test_a_job_that_is_being_taken_in_is_wanted(
    store: Store, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    staging = tmp_path / "staging"
    job(store, staging / JOB, [("t", columns([NOW_MS] * 10))], NOW_MS)
    age(staging / JOB, 2 * KEEP_S)
    async with trio.open_nursery() as nursery:
        broker = make_broker(store, tmp_path, nursery)
        adoption = broker.bulk_jobs.begin(JOB, 0)
        nursery.start_soon(broker.bulk_jobs.sweep)
        await trio.sleep(SWEEP_S / 2)
        assert (staging / JOB).exists()
        nursery.start_soon(broker.commit.run)
        nursery.start_soon(broker.bulk_jobs.run)
        done = await broker.bulk_jobs.wait(adoption, 60_000)
        assert (done.is_done, done.messages) == (True, 10)
        assert not (staging / JOB).exists()
        nursery.cancel_scope.cancel()


async def test_with_threads_what_a_job_made_dirty_is_written_back_in_the_end(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And segments are checked beside the keys of others."""
    written: list[tuple[Region, int, int]] = []
    monkeypatch.setattr(Region, "write_back", lambda *about: written.append(about))
    parts = [("t", columns([NOW_MS] * 6_000, keys=[b"%c%d" % (p, k) for k in range(6_000)])) for p in b"xyz"]
    job(store, tmp_path / "staging" / JOB, parts, NOW_MS)
    with SyncThread() as thread:
        async with trio.open_nursery() as nursery:
            broker = make_broker(store, tmp_path, nursery, thread)
            nursery.start_soon(broker.commit.run)
            nursery.start_soon(broker.bulk_jobs.run)
            with trio.fail_after(60):
                done = await broker.bulk_jobs.wait(broker.bulk_jobs.begin(JOB, 0), 60_000)
                while store.tables.keys.region not in {region for region, _, _ in written}:
                    await trio.sleep(0.01)
            assert (done.is_done, done.messages) == (True, 18_000)
            nursery.cancel_scope.cancel()
    rows = store.tables.messages
    assert (rows.region, *rows.span(1, 18_001)) in written
    assert all(store.select.find("t", ["x5", "y5999", "z0"]))


async def test_a_damaged_job_ends_while_a_thread_looks_ahead(store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "staging" / JOB
    parts = [("t", columns([NOW_MS] * 6_000, keys=[b"%c%d" % (p, k) for k in range(6_000)])) for p in b"xyz"]
    job(store, directory, parts, NOW_MS)
    path = sorted(directory.glob("*.log"))[1]
    path.write_bytes(path.read_bytes().replace(b"y3000", b"y3OOO"))
    before = store.look.state_hash()
    with SyncThread() as thread:
        async with trio.open_nursery() as nursery:
            broker = make_broker(store, tmp_path, nursery, thread)
            nursery.start_soon(broker.commit.run)
            nursery.start_soon(broker.bulk_jobs.run)
            with trio.fail_after(60), pytest.raises(JobDamaged, match="damaged"):
                await broker.bulk_jobs.wait(broker.bulk_jobs.begin(JOB, 0), 60_000)
            nursery.cancel_scope.cancel()
    assert store.look.state_hash() == before


@pytest.mark.parametrize("when", ["sweep", "adopted"])
async def test_what_cannot_be_removed_is_logged(
    store: Store,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    staging = tmp_path / "staging"
    job(store, staging / JOB, [("t", columns([NOW_MS] * 10))], NOW_MS)
    if when == "sweep":
        age(staging / JOB, 2 * KEEP_S)
    failing = mock.patch("shutil.rmtree", side_effect=PermissionError(13, "not allowed"))
    async with trio.open_nursery() as nursery:
        broker = make_broker(store, tmp_path, nursery)
        with failing:
            if when == "sweep":
                nursery.start_soon(broker.bulk_jobs.sweep)
                await trio.sleep(1)
            else:
                nursery.start_soon(broker.commit.run)
                nursery.start_soon(broker.bulk_jobs.run)
                done = await broker.bulk_jobs.wait(broker.bulk_jobs.begin(JOB, 0), 60_000)
                assert done.messages == 10, "the job counts all the same"
        nursery.cancel_scope.cancel()
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told.message in ("a job's files cannot be removed", "a job that was taken in left files behind")


async def test_a_plan_makes_an_old_directory_young(store: Store, tmp_path: Path) -> None:
    directory = leave(tmp_path / "staging", JOB, 2 * KEEP_S)
    async with trio.open_nursery() as nursery:
        client = Client(make_broker(store, tmp_path, nursery))
        client.ask(PlanJob(job=JOB, topics=[]))
        (tmp_path / "now").touch()  # what the file system's clock says: a test may run at another date
        assert old_jobs(directory.parent, (tmp_path / "now").stat().st_mtime - KEEP_S) == []
        nursery.cancel_scope.cancel()


async def test_numbers_are_refused_when_their_rows_would_fill_the_disk(store: Store, tmp_path: Path) -> None:
    row_bytes = store.tables.messages.dtype.itemsize
    async with trio.open_nursery() as nursery:
        client = Client(make_broker(store, tmp_path, nursery))
        before = store.tables.next_id
        disk = SimpleNamespace(f_bavail=100 + 5, f_blocks=100, f_frsize=row_bytes)
        with mock.patch("os.statvfs", return_value=disk):
            with pytest.raises(DiskFull, match="nearly full"):
                client.ask(ReserveIds(count=101))
            assert store.tables.next_id == before
            client.ask(ReserveIds(count=100))
        assert store.tables.next_id == before + 100
        nursery.cancel_scope.cancel()


async def test_a_large_disk_keeps_what_is_needed_and_no_share_of_it(store: Store, tmp_path: Path) -> None:
    """6.5 GB free of 252 GB are enough for a million messages."""
    row_bytes = store.tables.messages.dtype.itemsize
    async with trio.open_nursery() as nursery:
        client = Client(make_broker(store, tmp_path, nursery))
        disk = SimpleNamespace(f_bavail=6_500_000, f_blocks=252_000_000, f_frsize=1_000)
        with mock.patch("os.statvfs", return_value=disk):
            client.ask(ReserveIds(count=1_000_000))
            told = r"6,500,000,000 are free, and 2\d\d,\d{3},\d{3} are kept"
            with pytest.raises(DiskFull, match=told):
                client.ask(ReserveIds(count=6_400_000_000 // row_bytes))
        nursery.cancel_scope.cancel()


def test_a_job_of_too_many_files_is_refused(store: Store, tmp_path: Path) -> None:
    staged = tmp_path / "staging" / JOB
    job(store, staged, [("t", columns([NOW_MS]))] * 3, NOW_MS)
    with (
        mock.patch("timerlog.bulk.job_files.MAX_SEGMENTS", 2),
        pytest.raises(BadJob, match="the job has 3 files, and 2"),
    ):
        store.adopt(staged, 0, NOW_MS)
    assert store.adopt(staged, 0, NOW_MS).messages == 3
