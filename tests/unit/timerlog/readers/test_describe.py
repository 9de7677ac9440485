"""A directory described from its files alone: while it is used, after it was closed, killed, damaged."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.stores.bulk import columns, job
from tests.support.stores.purging import LATER_MS, content, mixed
from tests.support.stores.queried import send_all
from timerlog.background import InThread
from timerlog.commitlog.records import pack_lease, unpack_lease
from timerlog.commitlog.segments import SegmentHeader, pack_segment_header
from timerlog.commitlog.view import LogView
from timerlog.errors import BadDirectory, DamagedLog, PositionGone, TablesMissing
from timerlog.layout import RUN, SEGMENT_HEADER_BYTES
from timerlog.readers import describe as module
from timerlog.readers.describe import Offline, describe_directory
from timerlog.readers.events import event_types, read_events
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store


def send(store: Store, count: int, topic: str = "orders", size_bytes: int = 10) -> int:
    topic_id = store.topics.open(topic, NOW_MS)
    none = [b""] * count
    send_all(
        store=store,
        topic_id=topic_id,
        bodies=[bytes(size_bytes)] * count,
        times_ms=[NOW_MS + 1_000] * count,
        keys=none,
        headers=none,
        now_ms=NOW_MS,
    )
    return topic_id


def seen(store: Store, *, committed: bool = True) -> Offline:
    directory = store.tables.directory
    assert directory is not None
    return describe_directory(directory, NOW_MS, committed=committed)


def test_it_says_what_the_broker_itself_says(store: Store) -> None:
    topic_id = send(store, 300)
    store.groups.open(topic_id, "billing", NOW_MS)
    pump(store, NOW_MS + 2_000)
    store.sync()
    found = seen(store)
    assert found.description == describe(store.log, store.tables, NOW_MS)
    assert found.end_position == store.log.durable_position
    assert (found.first_position, found.segments) == (SEGMENT_HEADER_BYTES, [0])


def test_a_segment_that_is_begun_while_the_log_is_read_belongs_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, 300)
    store.sync()
    true = module._segment_headers

    def listed(directory: Path) -> list[SegmentHeader]:
        found = true(directory)
        store.log.roll()
        send(store, 10)
        store.sync()
        return found

    monkeypatch.setattr(module, "_segment_headers", listed)
    found = seen(store)
    assert found.end_position == store.log.durable_position > SMALL.segment_bytes
    parts = found.parts(found.first_position, found.end_position)
    assert parts[-1] == (SMALL.segment_bytes, found.end_position)


def test_a_job_that_is_not_durable_yet_hides_no_message(store: Store, tmp_path: Path) -> None:
    staged = tmp_path / "data" / "staging" / "job"
    job(store, staged, [("orders", columns([NOW_MS + 60_000] * 100))], NOW_MS)
    send(store, 50)
    store.sync()
    before = seen(store).description.next_id
    assert before == store.tables.next_id == 151
    adoption = store.adopter.start(staged, 0)
    while not store.adopter.is_committing:
        pause = store.adopter.step(NOW_MS)
        if isinstance(pause, InThread):
            pause.work()
    assert not adoption.is_done
    assert seen(store).description.next_id == before
    assert seen(store, committed=False).description.next_id == before
    store.sync()
    assert seen(store).description.next_id == before


def test_only_what_is_durable_counts(store: Store) -> None:
    send(store, 300)
    store.sync()
    durable = store.log.durable_position
    send(store, 20)
    store.log.flush()
    assert (seen(store).description.next_id, seen(store).end_position) == (301, durable)
    written = seen(store, committed=False)
    assert (written.description.next_id, written.end_position) == (321, store.log.appended_position)
    store.sync()
    assert seen(store).description.next_id == 321


def test_a_checkpoint_may_know_more_than_is_durable(store: Store) -> None:
    send(store, 300)
    store.sync()
    send(store, 20)
    store.checkpoints.save(clean=False, durable=False)
    assert seen(store).description.next_id == 301
    assert seen(store, committed=False).description.next_id == 321


def test_names_that_came_after_the_checkpoint_and_those_that_went(store: Store) -> None:
    first = send(store, 3)
    store.groups.open(first, "billing", NOW_MS)
    second = send(store, 3, "mails")
    store.checkpoints.save(clean=False, durable=False)
    store.groups.open(second, "late", NOW_MS)
    store.topics.delete("orders")
    send(store, 1, "third")
    store.sync()
    found = seen(store)
    assert [topic.name for topic in found.description.topics] == ["mails", "third"]
    assert [group.name for group in found.description.groups] == ["late"]
    assert found.description == describe(store.log, store.tables, NOW_MS)


def test_messages_and_names_inside_transactions_count(store: Store) -> None:
    topic_id = send(store, 5)
    group_id = store.groups.open(topic_id, "billing", NOW_MS)
    pump(store, NOW_MS + 2_000)
    store.topics.set("orders", {"max_attempts": 1}, (), paused=None, now_ms=NOW_MS)
    holder = store.holders.acquire(group_id)
    assert store.deliver.fetch(group_id, holder, 1, 10, 1 << 20, NOW_MS + 2_000)
    store.settle.nack(group_id, [1, 2], [1, 1], None, "no", NOW_MS + 2_100)
    store.sync()
    found = seen(store)
    assert found.description == describe(store.log, store.tables, NOW_MS)
    assert (found.description.next_id, found.description.topics[-1].name) == (8, "orders.dead")


def test_many_segments(store: Store) -> None:
    for number in range(180):
        send(store, 3, size_bytes=16_000)
        if number % 20 == 0:
            store.sync()
    store.sync()
    found = seen(store)
    assert found.description.next_id == 541
    assert found.segments == [0, 6 * MIB]
    parts = found.parts(found.first_position, found.end_position)
    assert parts == [(SEGMENT_HEADER_BYTES, 6 * MIB), (6 * MIB, found.end_position)]
    assert found.parts(100, 100) == []
    assert found.parts(6 * MIB - 8, 6 * MIB + 80) == [(6 * MIB - 8, 6 * MIB), (6 * MIB, 6 * MIB + 80)]
    with pytest.raises(PositionGone, match="behind what"):
        found.parts(64, found.end_position + 8)
    with pytest.raises(PositionGone, match="purged"):
        found.check_position(8)


def copied(store: Store, to: Path) -> Path:
    """The files as a killed process leaves them."""
    assert store.tables.directory is not None
    shutil.copytree(store.tables.directory, to)
    return to


def test_after_a_kill_with_a_torn_tail(store: Store, tmp_path: Path) -> None:
    send(store, 300)
    store.sync()
    send(store, 20)
    store.log.flush()
    whole, end = store.log.durable_position, store.log.appended_position
    killed = copied(store, tmp_path / "killed")
    with (killed / "commitlog" / f"{0:020d}.log").open("r+b") as log:
        log.seek(end - 24)
        log.write(b"\xff" * 8)
    found = describe_directory(killed, NOW_MS)
    assert (found.description.next_id, found.end_position) == (301, whole)
    assert describe_directory(killed, NOW_MS, committed=False).description.next_id == 320
    again = Store.open(killed, SMALL, NOW_MS)
    assert again.tables.next_id == 320
    again.close()


def test_after_a_clean_end_all_is_committed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    send(store, 7)
    store.close()
    found = describe_directory(tmp_path / "data", NOW_MS)
    snapshot = Snapshot(found.description)
    assert [chunk.ids.tolist() for chunk in snapshot.chunks(None)] == [list(range(1, 8))]
    snapshot.close()


def test_an_empty_broker_is_no_error(store: Store) -> None:
    found = seen(store)
    assert (found.description.next_id, found.description.topics) == (1, [])
    assert found.parts(found.first_position, found.end_position) == []


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(BadDirectory, match="no commitlog"):
        describe_directory(tmp_path, NOW_MS)
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(BadDirectory, match="no log yet"):
        describe_directory(tmp_path, NOW_MS)
    assert [path.name for path in tmp_path.iterdir()] == ["commitlog"]


def test_tables_that_cannot_be_trusted(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send(store, 3)
    store.sync()
    for number, name in enumerate(("messages.table", "checkpoint")):
        without = copied(store, tmp_path / str(number))
        (without / name).unlink()
        with pytest.raises(TablesMissing, match=name.split(".")[0]):
            describe_directory(without, NOW_MS)
    monkeypatch.setattr("timerlog.recovery.checkpoint.boot_id", lambda: "another boot")
    with pytest.raises(TablesMissing, match="cannot be trusted"):
        seen(store)


def test_damage_before_what_was_durable(store: Store, tmp_path: Path) -> None:
    send(store, 300)
    store.sync()
    middle = store.log.durable_position
    send(store, 300)
    store.sync()
    damaged = copied(store, tmp_path / "damaged")
    path = damaged / "commitlog" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[middle + 64] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedLog, match="on disk beyond"):
        describe_directory(damaged, NOW_MS)
    path.write_bytes(content[:4096])
    with pytest.raises(DamagedLog, match="shorter"):
        describe_directory(damaged, NOW_MS)


def test_segments_of_two_logs(store: Store, tmp_path: Path) -> None:
    send(store, 3)
    store.sync()
    other = copied(store, tmp_path / "other")
    header = pack_segment_header(6 * MIB, 6 * MIB, 77)
    (other / "commitlog" / f"{6 * MIB:020d}.log").write_bytes(header)
    with pytest.raises(DamagedLog, match="not of one log"):
        describe_directory(other, NOW_MS)


def test_a_segment_that_is_just_being_made(store: Store, tmp_path: Path) -> None:
    send(store, 3)
    store.sync()
    other = copied(store, tmp_path / "other")
    (other / "commitlog" / f"{6 * MIB:020d}.log").write_bytes(bytes(4096))
    found = describe_directory(other, NOW_MS)
    assert (found.segments, found.description.next_id) == ([0], 4)


def test_after_a_purge(tmp_path: Path) -> None:
    """The log begins later, with a BASE record; what is left is found, also what was moved."""
    store = mixed(tmp_path)
    before = seen(store)
    store.purge(LATER_MS)
    store.sync()
    found = seen(store)
    assert found.description == describe(store.log, store.tables, NOW_MS)
    assert before.first_position < found.first_position == found.segments[0] + SEGMENT_HEADER_BYTES
    with pytest.raises(PositionGone, match="purged"):
        found.parts(before.first_position, found.end_position)
    snapshot, there = Snapshot(found.description), content(store)
    ids = np.concatenate([chunk.ids for chunk in snapshot.chunks(None)])
    assert sorted(set(ids.tolist())) == sorted(there)
    assert snapshot.records(ids).is_whole.all()
    snapshot.close()
    log = LogView(Path(found.description.directory) / "commitlog", found.description.segment_bytes)
    sent = {
        message_id
        for events in read_events(log, found.first_position, found.end_position, event_types(["sent"]))
        for message_id in events.ids.tolist()
    }
    log.close()
    assert sent <= set(range(1, found.description.next_id))
    store.close()


def test_ranges_and_judges_of_a_snapshot(store: Store) -> None:
    send(store, 300)
    store.sync()
    snapshot = Snapshot(seen(store).description)
    found = [
        chunk.ids
        for chunk in snapshot.chunks(
            None, chunk_rows=50, ids=range(40, 130), judge=lambda ids, _: ids % 2 == 0
        )
    ]
    assert np.concatenate(found).tolist() == list(range(40, 130, 2))
    assert [len(part) for part in found] == [25, 20]
    snapshot.close()


def test_a_lease_of_an_older_log_does_not_say_when_it_was_given() -> None:
    runs = np.array([(7, 2, 1, 99)], RUN)
    found, given_ms = unpack_lease(runs.tobytes())
    assert (found.tolist(), given_ms) == (runs.tolist(), 0)
    found, given_ms = unpack_lease(pack_lease(runs, NOW_MS))
    assert (found.tolist(), given_ms) == (runs.tolist(), NOW_MS)
    assert pack_lease(runs, NOW_MS)[24:] == struct.pack("<q", NOW_MS)
