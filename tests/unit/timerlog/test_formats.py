"""Files of a newer version are refused, each kind of them, and nothing is changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

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
from timerlog.maintenance.inspect import inspect_directory
from timerlog.maintenance.repair import repair
from timerlog.recovery import checkpoint
from timerlog.store import Store


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


@pytest.mark.parametrize("look", [inspect_directory, lambda directory: repair(directory, NOW_MS, apply=True)])
def test_tools_refuse_it_too(directory: Path, look: Callable[[Path], object]) -> None:
    newer_segment(directory)
    with pytest.raises(UnsupportedFormat):
        look(directory)


def test_a_newer_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode({"format": 99, "something": "else"}))
    with pytest.raises(UnsupportedFormat, match="the job has format 99"):
        JobFiles(tmp_path)
