"""Backups: a copy that is verified, and a directory that is made of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, content, fill, mixed
from timerlog.commitlog.segments import pack_segment_header, unpack_segment_header
from timerlog.errors import BackupTargetInUse, BadBackup, DamagedLog, NoDataDirectory, UnsupportedFormat
from timerlog.files.small_files import seal
from timerlog.maintenance.backup import (
    BACKUP_FORMAT,
    NAME,
    back_up,
    check_backup,
    pack_manifest,
    read_manifest,
    restore,
)
from timerlog.maintenance.inspect import inspect_directory
from timerlog.maintenance.repair import fill_record
from timerlog.store import Store

NEW_LOG_ID = 77


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mixed(tmp_path / "data")


def reopened(directory: Path) -> Store:
    return Store.open(directory, SMALL, LATER_MS)


def test_a_restored_directory_holds_the_same(store: Store, tmp_path: Path) -> None:
    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    assert len(made.segments) > 1
    assert check_backup(tmp_path / "copy") == made
    restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)
    assert inspect_directory(tmp_path / "copy").damage == inspect_directory(tmp_path / "new").damage == []
    before = content(store)
    store.close()
    again = reopened(tmp_path / "new")
    assert content(again) == before
    assert again.tables.documents == {"note": b"kept"}
    assert again.log.log_id == NEW_LOG_ID
    # And it goes on, also when it is opened once more.
    again.produce.ingest(send(1, [b"new"]), NOW_MS)
    again.close()
    last = reopened(tmp_path / "new")
    assert content(last).keys() - before.keys() == {last.tables.next_id - 1}, "one more, in one gap"
    last.close()


def test_all_that_was_handed_over_when_it_begins_is_in_it(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    # More than is copied at once, less than a segment.
    known = fill(store, topic, [b"first-%d" % number for number in range(4_500)], LATER_MS)
    store.sync()
    later: list[int] = []

    def send_more(_: int) -> None:
        keys = [b"later-%d" % number for number in range(len(later), len(later) + 2_000)]
        later.extend(fill(store, topic, keys, LATER_MS))
        store.sync()

    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS, send_more)
    assert len(known) < made.messages <= len(known) + len(later)
    assert len(made.segments) > 1, "the log went on in other segments while it was copied"
    assert check_backup(tmp_path / "copy") == made
    store.close()


def test_it_ends_however_fast_a_broker_goes_on(tmp_path: Path) -> None:
    """For each segment that is copied there is a new one: it follows to where the log was after a first round."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    known = fill(store, topic, [b"first-%d" % number for number in range(4_500)], LATER_MS)
    store.sync()
    rounds: list[int] = []

    def fill_a_segment(_: int) -> None:
        rounds.append(store.log.appended_position)
        assert len(rounds) < 20, "it follows for as long as the broker writes"
        number, base = 0, store.log.appended_position // SMALL.segment_bytes
        while store.log.appended_position // SMALL.segment_bytes == base:
            fill(store, topic, [b"%d-%d-%d" % (len(rounds), number, one) for one in range(500)], LATER_MS)
            number += 1
        store.sync()

    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS, fill_a_segment)
    assert len(known) < made.messages
    assert check_backup(tmp_path / "copy") == made
    restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)
    store.close()
    again = reopened(tmp_path / "new")
    assert set(known) <= set(content(again))
    again.close()


def test_what_is_written_while_it_is_copied_is_no_damage(tmp_path: Path) -> None:
    """Each piece is read a moment after the one before: behind what was not written yet lies what came since."""
    settings = msgspec.structs.replace(SMALL, segment_bytes=64 * MIB)
    store = Store.open(tmp_path / "data", settings, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    known = fill(store, topic, [b"first-%d" % number for number in range(3_000)], LATER_MS)
    store.log.make_room(12 * MIB)  # what comes meanwhile lies in the file that is copied
    store.sync()
    pieces: list[int] = []

    def send_more(_: int) -> None:
        pieces.append(store.log.appended_position)
        if len(pieces) < 8:
            fill(store, topic, [b"%d-%d" % (len(pieces), number) for number in range(3_000)], LATER_MS)
            store.sync()

    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS, send_more)
    assert pieces[0] < 4 * MIB < pieces[1], "a piece ended between two sends"
    assert made.messages > len(known)
    assert check_backup(tmp_path / "copy") == made
    store.close()


@pytest.mark.parametrize("has_record", [False, True], ids=["empty", "with a record"])
def test_a_segment_that_was_only_begun_is_left_out(tmp_path: Path, has_record: bool) -> None:
    """A broker makes the next segment before it says that it goes on there: then it may be killed."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    known = fill(store, store.topics.open("t", NOW_MS), [b"%d" % number for number in range(50)], LATER_MS)
    store.sync()
    end = store.log.appended_position
    header = pack_segment_header(SMALL.segment_bytes, SMALL.segment_bytes, store.log.log_id)
    record = fill_record(64) if has_record else b""
    begun = tmp_path / "data" / "commitlog" / f"{SMALL.segment_bytes:020d}.log"
    begun.write_bytes((header + record).ljust(MIB, b"\0"))
    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    assert (made.messages, made.end_position, len(made.segments)) == (len(known), end, 1)
    restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)
    store.close()
    again = reopened(tmp_path / "new")
    assert set(content(again)) == set(known)
    again.close()


def test_a_purge_takes_nothing_away_that_is_being_copied(store: Store, tmp_path: Path) -> None:
    pump(store, LATER_MS)

    def purge(_: int) -> None:
        if not purged:
            purged.append(store.purge(LATER_MS).segments)

    purged: list[int] = []
    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS, purge)
    assert purged[0] > 0
    assert made.segments[0].base == 0, "it was held before it was deleted"
    restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)
    before = content(store)
    store.close()
    again = reopened(tmp_path / "new")
    assert before.keys() <= content(again).keys()
    again.close()
    # And a log whose start was purged can be backed up as well.
    made = back_up(tmp_path / "data", tmp_path / "copy 2", NOW_MS)
    assert made.segments[0].base > 0
    restore(tmp_path / "copy 2", tmp_path / "new 2", NEW_LOG_ID)
    again = reopened(tmp_path / "new 2")
    assert content(again) == before
    again.close()


def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"x"] * 3), NOW_MS)
    store.close()
    back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    for path in [tmp_path / "copy" / NAME, *(tmp_path / "copy" / "commitlog").iterdir()]:
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises((BadBackup, UnsupportedFormat)):
                restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)
        path.write_bytes(whole)
    assert not (tmp_path / "new").exists()
    check_backup(tmp_path / "copy")


def test_what_is_missing_or_strange_is_refused(store: Store, tmp_path: Path) -> None:
    store.close()
    made = back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    stranger = tmp_path / "copy" / "commitlog" / "00000000000000000001.log"
    stranger.touch()
    with pytest.raises(BadBackup, match="no part of the backup"):
        check_backup(tmp_path / "copy")
    stranger.unlink()
    (tmp_path / "copy" / made.segments[1].file).unlink()
    with pytest.raises(BadBackup, match="missing"):
        check_backup(tmp_path / "copy")
    (tmp_path / "copy" / NAME).unlink()
    with pytest.raises(BadBackup, match="not a finished backup"):
        check_backup(tmp_path / "copy")


def test_a_newer_backup_is_refused(store: Store, tmp_path: Path) -> None:
    store.close()
    back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    path = tmp_path / "copy" / NAME
    whole = path.read_bytes()
    path.write_bytes(seal(BACKUP_FORMAT + 1, {"something": "else"}))
    with pytest.raises(UnsupportedFormat, match="the backup has format 2"):
        read_manifest(tmp_path / "copy")
    path.write_bytes(whole)
    newer = msgspec.structs.replace(read_manifest(tmp_path / "copy"), log_format=99)
    path.write_bytes(pack_manifest(newer))
    with pytest.raises(UnsupportedFormat, match="a log of format 99"):
        restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)


def test_damage_is_not_backed_up(store: Store, tmp_path: Path) -> None:
    store.close()
    path = sorted((tmp_path / "data" / "commitlog").iterdir())[0]
    with path.open("r+b") as file:
        file.seek(5_000)
        byte = file.read(1)
        file.seek(5_000)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(DamagedLog, match="damaged at offset"):
        back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_missing_segment_is_noticed(store: Store, tmp_path: Path, number: int) -> None:
    store.close()
    sorted((tmp_path / "data" / "commitlog").iterdir())[number].unlink()
    with pytest.raises(DamagedLog):
        back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)


def test_where_something_is_nothing_is_written(store: Store, tmp_path: Path) -> None:
    store.close()
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("keep")
    for target in (full, full / "mine", tmp_path / "data" / "inside"):
        with pytest.raises(BackupTargetInUse):
            back_up(tmp_path / "data", target, NOW_MS)
    back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    with pytest.raises(BackupTargetInUse):
        restore(tmp_path / "copy", full, NEW_LOG_ID)
    assert [path.name for path in full.iterdir()] == ["mine"]
    with pytest.raises(NoDataDirectory):
        back_up(full, tmp_path / "other", NOW_MS)


def test_an_empty_directory_may_be_the_target(store: Store, tmp_path: Path) -> None:
    store.close()
    for name in ("copy", "new"):
        (tmp_path / name).mkdir()
    back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    restore(tmp_path / "copy", tmp_path / "new", NEW_LOG_ID)
    segment = next((tmp_path / "new" / "commitlog").iterdir())
    header = unpack_segment_header(segment.read_bytes()[:64])
    assert header is not None
    assert header.log_id == NEW_LOG_ID
