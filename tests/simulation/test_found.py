"""What the simulator has found, each as small as possible."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tickwheel_native import memory
from tickwheel_simulation.disk import Disk, View
from tickwheel_simulation.network import Connection
from tickwheel_simulation.rocketmq.process import GatewayProcess
from tickwheel_simulation.rocketmq.profile import Profile
from tickwheel_simulation.scene import CALM, Scene
from timerlog.errors import DiskFull, LogFailed
from timerlog.files import mapped_file as region
from timerlog.recovery import checkpoint
from timerlog.store import Store


class NothingKept(random.Random):
    """A power loss after which nothing is there that was not synced."""

    def choice(self, seq: object) -> str:  # type: ignore[override]
        return "none"


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(NothingKept(1))
    yield disk
    disk.close()


def opened(disk: Disk, directory: Path, boot: str) -> Store:
    with mock.patch.object(checkpoint, "boot_id", return_value=boot):
        return Store._open(directory, View(disk, lambda: None), SMALL, NOW_MS, 1)


def test_a_power_loss_after_a_clean_stop_leaves_no_hole_in_the_log(disk: Disk, tmp_path: Path) -> None:
    """The MARK behind the last sync was part of what the checkpoint covered, and not on the disk."""
    store = opened(disk, tmp_path, "one")
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"first"]), NOW_MS)
    store.close()
    disk.lose_power()
    store = opened(disk, tmp_path, "two")
    assert store.recovery.was_clean
    store.produce.ingest(send(topic, [b"second"]), NOW_MS)
    pump(store, NOW_MS)
    store.sync()
    state = store.look.state_hash()
    store.close(clean=False)
    disk.lose_power()
    store = opened(disk, tmp_path, "three")
    assert not store.recovery.from_checkpoint
    assert store.tables.next_id == 3
    assert store.look.state_hash() == state
    store.close()


def test_the_wheel_turns_back_without_a_free_block(disk: Disk, tmp_path: Path) -> None:
    """A wheel that was made anew needed space, and without it the old one was used after it was closed."""
    store = opened(disk, tmp_path, "one")
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 100, times_ms=[NOW_MS + 50] * 100), NOW_MS)
    assert pump(store, NOW_MS) == 0

    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: -errno.ENOSPC) if name == "allocate" else getattr(memory, name)

    with mock.patch.object(region, "memory", FullDisk()):
        store.fill_wheel.clock_went_back(NOW_MS - 10_000, 10_000)
    assert store.dequeue_get.next_wakeup_ms() is not None
    assert pump(store, NOW_MS + 49) == 0
    assert pump(store, NOW_MS + 50) == 100
    store.close()


def test_a_start_that_fails_keeps_no_address_space(disk: Disk, tmp_path: Path) -> None:
    """A process that tries again and again on a full disk ran out of it."""
    opened(disk, tmp_path, "one").close()
    before = address_space_bytes()

    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: -errno.ENOSPC) if name == "allocate" else getattr(memory, name)

    with mock.patch.object(region, "memory", FullDisk()):
        for _ in range(3):
            with pytest.raises(DiskFull):
                opened(disk, tmp_path, "another")
            with pytest.raises(DiskFull):
                opened(disk, tmp_path, "one")
    assert address_space_bytes() - before < 1 << 30


@pytest.mark.parametrize("written_bytes", [1, 40, 63])
@pytest.mark.parametrize("power_is_lost", [False, True])
def test_a_segment_with_half_a_header_does_not_stop_a_start(
    tmp_path: Path, written_bytes: int, power_is_lost: bool
) -> None:
    """Seed 7010 with 0.01 hours: the write of a new segment's header failed in the middle."""
    disk = Disk(mock.Mock(random.Random, wraps=random.Random(1)))
    store = opened(disk, tmp_path, "one")
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"first"]), NOW_MS)
    store.sync()
    state = store.look.state_hash()
    disk.faults.write_fails = True
    with (
        mock.patch.object(disk.rng, "randint", return_value=written_bytes),
        pytest.raises(LogFailed, match="simulated"),
    ):
        store.log.roll()
    store.close(clean=False)
    assert len(disk.segments) == 2
    if power_is_lost:
        for inode in disk.segments.values():
            inode.sync()
        disk.sync_directory()
        disk.lose_power()
    store = opened(disk, tmp_path, "two" if power_is_lost else "one")
    assert store.look.state_hash() == state
    assert list(disk.segments) == [0]
    store.close()
    disk.close()


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


def test_a_sync_has_nothing_of_a_segment_that_came_after_its_begin(disk: Disk) -> None:
    """Also where that lies in memory where another one lay."""
    view = View(disk, lambda: None)
    view.open_segment(0, create=True).write(0, b"before")
    view.sync_limits = view.written()
    view.remove_segment(0)
    later = view.open_segment(1, create=True)
    later.write(0, b"after")
    later.sync()
    assert disk.segments[1].synced == b""


def test_a_gateway_that_reaches_the_broker_anew_has_another_link() -> None:
    """Also where that lies in memory where the one before lay."""

    def link() -> Connection:
        return Connection(random.Random(1), CALM, 1, lambda _: None)

    scene = Scene(1, replays=0.0)
    process = GatewayProcess(scene, Profile.draw(random.Random(1)), scene.network, 0)
    process._links = [link()]
    before = process.links
    process._links.clear()
    process._links.append(link())
    assert process.links != before
