"""Files of a newer version are refused, each kind of them, and nothing is changed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.support.stores.damage import Original
from tickwheel_broker.errors import advice_for
from tickwheel_native import crc32c
from timerlog.bulk.job_files import JobFiles
from timerlog.bulk.write import MANIFEST
from timerlog.commitlog.segments import ADOPTING, ADOPTING_FORMAT
from timerlog.errors import UnsupportedFormat
from timerlog.files.disk import FileDisk
from timerlog.files.small_files import seal
from timerlog.layout import RecordType
from timerlog.maintenance.inspect import inspect_directory
from timerlog.maintenance.repair import repair
from timerlog.recovery import checkpoint
from timerlog.store import Store
from timerlog.tables import base_record
from timerlog.tables.tables import remove_derived_files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.groups.open(topic, "g", NOW_MS)
    store.produce.ingest(send(topic, [b"x"], keys=[b"k"]), NOW_MS)
    store.close()
    return tmp_path


def change(path: Path, edit: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(content)


def newer_segment(directory: Path) -> None:
    def edit(content: bytearray) -> None:
        content[8:12] = struct.pack("<I", 99)
        content[60:64] = struct.pack("<I", crc32c(bytes(content[:60])))

    change(next((directory / "commitlog").iterdir()), edit)


def newer_record(directory: Path) -> None:
    """A type of record that this version does not know."""
    found = checkpoint.load(FileDisk(directory))
    assert found is not None
    tail = struct.pack("<IBBHI", 16, 99, 0, 0, 0)
    record = struct.pack("<I", crc32c(tail)) + tail

    def edit(content: bytearray) -> None:
        content[found.position : found.position + 16] = record

    change(next((directory / "commitlog").iterdir()), edit)


def newer_checkpoint(directory: Path) -> None:
    found = checkpoint.load(FileDisk(directory))
    assert found is not None
    newer = msgspec.structs.replace(found, format=99)
    (directory / checkpoint.NAME).write_bytes(checkpoint.pack(newer))


def newer_table(name: str) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        def edit(content: bytearray) -> None:
            content[8:12] = struct.pack("<I", 99)

        (directory / checkpoint.NAME).unlink()
        change(directory / name, edit)

    return make


def newer_keys(directory: Path) -> None:
    def edit(content: bytearray) -> None:
        content[:8] = b"TWKEYS02"

    (directory / checkpoint.NAME).unlink()
    change(directory / "keys.index", edit)


def newer_list(directory: Path) -> None:
    (directory / ADOPTING).write_bytes(seal(ADOPTING_FORMAT + 1, {"something": "else"}))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(newer_segment, id="segment"),
        pytest.param(newer_record, id="record"),
        pytest.param(newer_checkpoint, id="checkpoint"),
        pytest.param(newer_table("messages.table"), id="messages.table"),
        pytest.param(newer_table("topics/1.arrivals"), id="arrivals"),
        pytest.param(newer_table("topics/1-1.deliveries"), id="deliveries"),
        pytest.param(newer_keys, id="keys.index"),
        pytest.param(newer_list, id="adopting"),
    ],
)
def test_a_newer_file_is_refused(directory: Path, make: Callable[[Path], None]) -> None:
    make(directory)
    before = Original(directory)
    with pytest.raises(UnsupportedFormat) as refused:
        Store.open(directory, SMALL, NOW_MS)
    assert "newer" in advice_for(refused.value)
    if make is not newer_record:  # the log is read up to there, and what is derived from it is made
        assert before.is_untouched("LOCK")


def knowing(record: int) -> Iterator[None]:
    """As a version that knows the types of records up to one."""
    with (
        mock.patch.object(checkpoint, "NEWEST_RECORD", record),
        mock.patch.object(base_record, "NEWEST_RECORD", record),
    ):
        yield


older = contextmanager(knowing)


def version_of(directory: Path) -> int:
    found = checkpoint.load(FileDisk(directory))
    assert found is not None
    return found.version


@pytest.mark.parametrize("end", ["clean", "killed", "reread", "purged"])
def test_an_older_version_refuses_what_it_does_not_know(tmp_path: Path, end: str) -> None:
    """The checkpoint's version is the newest record's type, whatever became of the record itself."""
    with closing(Store.open(tmp_path, SMALL, NOW_MS)) as store:
        topic = store.topics.open("t", NOW_MS)
        store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    assert version_of(tmp_path) == 3
    with older(RecordType.DROPPED):
        store = Store.open(tmp_path, SMALL, NOW_MS)
        topic = store.topics.open("t", NOW_MS)
        store.groups.open(topic, "g", NOW_MS)
        store.close()
    store = Store.open(tmp_path, SMALL, NOW_MS)
    store.groups.ignore_order("t", "g", ignores_order=True)
    store.sync()
    if end == "purged":
        store.log.roll()
        store.purge(NOW_MS + 2 * SMALL.purge_after_ms)
    store.close(clean=end != "killed")
    if end == "reread":
        remove_derived_files(tmp_path)
        Store.open(tmp_path, SMALL, NOW_MS).close()
    if end == "killed":  # what a running broker does each 10 s
        store = Store.open(tmp_path, SMALL, NOW_MS)
        store.close(clean=False)
    assert version_of(tmp_path) == RecordType.GROUP_ORDER
    before = Original(tmp_path)
    for known in (RecordType.DROPPED, RecordType.GROUP_SEEN):
        with (
            older(known),
            pytest.raises(UnsupportedFormat, match=r"the checkpoint has format 2\.31") as refused,
        ):
            Store.open(tmp_path, SMALL, NOW_MS)
        assert "newer" in advice_for(refused.value)
    assert before.is_untouched("LOCK")
    Store.open(tmp_path, SMALL, NOW_MS).close()


def test_what_follows_from_newer_records_is_refused_where_the_log_has_none(tmp_path: Path) -> None:
    """A BASE says it, too: of a directory that was restored after the records had been purged."""
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.groups.open(topic, "g", NOW_MS, ignores_order=True)
    store.log.roll()
    store.sync()
    store.purge(NOW_MS)
    assert store.log.segments[0] > 0
    store.close()
    (tmp_path / checkpoint.NAME).unlink()
    with older(RecordType.GROUP_SEEN), pytest.raises(UnsupportedFormat, match="records of type 31"):
        Store.open(tmp_path, SMALL, NOW_MS)
    Store.open(tmp_path, SMALL, NOW_MS).close()


def test_a_directory_from_before_types_were_noted(tmp_path: Path) -> None:
    """Nobody knows what its log has had: it is taken for one with all that there was then."""
    Store.open(tmp_path, SMALL, NOW_MS).close()
    found = checkpoint.load(FileDisk(tmp_path))
    assert found is not None
    base = msgspec.structs.replace(found.base, newest_record=0)
    (tmp_path / checkpoint.NAME).write_bytes(
        checkpoint.pack(msgspec.structs.replace(found, version=3, base=base))
    )
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.recovery.was_clean
    store.close()
    assert version_of(tmp_path) == RecordType.GROUP_ORDER


@pytest.mark.parametrize("look", [inspect_directory, lambda directory: repair(directory, NOW_MS, apply=True)])
def test_tools_refuse_it_too(directory: Path, look: Callable[[Path], object]) -> None:
    newer_segment(directory)
    with pytest.raises(UnsupportedFormat):
        look(directory)


def test_a_newer_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode({"format": 99, "something": "else"}))
    with pytest.raises(UnsupportedFormat, match="the job has format 99"):
        JobFiles(tmp_path)
