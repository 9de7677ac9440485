"""After a part of a log was lost, nothing is given out again that was given out there."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, send
from tests.support.stores.bulk import columns, job
from tests.support.stores.purging import ack, content, take
from tickwheel.arrow.errors import PositionLost
from tickwheel.arrow.event_table import log_key, split_events
from tickwheel.arrow.options import ReadOptions
from tickwheel.protocol.limits import delivery_number
from timerlog.engine.select import Filter
from timerlog.errors import BadJob, DamagedLog
from timerlog.layout import MAX_BATCH, DeliveryState
from timerlog.maintenance.backup import back_up, restore
from timerlog.maintenance.repair import repair
from timerlog.readers.describe import describe_directory
from timerlog.readers.snapshot import Snapshot
from timerlog.recovery import timeline
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files, spans

STALE = 2
MINUTE_MS = 60_000
NEW_LOG_ID = 77


def filled(directory: Path) -> Store:
    """Five messages in a topic, and a group that was given two of them, and has acked the first."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    store.produce.ingest(send(topic, [b"%d" % number for number in range(5)]), NOW_MS)
    pump(store, NOW_MS)
    assert take(store, group, 2, NOW_MS) == ([1, 2], [1, 1])
    ack(store, group, [1], [1], NOW_MS)
    store.sync()
    return store


def restored(store: Store, directory: Path, name: str, now_ms: int = NOW_MS + MINUTE_MS) -> Store:
    """A store of the backup ``copy``, after what the first one has done since is lost."""
    restore(directory / "copy", directory / name, NEW_LOG_ID)
    return Store.open(directory / name, SMALL, now_ms)


@pytest.fixture
def lost(tmp_path: Path) -> Store:
    """A store that was backed up, and goes on."""
    store = filled(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    return store


def sent(store: Store, count: int, now_ms: int) -> range:
    first = store.tables.next_id
    store.produce.ingest(send(store.tables.topic_ids["t"], [b"new"] * count), now_ms)
    pump(store, now_ms)
    return range(first, store.tables.next_id)


def refused(store: Store, ids: list[int], epochs: list[int]) -> list[int]:
    """Why the acks of these receipts do not count; 0: they do."""
    group = store.tables.topics[store.tables.topic_ids["t"]].groups["g"]
    reply = store.deliver.ack(ack_payload(group, ids, epochs), 1, NOW_MS + MINUTE_MS).reply
    codes = dict.fromkeys(range(len(ids)), 0)
    for at in range(24, len(reply), 16):
        codes[int.from_bytes(reply[at : at + 4], "little")] = int.from_bytes(reply[at + 4 : at + 8], "little")
    return list(codes.values())


def same_after_every_end(store: Store, directory: Path, now_ms: int) -> Store:
    state = store.look.state_hash()
    ids = store.tables.next_id
    for how in ("killed", "clean", "no derived files"):
        store.sync()
        store.close(clean=how == "clean")
        if how == "no derived files":
            remove_derived_files(directory)
        store = Store.open(directory, SMALL, now_ms)
        assert (store.look.state_hash(), store.tables.next_id) == (state, ids), how
    return store


@pytest.mark.promise("when-the-log-has-another-past")
def test_no_id_of_before_is_given_again(lost: Store, tmp_path: Path) -> None:
    known = sent(lost, 400, NOW_MS + 10)
    lost.close()
    again = restored(lost, tmp_path, "again")
    assert again.change.cancel(list(known)[:3], NOW_MS) == ["not_found"] * 3
    first = sent(again, 400, NOW_MS + MINUTE_MS)
    assert not set(known) & set(first)
    again.close()
    # Whoever restores the same backup once more does not give again what the restored one gave, either.
    third = restored(lost, tmp_path, "third", NOW_MS + 2 * MINUTE_MS)
    ids = sent(third, 400, NOW_MS + 2 * MINUTE_MS)
    assert not set(ids) & ({*known} | {*first})
    assert len({again.tables.timeline, third.tables.timeline, NEW_LOG_ID}) == 3
    third.close()


def test_the_gap_grows_with_the_time_that_was_lost(lost: Store, tmp_path: Path) -> None:
    lost.close()
    gaps = []
    for name, later_ms in (("soon", 0), ("later", 3_600_000), ("years", 5 * 365 * 86_400_000)):
        store = restored(lost, tmp_path, name, NOW_MS + later_ms)
        ((start, end),) = store.tables.gaps
        gaps.append(end - start)
        assert start == 6
        store.close()
    assert gaps[:2] == [timeline.LEAST_IDS, timeline.LEAST_IDS + 3_600_000 * timeline.IDS_A_MS]
    assert gaps[1] < gaps[2] < 1 << 32, "there are ids left for many more"


@pytest.mark.promise("when-the-log-has-another-past")
def test_receipts_of_before_are_stale_and_attempts_go_on(lost: Store, tmp_path: Path) -> None:
    group = lost.tables.topics[1].groups["g"]
    lost.settle.nack(group, [2], [1], 0, "", NOW_MS + 10)
    pump(lost, NOW_MS + 20)
    ids, epochs = take(lost, group, 4, NOW_MS + 20)
    assert sorted(zip(ids, epochs, strict=True)) == [(2, 2), (3, 1), (4, 1), (5, 1)]
    deliveries = 2
    lost.close()
    again = restored(lost, tmp_path, "again")
    assert again.look.topics()[0]["groups"][0]["delivered"] == deliveries
    pump(again, NOW_MS + MINUTE_MS)  # the lease of 2 has ended
    held, new_epochs = take(again, group, 9, NOW_MS + MINUTE_MS)
    assert sorted(held) == [2, 3, 4, 5]
    assert min(new_epochs) > timeline.EPOCHS
    assert {delivery_number(epoch) for epoch in new_epochs} == {1}
    assert refused(again, [*ids, 2, 1, 99], [*epochs, 1, 1, 1]) == [STALE] * 7
    rows = again.tables.deliveries_of(group)
    attempts = {
        int(again.tables.ids_of(1)[seq]): int(rows["epoch"][seq] - rows["base_epoch"][seq])
        for seq in range(1, 5)
    }
    assert attempts == {2: 2, 3: 1, 4: 1, 5: 1}
    assert set(rows["state"][1:5].tolist()) == {DeliveryState.LEASED}, "nobody but its holder has acked it"
    assert refused(again, held, new_epochs) == [0] * 4
    again = same_after_every_end(again, tmp_path / "again", NOW_MS + MINUTE_MS)
    assert again.look.topics()[0]["groups"][0]["delivered"] == deliveries + 4
    again.close()


def test_a_group_with_the_number_of_one_that_is_lost(lost: Store, tmp_path: Path) -> None:
    number = lost.groups.open(1, "lost", NOW_MS)
    ids, epochs = take(lost, number, 3, NOW_MS)
    lost.close()
    again = restored(lost, tmp_path, "again")
    assert again.groups.open(1, "another", NOW_MS) == number
    held = take(again, number, 3, NOW_MS + MINUTE_MS)
    assert held[0] == ids
    reply = again.deliver.ack(ack_payload(number, ids, epochs), 1, NOW_MS)
    assert (reply.accepted, again.tables.native.groups[number].acked) == (0, 0)
    again.close()


def test_everything_looks_over_the_gap(lost: Store, tmp_path: Path) -> None:
    lost.close()
    directory = tmp_path / "again"
    now_ms = NOW_MS + 30 * 86_400_000
    again = restored(lost, tmp_path, "again", now_ms)
    later = again.tables.next_id
    again.produce.ingest(send(1, [b"later"], keys=[b"k"], times_ms=[now_ms + MINUTE_MS]), now_ms)
    again.sync()
    found = list(chain.from_iterable(again.select.matching(1, Filter(), now_ms)))
    assert [int(one) for one in found] == [1, 2, 3, 4, 5, later]
    assert again.select.find("t", ["k"]) == [later]
    used = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
    assert used < 64 * 1024 * 1024 < (directory / "messages.table").stat().st_size
    again = same_after_every_end(again, directory, now_ms)
    assert again.select.find("t", ["k"]) == [later]
    snapshot = Snapshot(describe_directory(directory, now_ms).description)
    assert [int(one) for chunk in snapshot.chunks(None) for one in chunk.ids] == [1, 2, 3, 4, 5, later]
    snapshot.close()
    # What lies before the gap is done with and purged; what lies behind stays, and becomes due.
    group = again.tables.topics[1].groups["g"]
    pump(again, now_ms)
    held, epochs = take(again, group, 9, now_ms)
    ack(again, group, held, epochs, now_ms)
    again.purge(now_ms + 2 * 86_400_000)
    assert sorted(content(again)) == [later]
    assert int(again.tables.native.first_id) == later
    again = same_after_every_end(again, directory, now_ms)
    pump(again, now_ms + MINUTE_MS)
    assert take(again, group, 9, now_ms + MINUTE_MS)[0] == [later]
    again.close()


def test_another_backup_of_a_restored_log(lost: Store, tmp_path: Path) -> None:
    lost.close()
    again = restored(lost, tmp_path, "again")
    known = sent(again, 3, NOW_MS + MINUTE_MS)
    again.sync()
    (tmp_path / "copy").rename(tmp_path / "first copy")
    back_up(tmp_path / "again", tmp_path / "copy", NOW_MS + MINUTE_MS)
    more = sent(again, 3, NOW_MS + MINUTE_MS)
    again.close()
    third = restored(again, tmp_path, "third", NOW_MS + 2 * MINUTE_MS)
    assert third.tables.gaps[0] == again.tables.gaps[0]
    assert third.tables.gaps[1][0] == known.stop
    assert not set(more) & set(sent(third, 3, NOW_MS + 2 * MINUTE_MS))
    same_after_every_end(third, tmp_path / "third", NOW_MS + 2 * MINUTE_MS).close()


@pytest.mark.parametrize("when", ["before the record", "behind it"])
def test_a_start_that_is_killed_begins_the_same_timeline(
    lost: Store, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.close()
    restore(tmp_path / "copy", tmp_path / "again", NEW_LOG_ID)
    mark = (tmp_path / "again" / timeline.NAME).read_bytes()
    if when == "behind it":
        store = Store.open(tmp_path / "again", SMALL, NOW_MS)
        number, gaps = store.tables.timeline, store.tables.gaps
        store.close(clean=False)
        (tmp_path / "again" / timeline.NAME).write_bytes(mark)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(timeline, "_record", _killed)
            with pytest.raises(OSError, match="killed"):
                Store.open(tmp_path / "again", SMALL, NOW_MS)
    again = Store.open(tmp_path / "again", SMALL, NOW_MS)
    assert not (tmp_path / "again" / timeline.NAME).exists()
    assert len(again.tables.gaps) == 1
    if when == "behind it":
        assert (again.tables.timeline, again.tables.gaps) == (number, gaps)
    again.close()


def _killed(*_: object) -> None:
    raise OSError("killed")


def test_a_mark_that_is_damaged_ends_the_start(lost: Store, tmp_path: Path) -> None:
    lost.close()
    restore(tmp_path / "copy", tmp_path / "again", NEW_LOG_ID)
    path = tmp_path / "again" / timeline.NAME
    path.write_bytes(path.read_bytes().replace(b"timeline", b"timelime"))
    with pytest.raises(DamagedLog, match="timeline is damaged"):
        Store.open(tmp_path / "again", SMALL, NOW_MS)


def test_a_bulk_job_whose_plan_is_lost_is_not_taken_in(tmp_path: Path) -> None:
    """After a repair the log has the number that the job was made for."""
    store = filled(tmp_path / "data")
    place = store.log.appended_position
    staged = tmp_path / "data" / "staging" / "job"
    job(store, staged, [("t", columns([NOW_MS] * 10))], NOW_MS)
    store.sync()
    store.close()
    _lose_from(tmp_path / "data", place)
    again = Store.open(tmp_path / "data", SMALL, NOW_MS + MINUTE_MS)
    assert again.tables.gaps
    with pytest.raises(BadJob, match="before a part of the broker's log was lost"):
        again.adopt(staged, 0, NOW_MS)
    again.close()


def _lose_from(directory: Path, place: int) -> None:
    """The end of the log is damaged, and repaired."""
    path = directory / "commitlog" / f"{0:020d}.log"
    content_ = bytearray(path.read_bytes())
    content_[place:] = bytes(len(content_) - place)
    path.write_bytes(content_)
    assert repair(directory, NOW_MS, apply=True).applied


@pytest.mark.promise("when-the-log-has-another-past")
def test_what_a_repair_loses_at_the_end_is_not_given_again(tmp_path: Path) -> None:
    store = filled(tmp_path / "data")
    group, place = store.tables.topics[1].groups["g"], store.log.appended_position
    known = sent(store, 20, NOW_MS + 10)
    ids, epochs = take(store, group, 20, NOW_MS + 10)
    store.sync()
    store.close()
    log_id = store.tables.log_id
    _lose_from(tmp_path / "data", place)
    again = Store.open(tmp_path / "data", SMALL, NOW_MS + MINUTE_MS)
    assert (again.tables.log_id, bool(again.tables.timeline)) == (log_id, True)
    new = sent(again, 20, NOW_MS + MINUTE_MS)
    assert not set(known) & set(new)
    take(again, group, 30, NOW_MS + MINUTE_MS)
    assert refused(again, ids, epochs) == [STALE] * len(ids)
    # Whoever reads on by positions (Spark) learns that what it has read is lost.
    options = ReadOptions((str(tmp_path / "data"),), "events", {})
    found = [describe_directory(tmp_path / "data", NOW_MS + MINUTE_MS)]
    with pytest.raises(PositionLost):
        split_events(found, {f"{log_id:016x}": place}, {f"{log_id:016x}": place + 800}, options)
    assert split_events(found, {log_key(found[0]): place}, {log_key(found[0]): place}, options) == []
    same_after_every_end(again, tmp_path / "data", NOW_MS + MINUTE_MS).close()


def test_a_repair_that_loses_nothing_begins_no_timeline(tmp_path: Path) -> None:
    store = filled(tmp_path / "data")
    store.close()
    path = min((tmp_path / "data" / "commitlog").iterdir())
    header = bytearray(path.read_bytes())
    header[20] ^= 1
    path.write_bytes(header)
    assert repair(tmp_path / "data", NOW_MS, apply=True).mended
    again = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert (again.tables.timeline, again.tables.gaps) == (0, [])
    again.close()


@pytest.mark.parametrize(
    ("gaps", "start", "end", "step", "expected"),
    [
        ([], 1, 10, 4, [(1, 5), (5, 9), (9, 10)]),
        ([(4, 8)], 1, 10, 100, [(1, 4), (8, 10)]),
        ([(4, 8)], 5, 7, 100, []),
        ([(4, 8)], 5, 9, 100, [(8, 9)]),
        ([(4, 8)], 8, 9, 100, [(8, 9)]),
        ([(4, 8)], 1, 6, 2, [(1, 3), (3, 4)]),
        ([(4, 8), (8, 9), (12, 20)], 3, 30, 100, [(3, 4), (9, 12), (20, 30)]),
        ([(4, 8)], 9, 9, 100, []),
    ],
)  # fmt: skip
def test_spans_leave_gaps_out(
    gaps: list[tuple[int, int]], start: int, end: int, step: int, expected: list[tuple[int, int]]
) -> None:
    assert list(spans(gaps, start, end, step)) == expected


def test_more_gaps_than_are_kept(tmp_path: Path) -> None:
    """Then their ids have rows, as others have; none is given again."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    for number in range(70):
        store.tables.leave_gap(store.tables.next_id, store.tables.next_id + 100 + number)
        store.tables.native.next_id += 1
    assert len(store.tables.gaps) == 64
    store.tables.rows[store.tables.next_id - 1]["state"] = 0
    assert sum(end - start for start, end in store.tables.spans(1, store.tables.next_id, MAX_BATCH)) > 70
    store.close(clean=False)
