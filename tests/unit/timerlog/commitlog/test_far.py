"""A log whose positions are large: it goes on for ever, and everything that reads it finds what is there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.bulk import columns, job
from tests.support.stores.far import BEYOND_FLOATS, FAR, TIB, begin
from tests.support.stores.purging import LATER_MS, content, mixed
from tests.support.stores.queried import ask
from tests.support.stores.reader import Reader
from tickwheel_native import store as native_store
from timerlog.commitlog import addresses
from timerlog.commitlog.addresses import END_POSITION
from timerlog.commitlog.healing import Healing, Scrub
from timerlog.engine.produce import Stop
from timerlog.errors import LogAtItsEnd, NoAddressSpace
from timerlog.maintenance.backup import back_up, check_backup, restore
from timerlog.maintenance.inspect import inspect_directory
from timerlog.maintenance.repair import repair
from timerlog.readers.attempts import MOST_BYTES, AttemptReader
from timerlog.readers.describe import describe_directory
from timerlog.readers.events import read_events
from timerlog.readers.history import history_of
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.readers.tail import Place, TailReader
from timerlog.replication.genesis import unpack_upload
from timerlog.replication.source import open_source
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

#: Where packed numbers of 44, 46, 47, 48 and 53 bits end, and a place behind all of them.
EDGES = [1 << bits for bits in (44, 46, 47, 48, 53)]


def bodies(store: Store) -> dict[int, bytes]:
    """Of all messages, by the records in the log."""
    rows = store.tables.rows[: store.tables.next_id]
    ids = np.flatnonzero(rows["state"]).tolist()
    return {number: native_store.record(store.tables.native, number)[48:] for number in ids}


@pytest.mark.parametrize("edge", EDGES)
def test_it_goes_on_beyond_an_edge(tmp_path: Path, edge: int) -> None:
    first = begin(tmp_path, edge - SMALL.segment_bytes)
    assert first < edge
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    sent: dict[int, bytes] = {}
    while store.log.segments[-1] < edge:
        parts = [b"%08d" % (len(sent) + number) * 1_000 for number in range(8)]
        first_id = store.tables.next_id
        assert store.produce.ingest(send(topic, parts), NOW_MS).stop is Stop.NEED_MORE
        sent |= dict(enumerate(parts, first_id))
    store.sync()
    assert bodies(store) == sent
    state = store.look.state_hash()
    store.close(clean=False)
    remove_derived_files(tmp_path)  # so that all of it is read
    again = Store.open(tmp_path, SMALL, NOW_MS)
    assert again.look.state_hash() == state
    assert bodies(again) == sent
    assert pump(again, NOW_MS + 1) == len(sent)
    again.close()


def test_the_log_moves_as_it_grows_and_is_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ROOM_BYTES", 2 * SMALL.segment_bytes)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    reader = Reader(store, topic)
    starts, kept = set(), {}
    for number in range(80):
        first_id = store.tables.next_id
        parts = [b"%04d" % number * 3_000] * 6
        times = [LATER_MS] + [NOW_MS] * 5
        store.produce.ingest(send(topic, parts, times_ms=times), NOW_MS)
        kept[first_id] = parts[0]
        pump(store, NOW_MS + 1)
        reader.ack(*reader.fetch(5, now_ms=NOW_MS + 2))
        if number % 5 == 4:
            store.log.roll()
            store.purge(NOW_MS + SMALL.purge_after_ms + 10)
        starts.add(store.log.addresses.start)
        assert bodies(store).items() >= kept.items()
    assert len(starts) > 2
    state = store.look.state_hash()
    store.sync()
    store.close(clean=False)
    again = Store.open(tmp_path, SMALL, NOW_MS)
    assert again.look.state_hash() == state
    assert pump(again, LATER_MS) == len(kept)
    again.close()


@pytest.mark.parametrize("position", [FAR, BEYOND_FLOATS])
def test_every_reader_finds_what_is_there(tmp_path: Path, position: int) -> None:
    """The same store at position 0 and far away, to all that read it."""
    near, far = mixed(tmp_path / "near"), _mixed_from(tmp_path / "far", position)
    assert far.log.segments[0] >= position - SMALL.segment_bytes
    assert content(far) == content(near)
    assert _told(far) == _told(near)
    sql = "select id, topic, state, body from messages order by id"
    assert ask(far, sql, NOW_MS) == ask(near, sql, NOW_MS)
    far.purge(LATER_MS)
    near.purge(LATER_MS)
    assert content(far) == content(near)
    expected = content(far)
    back_up(tmp_path / "far", tmp_path / "copy", NOW_MS)
    far.close()
    near.close()
    assert check_backup(tmp_path / "copy").end_position > position
    restore(tmp_path / "copy", tmp_path / "restored", 9)
    for directory in (tmp_path / "far", tmp_path / "restored"):
        report = inspect_directory(directory)
        assert (report.ok, report.damage) == (True, [])
        assert not repair(directory, NOW_MS, apply=False).is_needed
        store = Store.open(directory, SMALL, NOW_MS)
        assert content(store) == expected
        store.close()


def _mixed_from(directory: Path, position: int) -> Store:
    begin(directory, position)
    return mixed(directory)


def _told(store: Store) -> object:
    """What outside readers say of a store, without positions."""
    position = store.log.segments[0]
    first = position + 64
    with closing(Snapshot(describe(store.log, store.tables, NOW_MS))) as snapshot:
        tail = TailReader(snapshot, Place(0, 0), store.log.durable_position, 1 << 20, 1 << 30).run(
            lambda: False
        )
        assert all(event.position > position for event in tail.events)
        kinds = np.concatenate(
            [part.kinds for part in read_events(snapshot.log, first, store.log.durable_position)]
        )
        group_ids = [group.group_id for group in snapshot.description.groups]
        tried = AttemptReader(
            snapshot=snapshot,
            groups=group_ids,
            mark=None,
            before=None,
            end=store.log.durable_position,
            limit=10_000,
            most_bytes=MOST_BYTES,
        ).run(lambda: False)
        lives = [
            history_of(snapshot, number, store.log.appended_position, 10_000, lambda: False)
            for number in range(1, 40)
        ]
    directory = Path(snapshot.description.directory)
    found = describe_directory(directory, NOW_MS, committed=False)
    assert found.end_position > position
    events = [(one.event, one.id, one.topic, one.group, one.epoch, one.time_ms) for one in tail.events]
    names = [[event.event for event in life.events] if life else None for life in lives]
    attempts = [(one.id, one.time_ms, one.number, one.outcome, one.error) for one in tried.attempts]
    assert len(attempts) > 8_000
    return events, kinds.tolist(), names, attempts, found.description.next_id


def _scrubbed(store: Store) -> int | None:
    """Looks through all of a store's log; where a record is damaged."""
    healing = Healing(store.log)
    scrub = Scrub(store.log, healing)
    while scrub.waits_for is None and scrub.step():
        pass
    assert scrub.waits_for is not None or scrub.position >= store.log.durable_position
    assert scrub.waits_for == healing.wanted
    return scrub.waits_for


@pytest.mark.parametrize("first", [FAR, BEYOND_FLOATS])
def test_damage_is_found_and_mended(tmp_path: Path, first: int) -> None:
    store = _mixed_from(tmp_path, first)
    assert _scrubbed(store) is None
    store.log.roll()
    store.sync()
    position = int(store.tables.rows["position"][2_000])
    assert position > first - SMALL.segment_bytes
    was = bytes(store.log.addresses.view(position, 1_000))
    store.log.write_back(position + 100, b"damaged")
    assert _scrubbed(store) == position
    healing = Healing(store.log)
    healing.lost(np.array([position], np.uint64))
    assert healing.take(position, was) == len(b"damaged")
    assert healing.settle(position, position + 1) == []
    assert _scrubbed(store) is None
    store.close()


@pytest.mark.parametrize("position", [FAR, BEYOND_FLOATS])
def test_a_cluster_may_begin_with_it(tmp_path: Path, position: int) -> None:
    store = _mixed_from(tmp_path / "far", position)
    first, end, count = store.log.segments[0], store.log.appended_position, len(content(store))
    store.close(clean=False)
    back_up(tmp_path / "far", tmp_path / "copy", NOW_MS)
    for directory in (tmp_path / "far", tmp_path / "copy"):
        with open_source(directory, SMALL) as source:
            assert (source.messages, source.end) == (count, end)
            batches = list(source.batches(source.first))
            upload = source.upload_as("c", NOW_MS)
        assert first < upload.first == batches[0][0] < batches[-1][0] < upload.end == end
        assert sum(len(data) for _, data in batches) == source.size_bytes
        packed = msgspec.json.encode(upload)
        assert unpack_upload(packed) == upload


def test_a_job_of_many_segments_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More segments than the window has room for."""
    monkeypatch.setattr(addresses, "ROOM_BYTES", SMALL.segment_bytes)
    begin(tmp_path / "data", 1 << 46)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    store.topics.open("t", NOW_MS)
    count = 5 * SMALL.segment_bytes // (10 * 1_024)
    parts = [b"%06d" % number * 1_700 for number in range(count)]
    job(store, tmp_path / "data" / "job", [("t", columns([LATER_MS] * count, parts))], NOW_MS)
    report = store.adopt(tmp_path / "data" / "job", 0, NOW_MS)
    assert (report.messages, report.rejected) == (count, 0)
    assert list(bodies(store).values()) == parts
    state = store.look.state_hash()
    store.close(clean=False)
    remove_derived_files(tmp_path / "data")
    again = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert again.look.state_hash() == state
    assert list(bodies(again).values()) == parts
    again.close()


@pytest.mark.parametrize("last", ["addresses", "position"])
def test_at_its_end_it_refuses_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """No address is left, or no position: what is there is delivered, acked and there again."""
    expected: type[Exception] = NoAddressSpace if last == "addresses" else LogAtItsEnd
    begin(tmp_path, FAR if last == "addresses" else END_POSITION - SMALL.segment_bytes)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    if last == "addresses":
        monkeypatch.setattr(store.log.addresses, "end", store.log.segments[0] + SMALL.segment_bytes)
        monkeypatch.setattr("timerlog.commitlog.addresses.ROOM_BYTES", 1 << 47)
    topic = store.topics.open("t", NOW_MS)
    reader = Reader(store, topic)
    sent = 0
    for _ in range(SMALL.segment_bytes // 16_000):
        taken = store.produce.ingest(send(topic, [bytes(16_000)] * 3), NOW_MS)
        if taken.stop is Stop.DISK_FULL:
            break
        sent += 3
    assert type(taken.refused) is expected
    assert sent > 100
    with pytest.raises(expected):
        store.log.roll()
    assert pump(store, NOW_MS + 1) == sent
    acked = 0
    while receipts := reader.fetch(sent, now_ms=NOW_MS + 2):
        reader.ack(*receipts)
        acked += len(receipts)
    assert acked == sent
    store.sync()
    state = store.look.state_hash()
    monkeypatch.undo()
    store.close()
    again = Store.open(tmp_path, SMALL, NOW_MS)
    assert again.look.state_hash() == state
    again.close()


def test_many_stores_in_one_process(tmp_path: Path) -> None:
    """Twenty of them, with messages; seven was all once."""
    stores = [Store.open(tmp_path / str(number), SMALL, NOW_MS) for number in range(20)]
    for store in stores:
        topic = store.topics.open("t", NOW_MS)
        store.groups.open(topic, "g", NOW_MS)
        store.produce.ingest(send(topic, [b"x"]), NOW_MS)
        assert pump(store, NOW_MS + 1) == 1
    for store in stores:
        store.close(clean=False)


def test_a_view_that_is_too_old_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ROOM_BYTES", MIB)
    begin(tmp_path, 5 * TIB)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    with closing(Snapshot(describe(store.log, store.tables, NOW_MS))) as snapshot:
        store.log.roll()
        store.log.roll()
        with pytest.raises(NoAddressSpace, match="long after"):
            list(read_events(snapshot.log, store.log.segments[-1] + 64, store.log.appended_position))
    store.close()
