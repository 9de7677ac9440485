"""The spare: what a full disk still has for purging, and for nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, content, fill, mixed
from timerlog.commitlog.log import ALLOCATION_STEP_BYTES
from timerlog.engine.produce import Stop
from timerlog.errors import DiskFull
from timerlog.files.disk import FileDisk, FileSegment
from timerlog.files.held_space import SPARE_BYTES as SPARE_BYTES
from timerlog.files.held_space import Spare
from timerlog.layout import MessageState
from timerlog.settings import StoreSettings
from timerlog.store import Store

MIB = 1 << 20


def used_bytes(directory: Path) -> int:
    files = [*(directory / "commitlog").iterdir(), directory / "spare"]
    return sum(path.stat().st_size for path in files if path.exists())


@contextmanager
def full_disk(directory: Path, free_bytes: int = 0) -> Iterator[None]:
    """A disk on which log and spare may take no more than they have now, and so much more."""
    capacity_bytes = used_bytes(directory) + free_bytes
    allocate = FileSegment.allocate

    def limited(file: FileSegment, end: int) -> None:
        if used_bytes(directory) + max(0, end - file.size_bytes) > capacity_bytes:
            raise DiskFull("full")
        allocate(file, end)

    with mock.patch.object(FileSegment, "allocate", limited):
        yield


def with_spare(directory: Path) -> Store:
    """Several segments with much that is done, and a spare."""
    store = mixed(directory)
    store.purge(NOW_MS)  # what is acked is not old enough, so little goes; it fills the spare
    return store


def test_it_is_filled_and_lent_by_the_block(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    spare = Spare(disk)
    assert spare.size_bytes == 0
    assert not spare.lend(1)
    spare.cover(SPARE_BYTES)
    path = tmp_path / "spare"
    assert path.stat().st_size == spare.size_bytes == SPARE_BYTES
    assert path.stat().st_blocks * 512 >= SPARE_BYTES, "it is no hole"
    assert spare.lend(MIB + 1)
    left = path.stat().st_size
    assert left == spare.size_bytes
    assert left % 4_096 == 0
    assert SPARE_BYTES - 2 * MIB < left < SPARE_BYTES - MIB - 1
    assert not spare.lend(left)
    assert path.stat().st_size == left, "half a loan is of no use"
    assert Spare(disk).size_bytes == left
    spare.cover(SPARE_BYTES)
    assert path.stat().st_size == SPARE_BYTES


def test_it_grows_with_the_log_as_far_as_a_purge_needs_it(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(), NOW_MS)
    store.purge(NOW_MS)
    assert store.spare.size_bytes >= store.log.disk_bytes()
    idle_bytes = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())
    assert idle_bytes <= 9 * MIB, "an empty store is small"
    topic_id, sizes = store.topics.open("t", NOW_MS), [store.log.disk_bytes()]
    while sizes[-1] < 40 * MIB:
        assert store.produce.ingest(send(topic_id, [bytes(10_000)] * 50), NOW_MS).stop is not Stop.DISK_FULL
        assert store.spare.size_bytes >= min(SPARE_BYTES, store.log.disk_bytes())
        if store.log.disk_bytes() > sizes[-1]:
            sizes.append(store.log.disk_bytes())
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    assert steps == sorted(steps)
    assert steps[-1] == ALLOCATION_STEP_BYTES
    store.close()


def test_what_a_full_disk_did_not_give_is_given_back(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    spare = Spare(disk)
    with full_disk(tmp_path, MIB):
        spare.cover(SPARE_BYTES)
    assert (spare.size_bytes, (tmp_path / "spare").stat().st_size) == (0, 0)


def test_a_purge_on_a_full_disk(tmp_path: Path) -> None:
    store = with_spare(tmp_path)
    segments, before = store.log.segments, content(store)
    needed = {i: v for i, v in before.items() if v[1] == MessageState.SCHEDULED}
    with full_disk(tmp_path):
        while store.produce.ingest(send(1, [bytes(1_000)] * 50), NOW_MS).stop is not Stop.DISK_FULL:
            pass
        store.sync()
        report = store.purge(LATER_MS)
        assert report.segments > 0
        assert report.moved_messages >= len(needed)
        assert not set(store.log.segments) & set(segments[:-1])
        after = content(store)
        assert {i: after[i] for i in needed} == needed
        assert store.spare.size_bytes >= min(SPARE_BYTES, store.log.disk_bytes()), (
            "it is there for the next time"
        )
        assert fill(store, 1, [b"new-%d" % number for number in range(1_000)], LATER_MS * 2)
    store.sync()
    state = store.look.state_hash()
    store.close(clean=False)
    store = Store.open(tmp_path, SMALL, LATER_MS)
    assert store.look.state_hash() == state
    store.close()


def test_the_segment_that_is_written_can_go_too(tmp_path: Path) -> None:
    store = with_spare(tmp_path)
    store.purge(LATER_MS)
    topic = store.tables.topic_ids["a"]
    fill(store, topic, [b"gone-%d" % number for number in range(1_000)], LATER_MS * 2)
    store.change.cancel(range(store.tables.next_id - 1_000, store.tables.next_id), NOW_MS)
    store.sync()
    (segment,) = store.log.segments
    with full_disk(tmp_path):
        assert store.purge(LATER_MS).purged_messages == 1_000
        assert store.log.segments == [segment + store.log.segment_bytes]
    store.close()


def test_without_one_nothing_is_lost(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    store.log.spare = None
    assert store.spare.lend(store.spare.size_bytes - MIB)
    needed = {i: v for i, v in content(store).items() if v[1] == MessageState.SCHEDULED}
    with full_disk(tmp_path):
        while store.produce.ingest(send(1, [bytes(1_000)] * 50), NOW_MS).stop is not Stop.DISK_FULL:
            pass
        segments = store.log.segments
        with pytest.raises(DiskFull):
            store.purge(LATER_MS)
        assert store.log.segments == segments
    after = content(store)
    assert {i: after[i] for i in needed} == needed
    store.close()


def test_it_is_not_spent_on_a_segment_that_would_stay(tmp_path: Path) -> None:
    store = with_spare(tmp_path)
    with full_disk(tmp_path):
        while store.produce.ingest(send(1, [bytes(1_000)] * 50), NOW_MS).stop is not Stop.DISK_FULL:
            pass
        with mock.patch("timerlog.purge.purger._MORE_THAN_MOVED_BYTES", SPARE_BYTES), pytest.raises(DiskFull):
            store.purge(LATER_MS)
    assert store.spare.size_bytes == SPARE_BYTES
    store.close()


def test_sends_do_not_get_it(tmp_path: Path) -> None:
    store = with_spare(tmp_path)
    with full_disk(tmp_path):
        while store.produce.ingest(send(1, [bytes(1_000)] * 50), NOW_MS).stop is not Stop.DISK_FULL:
            pass
        assert store.spare.size_bytes == (tmp_path / "spare").stat().st_size == SPARE_BYTES
    assert store.look.stats(NOW_MS)["disk_bytes"] > store.log.disk_bytes() + SPARE_BYTES
    store.close()
