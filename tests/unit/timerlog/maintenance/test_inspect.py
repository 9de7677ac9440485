"""Offline verification finds what is wrong, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from timerlog.commitlog.reader import LogReader
from timerlog.errors import StoreError
from timerlog.files.disk import FileDisk
from timerlog.maintenance import inspect
from timerlog.maintenance.inspect import inspect_directory
from timerlog.store import Store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    for _ in range(4):
        store.produce.ingest(send(topic, [b"some body"] * 10), NOW_MS)
        store.sync()
    store.close()
    return tmp_path


def segment_of(directory: Path) -> Path:
    return next((directory / "commitlog").glob("*.log"))


def test_a_sound_directory(directory: Path) -> None:
    report = inspect_directory(directory)
    assert report.ok
    assert report.damage == []
    assert report.messages == 40
    assert report.records_by_type["message"] == 40
    assert report.records_by_type["topic"] == 1
    assert report.checkpoint is not None
    assert report.checkpoint["clean"] is True
    assert report.disk_bytes > 0


def test_damage_is_named_with_its_place(directory: Path) -> None:
    segment = segment_of(directory)
    content = bytearray(segment.read_bytes())
    content[400] ^= 1
    segment.write_bytes(content)
    report = inspect_directory(directory)
    assert not report.ok
    (damage,) = report.damage
    assert damage.file == f"commitlog/{segment.name}"
    assert 400 - 64 <= damage.offset <= 400
    assert damage.reason == "bad checksum"
    assert not damage.torn_tail


def test_a_torn_tail_is_no_damage(directory: Path) -> None:
    segment = segment_of(directory)
    end = inspect_directory(directory).log_bytes
    content = bytearray(segment.read_bytes())
    content[end : end + 20] = b"\x30\x00\x00\x00" * 5
    segment.write_bytes(content)
    report = inspect_directory(directory)
    assert report.ok
    assert [damage.torn_tail for damage in report.damage] == [True]
    assert report.torn_tail_bytes == 17


def test_what_is_being_written_is_no_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(directory, SMALL, NOW_MS)

    class Slow(LogReader):
        """Between two looks of it the broker goes on."""

        looks = 0

        def verify(self, position: int) -> tuple[int, int]:
            found = super().verify(position)
            Slow.looks += 1
            if Slow.looks <= 3:
                for _ in range(2):
                    store.produce.ingest(send(1, [b"some body"] * 10), NOW_MS)
                    store.sync()
            return found

    monkeypatch.setattr(inspect, "LogReader", Slow)
    report = inspect_directory(directory)
    store.close()
    assert Slow.looks > 1
    assert report.ok
    assert report.damage == []
    assert report.messages >= 60


def test_what_is_purged_meanwhile_is_not_missed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = FileDisk.segments
    calls: list[int] = []

    def segments(disk: FileDisk) -> list[int]:
        calls.append(1)
        return [*([0, SMALL.segment_bytes] if len(calls) == 1 else listed(disk))]

    monkeypatch.setattr(FileDisk, "segments", segments)
    (directory / "checkpoint.new").symlink_to(directory / "gone")
    report = inspect_directory(directory)
    assert len(calls) == 2
    assert report.ok
    assert report.messages == 40


def test_what_is_not_a_data_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a data directory"):
        inspect_directory(tmp_path / "nothing")


def test_every_file_is_named_with_its_format(directory: Path) -> None:
    report = inspect_directory(directory)
    formats = {one.kind: one.format for one in report.files}
    assert formats == {
        "LOCK": None,
        "checkpoint": 3,
        "commitlog": 2,
        "keys.index": 1,
        "messages.table": 2,
        "arrivals": 2,
        "reserve": None,
        "timer.log": None,
        "timer.wheel": 1,
    }
    states = {one.kind: one.state for one in report.files}
    assert states["timer.log"] == states["timer.wheel"] == "derived"
    assert set(states.values()) == {"whole", "derived"}


@pytest.mark.parametrize("name", ["messages.table", "keys.index", "topics/1.arrivals", "checkpoint"])
def test_a_derived_file_that_is_damaged_is_named_and_does_no_harm(directory: Path, name: str) -> None:
    content = bytearray((directory / name).read_bytes())
    content[60] ^= 1
    (directory / name).write_bytes(content)
    report = inspect_directory(directory)
    assert report.ok
    states = {one.file: one.state for one in report.files}
    assert states[name] == "damaged"
