"""What a cluster may begin with: it is read as a start would, all of it, and nothing in it is changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.damage import flip
from tests.support.stores.purging import LATER_MS
from tickwheel_native import crc32c
from timerlog.commitlog.reader import whole_bytes
from timerlog.errors import (
    BadBackup,
    BadDirectory,
    BadSettings,
    DamagedLog,
    DamagedReplica,
    DirectoryLocked,
    DiskFull,
    NoDataDirectory,
    StoreError,
    UnsupportedFormat,
)
from timerlog.files.disk import FileDisk
from timerlog.files.replica_mark import ReplicaMark, mark_replica
from timerlog.layout import NEWEST_RECORD
from timerlog.maintenance.backup import back_up
from timerlog.maintenance.repair import fill_record, repair
from timerlog.replication import source as sources
from timerlog.replication.source import SourceKind, open_source
from timerlog.settings import StoreSettings
from timerlog.store import Store
from timerlog.tables.tables import Tables

ANY: Final = msgspec.structs.replace(SMALL, segment_bytes=0)


def write(directory: Path, *, segments: int = 3, clean: bool = False) -> tuple[int, str]:
    """A broker's directory; where its log ends, and its state."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    for number in range(segments):
        if number:
            store.log.roll()
        for _ in range(20):
            store.produce.ingest(send(topic, [b"x" * 1_000] * 20), NOW_MS)
            pump(store, NOW_MS)
    store.sync()
    end, state = store.log.appended_position, store.look.state_hash()
    store.close(clean=clean)
    return end, state


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }


@pytest.mark.parametrize("clean", [False, True])
def test_all_of_it_in_batches_of_whole_records(
    tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of a batch is; a record may be larger."""
    end, _ = write(tmp_path / "data", clean=clean)
    before = content(tmp_path / "data")
    read: list[int] = []
    with open_source(tmp_path / "data", ANY, read.append) as source:
        assert (source.kind, source.messages, source.first) == (SourceKind.BROKER, 1_200, 64)
        assert end <= source.end <= end + 24, "a clean stop leaves a MARK"
        assert len(read) == len(source.pieces) == 3
        for size_bytes in (100, 5_000, 1 << 30):
            monkeypatch.setattr(sources, "BATCH_BYTES", size_bytes)
            batches = list(source.batches(source.first))
            assert all(whole_bytes(data) >= 0 for _, data in batches)
            assert sum(len(data) for _, data in batches) == source.size_bytes == source.left_bytes(0)
            assert len({position // SMALL.segment_bytes for position, _ in batches}) == 3
            middle = batches[len(batches) // 2][0]
            assert list(source.batches(middle)) == [batch for batch in batches if batch[0] >= middle]
        assert [len(data) < 2_000 for _, data in batches] == [False] * 3
    assert content(tmp_path / "data") == before
    Store.open(tmp_path / "data", SMALL, NOW_MS).close()


def test_what_an_interrupted_purge_has_left_is_no_part_of_it(tmp_path: Path) -> None:
    """As at a start."""
    directory = tmp_path / "data"
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    ids = store.produce.ingest(send(topic, [b"x" * 1_000] * 20), NOW_MS)
    assert ids
    store.change.cancel(list(range(1, 21)), NOW_MS)
    store.log.roll()
    store.sync()
    shutil.copytree(directory, tmp_path / "before")
    store.purge(LATER_MS)
    assert store.log.segments[0] > 0
    store.close(clean=False)
    first = f"{0:020d}.log"
    shutil.copy(tmp_path / "before" / "commitlog" / first, directory / "commitlog" / first)
    with open_source(directory, ANY) as source:
        assert source.first == SMALL.segment_bytes + 64
    assert (directory / "commitlog" / first).exists()


def no_directory(directory: Path) -> None:
    directory.mkdir()


def no_log(directory: Path) -> None:
    (directory / "commitlog").mkdir(parents=True)


def damage(directory: Path) -> None:
    write(directory)
    flip(directory, 5_000, SMALL.segment_bytes)


def damage_header(directory: Path) -> None:
    write(directory, segments=1)
    flip(directory, 3, SMALL.segment_bytes)


def damage_replica(directory: Path) -> None:
    damage(directory)
    mark_replica(FileDisk(directory), ReplicaMark("c", 0, "00"))


def lose_a_segment(directory: Path) -> None:
    write(directory)
    (directory / "commitlog" / f"{SMALL.segment_bytes:020d}.log").unlink()


def damage_backup(directory: Path) -> None:
    write(directory.with_name("of"))
    back_up(directory.with_name("of"), directory, NOW_MS)
    flip(directory, 5_000, SMALL.segment_bytes)


def newer(directory: Path) -> None:
    """A record of a type that this version does not know."""
    end, _ = write(directory, segments=1)
    unknown = bytearray(fill_record(24))
    unknown[8] = NEWEST_RECORD + 1
    unknown[:4] = crc32c(bytes(unknown[4:])).to_bytes(4, "little")
    with (directory / "commitlog" / f"{0:020d}.log").open("r+b") as file:
        file.seek(end)
        file.write(unknown)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (no_directory, NoDataDirectory, "is not a data directory"),
        (no_log, BadDirectory, "holds no log yet"),
        (damage, DamagedLog, "is damaged at offset"),
        (damage_header, DamagedLog, "no segment of the CommitLog has a whole header"),
        (damage_replica, DamagedReplica, "is damaged at offset"),
        (lose_a_segment, DamagedLog, "is missing"),
        (damage_backup, BadBackup, "is damaged"),
        (newer, UnsupportedFormat, "which this version does not know"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, make: Callable[[Path], None], error: type[StoreError], said: str
) -> None:
    """Nothing is changed, so what is advised can be done."""
    directory = tmp_path / "data"
    make(directory)
    before = content(directory)
    with pytest.raises(error, match=said) as caught, open_source(directory, ANY):
        pass
    assert type(caught.value) is error
    assert content(directory) == before


def test_a_repaired_log_is_another_timeline(tmp_path: Path) -> None:
    damage(tmp_path / "data")
    assert repair(tmp_path / "data", NOW_MS, apply=True).losses
    with open_source(tmp_path / "data", ANY) as source:
        genesis = source.upload_as("c", NOW_MS).genesis
    assert genesis.timeline
    assert genesis.log_number == source.log_id


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data")
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    with pytest.raises(DirectoryLocked, match="is in use"), open_source(tmp_path / "data", ANY):
        pass
    store.close()
    with (
        open_source(tmp_path / "data", ANY),
        pytest.raises(DirectoryLocked),
    ):
        Store.open(tmp_path / "data", SMALL, NOW_MS)


def test_settings_that_the_log_does_not_bear_are_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    for number in range(4):
        store.topics.open(f"t{number}", NOW_MS)
    store.close()
    few = msgspec.structs.replace(ANY, max_topics=3)
    with pytest.raises(BadSettings, match="raise max_topics"), open_source(tmp_path / "data", few):
        pass
    larger = msgspec.structs.replace(ANY, segment_bytes=2 * SMALL.segment_bytes)
    with (
        pytest.raises(BadSettings, match="keeps the size of its segments"),
        open_source(tmp_path / "data", larger),
    ):
        pass


def test_where_it_is_tried_out_there_must_be_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", segments=1)

    def full(*_: object) -> None:
        raise DiskFull("the disk is full (growing messages.table)")

    monkeypatch.setattr(Tables, "ensure_rows", full)
    with pytest.raises(DiskFull, match="TMPDIR names a directory"), open_source(tmp_path / "data", ANY):
        pass


def test_what_was_no_node_has_the_settings_that_are_given(tmp_path: Path) -> None:
    write(tmp_path / "data", segments=1)
    assert sources.kept_settings(tmp_path / "data", StoreSettings(), set()) == StoreSettings()
