"""Segments, group commit, the reserve for control records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL
from tests.support.native.frames import send
from timerlog.commitlog.segments import pack_segment_header, unpack_segment_header
from timerlog.engine.produce import Stop
from timerlog.errors import DiskFull, LogFailed, StoreError, UnsupportedFormat
from timerlog.files.disk import FileDisk, FileSegment
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.maintenance.inspect import inspect_directory
from timerlog.settings import StoreSettings
from timerlog.store import Store


def fill(store: Store, topic: int, frames: int) -> int:
    """Sends frames of 60 bodies of 1,000 bytes until one is refused; returns how many messages were stored."""
    stored = 0
    for _ in range(frames):
        ingested = store.produce.ingest(send(topic, [bytes(1_000)] * 60), NOW_MS)
        if ingested.stop is Stop.DISK_FULL:
            break
        stored += 60
    return stored


def test_the_log_rolls_through_segments_and_comes_back(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    assert fill(store, topic, 400) == 24_000
    store.sync()
    bases = store.log.segments
    assert bases == [number * 6 * MIB for number in range(len(bases))]
    assert len(bases) >= 4
    state = store.look.state_hash()
    store.close(clean=False)
    for name in ("messages.table", "checkpoint"):
        (tmp_path / name).unlink()
    again = Store.open(tmp_path, SMALL, NOW_MS)
    assert again.look.state_hash() == state
    assert again.recovery.replayed_records > 24_000
    again.close()


def test_many_appends_share_one_sync(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.sync()
    syncs = store.log.syncs
    fill(store, topic, 5)
    ticket = store.begin_sync()
    assert ticket is not None
    fill(store, topic, 1)
    ticket.run()
    assert store.finish_sync(ticket) == ticket.position < store.log.appended_position
    assert store.log.syncs == syncs + 1
    store.sync()
    assert store.begin_sync() is None, "a mark alone is no reason to sync"


def test_a_full_disk_refuses_sends_and_lets_the_rest_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    store.produce.ingest(send(topic, [b"kept"], keys=[b"key"], times_ms=[NOW_MS + 5]), NOW_MS)

    def no_room(self: FileSegment, end: int) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(FileSegment, "allocate", no_room)
    stored = fill(store, topic, 1_000)
    assert 0 < stored < 6_000
    next_id = store.tables.next_id
    assert (
        store.produce.ingest(send(topic, [bytes(1_000)] * 60, keys=[b"other"] * 60), NOW_MS).stop
        is Stop.DISK_FULL
    )
    assert store.tables.next_id == next_id
    assert store.select.find("t", ["other"]) == [0]
    # Cancels, groups and leases still have their reserve.
    assert store.change.cancel([1], NOW_MS) == ["cancelled"]
    store.sync()
    holder = store.holders.acquire(group)
    batch = store.enqueue_get.take(10_000)
    assert batch is not None
    due = store.enqueue_put.link(batch, NOW_MS)
    assert due is not None
    store.changes.take()
    store.dequeue_put_message.move(store.dequeue_get_message.look_up(due, NOW_MS), NOW_MS)
    assert store.changes.take().woken == {group}
    assert store.deliver.fetch(group, holder, 1, 100, MIB, NOW_MS)
    monkeypatch.undo()
    assert fill(store, topic, 10) == 600, "with room again, sends go on"


def test_a_failed_write_is_final(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.topics.open("t", NOW_MS)

    def broken(self: FileSegment, offset: int, data: bytes) -> None:
        raise LogFailed("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(FileSegment, "write", broken)
        store.produce.ingest(send(topic, [b"x"]), NOW_MS)
        with pytest.raises(LogFailed):
            store.begin_sync()
    with pytest.raises(LogFailed):
        store.begin_sync()


@pytest.mark.parametrize("written_bytes", [0, 1, 30, 63, 64])
def test_a_header_that_was_written_in_part_stops_the_log_and_not_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"acknowledged"]), NOW_MS)
    store.sync()
    state = store.look.state_hash()
    write = FileSegment.write

    def torn(self: FileSegment, offset: int, data: bytes) -> None:
        write(self, offset, bytes(data)[:written_bytes])
        raise LogFailed("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(FileSegment, "write", torn)
        with pytest.raises(LogFailed):
            store.log.roll()
    for refused in (store.log.roll, store.log.flush):
        with pytest.raises(LogFailed):
            refused()
    assert store.log.segments == [0]
    store.close(clean=False)
    assert len(FileDisk(tmp_path).segments()) == 2, "what is left of it"
    assert inspect_directory(tmp_path).ok
    again = Store.open(tmp_path, SMALL, NOW_MS)
    assert again.look.state_hash() == state
    assert again.log.segments == FileDisk(tmp_path).segments() == [0]
    again.log.roll()
    assert again.produce.ingest(send(topic, [b"more"]), NOW_MS).messages == 1
    again.sync()
    again.close(clean=False)
    last = Store.open(tmp_path, SMALL, NOW_MS)
    assert (last.tables.next_id, last.log.segments) == (3, [0, 6 * MIB])
    last.close()


@pytest.mark.parametrize("written_bytes", [0, 30, 63])
def test_a_first_header_that_was_written_in_part_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    write = FileSegment.write

    def torn(self: FileSegment, offset: int, data: bytes) -> None:
        write(self, offset, bytes(data)[:written_bytes])
        raise LogFailed("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(FileSegment, "write", torn)
        with pytest.raises(LogFailed):
            Store.open(tmp_path, SMALL, NOW_MS)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.recovery.is_new
    assert store.log.segments == [0]
    store.close()


def test_segment_headers() -> None:
    packed = pack_segment_header(4096, 8192, 77)
    assert len(packed) == SEGMENT_HEADER_BYTES
    header = unpack_segment_header(packed)
    assert header is not None
    assert (header.base, header.segment_bytes, header.log_id) == (4096, 8192, 77)
    assert unpack_segment_header(packed[:-1]) is None
    for place in range(SEGMENT_HEADER_BYTES):
        flipped = bytearray(packed)
        flipped[place] ^= 1
        assert unpack_segment_header(bytes(flipped)) is None


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("timerlog.commitlog.segments.FORMAT_VERSION", 3)
        packed = pack_segment_header(0, 8192, 1)
    with pytest.raises(UnsupportedFormat, match="format 3"):
        unpack_segment_header(packed)


def test_segments_must_hold_a_frame(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="segment_bytes"):
        Store.open(tmp_path, StoreSettings(segment_bytes=MIB), NOW_MS)
    Store.open(tmp_path / "other", SMALL, NOW_MS).close()


@pytest.mark.parametrize("goes_on", ["rolls", "sends much"])
def test_a_file_that_ends_behind_its_last_record(tmp_path: Path, goes_on: str) -> None:
    """A copy that was cut, or a replica after a power loss: the segment's END must find room, and be written."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"before"]), NOW_MS)
    store.sync()
    end = store.log.durable_position
    store.close(clean=False)
    (tmp_path / "data" / "checkpoint").unlink(missing_ok=True)
    (segment,) = (tmp_path / "data" / "commitlog").glob("*.log")
    os.truncate(segment, end)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    if goes_on == "rolls":
        store.log.roll()
    sent = 0
    while len(store.log.segments) < 2 or not sent:
        sent += store.produce.ingest(send(topic, [bytes(10_000)] * 5), NOW_MS).messages
    store.sync()
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.tables.next_id == sent + 2
    store.close()
