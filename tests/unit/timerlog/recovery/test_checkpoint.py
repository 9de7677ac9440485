"""Checkpoints: read back whole or not at all, and trusted only when that is safe."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import msgspec
import pytest

from timerlog.commitlog.records import GroupRecord, TopicRecord
from timerlog.errors import UnsupportedFormat
from timerlog.files.disk import FileDisk
from timerlog.recovery import checkpoint
from timerlog.recovery.checkpoint import Checkpoint
from timerlog.tables.base_record import Base, GroupBase, TopicBase

ONE = Checkpoint(
    log_id=1,
    position=2,
    durable_position=3,
    clean=False,
    boot_id="this boot",
    base=Base(
        next_id=4,
        first_id=2,
        tick_ms=5,
        last_topic_id=1,
        last_group_id=1,
        topics=[TopicBase(TopicRecord(1, "t", 6), 7, 3, 1, 2)],
        groups=[GroupBase(GroupRecord(1, 1, "g", 0, 8), 2, 0, 4)],
        documents={"note": b"x"},
        failures=[],
        transactions=[],
    ),
)


@pytest.fixture
def disk(tmp_path: Path) -> FileDisk:
    return FileDisk(tmp_path)


def test_round_trip(disk: FileDisk) -> None:
    assert checkpoint.load(disk) is None
    disk.replace(checkpoint.NAME, checkpoint.pack(ONE), durable=True)
    assert checkpoint.load(disk) == ONE


def test_any_damage_means_none(disk: FileDisk) -> None:
    disk.replace(checkpoint.NAME, checkpoint.pack(ONE), durable=False)
    content = (disk.directory / "checkpoint").read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 4
        (disk.directory / "checkpoint").write_bytes(flipped)
        assert checkpoint.load(disk) is None
        (disk.directory / "checkpoint").write_bytes(content[:place])
        assert checkpoint.load(disk) is None


@pytest.mark.parametrize("older", [{"format": 1}, {"version": 2}])
def test_what_an_older_version_wrote_is_not_used(disk: FileDisk, older: dict[str, int]) -> None:
    disk.replace(checkpoint.NAME, checkpoint.pack(msgspec.structs.replace(ONE, **older)), durable=True)
    assert checkpoint.load(disk) is None


@pytest.mark.parametrize("newer", [{"format": 99}, {"version": 99}])
def test_what_a_newer_version_wrote_is_refused(disk: FileDisk, newer: dict[str, int]) -> None:
    disk.replace(checkpoint.NAME, checkpoint.pack(msgspec.structs.replace(ONE, **newer)), durable=True)
    with pytest.raises(UnsupportedFormat, match="99"):
        checkpoint.load(disk)


@pytest.mark.parametrize(
    ("clean", "boot", "trusted"),
    [
        (True, "this boot", True),
        (True, "another", True),
        (False, "this boot", True),
        (False, "another", False),
    ],
)
def test_trust(clean: bool, boot: str, trusted: bool) -> None:
    with mock.patch.object(checkpoint, "boot_id", return_value=boot):
        assert checkpoint.is_trustworthy(msgspec.structs.replace(ONE, clean=clean)) is trusted
        assert not checkpoint.is_trustworthy(msgspec.structs.replace(ONE, boot_id=""))
