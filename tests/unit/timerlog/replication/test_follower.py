"""Replicas have the same bytes and the same state as the owner of the log, at each batch."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.support.cluster.replicas import GENESIS, SETTINGS, START, Replicas, work
from tests.support.native.driver import MIB, NOW_MS, pump
from tests.support.native.frames import delivered, send
from tests.support.stores.damage import flip
from tests.support.stores.far import BEYOND_FLOATS, FAR, narrow_tables
from timerlog.commitlog import addresses
from timerlog.errors import BadDirectory, BadSettings, DamagedLog, DiskFull
from timerlog.files.disk import FileDisk
from timerlog.files.held_space import Lender
from timerlog.recovery import checkpoint
from timerlog.recovery.checkpoint import Checkpoints
from timerlog.replication.follower import open_follower
from timerlog.replication.origin import Origin
from timerlog.replication.record import Writer, fence
from timerlog.replication.rule import Said
from timerlog.store import Store
from timerlog.wheel.wheel import TimerWheel


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def test_a_follower_has_the_same_bytes_and_becomes_the_same_store(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    work(owner, 30)
    state = owner.store.look.state_hash()
    assert len(owner.store.log.segments) > 3
    owner.store.close(clean=False)
    other = replicas.owner(2, 2)
    assert other.store.look.state_hash() == state
    assert other.store.select.find("t", ["key-3-4", "key-29-19", "key-30-0"]) == [65, 600, 0]
    assert replicas.segments(1) == replicas.segments(2)
    assert not other.store.recovery.replayed_bytes
    other.store.close(clean=False)


@pytest.mark.parametrize("first", [FAR, BEYOND_FLOATS])
def test_a_log_that_is_far_along_moves_in_every_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(addresses, "ROOM_BYTES", SETTINGS.segment_bytes)
    position = first // SETTINGS.segment_bytes * SETTINGS.segment_bytes
    replicas = Replicas(tmp_path, position)
    owner, follower = replicas.owner(1, 1), replicas.follower(2)
    work(owner, 20)
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    assert follower._log.addresses.end > position + 2 * SETTINGS.segment_bytes, "it has moved"
    follower.close()
    follower = replicas.follower(2)
    work(owner, 20, first=20)
    owner.purge(NOW_MS + 10 * SETTINGS.purge_after_ms)
    owner.commit()
    replicas.follow(follower)
    assert follower.end > position
    replicas.hand_over(owner, follower, 2, 2)


def test_tables_move_in_every_replica(replicas: Replicas) -> None:
    with narrow_tables():
        owner, follower = replicas.owner(1, 1), replicas.follower(2)
        places = set()
        for turn in range(4):
            work(owner, 20, first=20 * turn)
            owner.purge(NOW_MS + 10 * SETTINGS.purge_after_ms)
            owner.commit()
            replicas.follow(follower)
            places.add(follower._opened.tables.messages.address)
        assert len(places) > 2, "they have moved"
        replicas.hand_over(owner, follower, 2, 2)


def test_it_goes_on_where_it_was(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    work(owner, 10)
    replicas.follow(follower, up_to=len(replicas.partition.records) // 2)
    half = follower.offset
    follower.close()
    work(owner, 10, first=10)
    follower = replicas.follower(2)
    assert START.offset < follower.offset <= half
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 2, 2)


def test_owners_take_turns(replicas: Replicas) -> None:
    """What a former owner has that does not count is cut off; what it followed since is as everywhere."""
    state = ""
    for turn in range(6):
        owner = replicas.owner(1 + turn % 3, turn + 1)
        assert turn == 0 or owner.store.look.state_hash() == state
        work(owner, 4, first=4 * turn)
        state = owner.store.look.state_hash()
        owner.store.produce.ingest(send(1, [b"nobody was told of this"]), NOW_MS)
        owner.store.log.flush()
        owner.store.close(clean=False)
    followers = [replicas.follower(node) for node in (1, 2, 3, 4)]
    for follower in followers:
        replicas.follow(follower)
    for node in (2, 3, 4):
        assert replicas.segments(1) == replicas.segments(node)
    assert len({follower.reader.state for follower in followers}) == 1
    stores = [
        Store.of(one.promote(), FileDisk(replicas.directory(node)), SETTINGS, NOW_MS)
        for node, one in enumerate(followers, 1)
    ]
    assert {store.look.state_hash() for store in stores} == {state}
    for store in stores:
        store.close(clean=False)


def test_what_became_due_while_no_node_served_comes_in_the_order_of_its_times(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    topic = owner.store.topics.open("t", NOW_MS)
    group = owner.store.groups.open(topic, "g", NOW_MS)
    times = [NOW_MS + 10_000 - 10 * number for number in range(20)]
    owner.store.produce.ingest(send(topic, [b"x"] * 20, times_ms=times), NOW_MS)
    owner.commit()
    owner.store.close(clean=False)
    later_ms = NOW_MS + 60_000
    other = replicas.owner(2, 2, later_ms)
    pump(other.store, later_ms)
    frame = other.store.deliver.fetch(group, other.store.holders.acquire(group), 1, 20, MIB, later_ms)
    assert frame
    ids, _ = delivered(frame)
    assert ids == list(range(20, 0, -1))
    other.store.close(clean=False)


def test_a_batch_counts_whole_or_not_at_all(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    work(owner, 3)
    follower = replicas.follower(2)
    replicas.follow(follower)
    end = follower.end
    topic = owner.store.topics.open("t", NOW_MS)
    owner.store.produce.ingest(send(topic, [b"x" * 500] * 10), NOW_MS)
    ticket = owner.store.begin_sync()
    assert ticket is not None
    first, *others = owner.writer.data(ticket.pieces, NOW_MS, 900)
    assert len(others) > 2
    offset = replicas.partition.append(first)
    assert follower.take(offset, first) is Said.PART
    assert follower.end == end
    replicas.partition.append(fence(2, 2, NOW_MS))
    for record in others:
        replicas.partition.append(record)
    replicas.follow(follower)
    assert follower.end == end, "the rest came too late"
    follower.close()
    owner.store.close(clean=False)


def test_settings_that_decide_what_records_do_are_those_of_the_log(tmp_path: Path) -> None:
    tmp_path.joinpath("node").mkdir()
    differing = msgspec.structs.replace(SETTINGS, ack_wait_ms=1_234)
    with pytest.raises(BadSettings, match="ack_wait_ms is 1234 here and 1000 in the cluster"):
        open_follower(
            tmp_path / "node", FileDisk(tmp_path / "node"), differing, Origin(GENESIS, START, 0), NOW_MS
        )


def test_a_directory_of_another_log_is_refused(replicas: Replicas) -> None:
    replicas.directory(1).mkdir(parents=True)
    Store.open(replicas.directory(1), SETTINGS, NOW_MS).close()
    before = replicas.segments(1)
    with pytest.raises(BadDirectory, match="another log"):
        replicas.follower(1)
    assert replicas.segments(1) == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "lost segment", "lost checkpoint", "lost tables"])
def test_a_damaged_replica_heals_from_the_partition(replicas: Replicas, damage: str) -> None:
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    work(owner, 20)
    replicas.follow(follower)
    follower.close()
    directory = replicas.directory(2)
    first = sorted((directory / "commitlog").glob("*"))[0]
    match damage:
        case "cut":
            first.write_bytes(first.read_bytes()[:10_000])
        case "flipped":
            (directory / "checkpoint").unlink()
            data = bytearray(first.read_bytes())
            data[5_000] ^= 4
            first.write_bytes(data)
        case "lost segment":
            first.unlink()
        case "lost checkpoint":
            (directory / "checkpoint").unlink()
        case "lost tables":
            (directory / "messages.table").unlink()
    follower = replicas.follower(2)
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 2, 2)


@pytest.mark.parametrize("damage", ["record", "header", "size"])
def test_what_lies_before_damage_is_kept_at_a_start(replicas: Replicas, damage: str) -> None:
    """After a crash of the machine: the checkpoint is of another boot. A segment without its header is no segment."""
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    follower.places.step_bytes = 1
    work(owner, 25)
    replicas.follow(follower)
    follower.close()
    directory, segment_bytes = replicas.directory(2), owner.store.log.segment_bytes
    (directory / "checkpoint").unlink()
    base = owner.store.log.segments[2]
    match damage:
        case "record":
            flip(directory, base + 5_000, segment_bytes)
        case "header":
            flip(directory, base + 20, segment_bytes)
        case "size":
            os.truncate(directory / "commitlog" / f"{base:020d}.log", 5_000)
    follower = replicas.follower(2)
    if damage != "header":
        assert base < follower.end < base + 5_000
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    follower.close()
    owner.store.close(clean=False)


def test_what_is_no_record_of_the_log_ends_the_follower(replicas: Replicas) -> None:
    follower = replicas.follower(1)
    replicas.partition.append(fence(2, 1, NOW_MS))
    for record in Writer(2, 1, 0).data([(64, b"no record at all, but long enough")], NOW_MS):
        replicas.partition.append(record)
    with pytest.raises(DamagedLog, match="no whole record"):
        replicas.follow(follower)
    follower.close()
    follower = replicas.follower(1)
    assert (follower.offset, follower.end) == (1, START.end), "behind the FENCE"
    follower.close()


def test_an_owner_on_a_full_disk_leaves_no_checkpoint_of_a_follower(replicas: Replicas) -> None:
    """It would say after a crash that what the owner applied counts."""
    owner = replicas.owner(1, 1)
    work(owner, 3)
    follower = replicas.follower(2)
    replicas.follow(follower)
    follower.housekeeping(NOW_MS + 60_000)
    disk = FileDisk(replicas.directory(2))
    found = checkpoint.load(disk)
    assert found is not None
    assert found.place is not msgspec.UNSET
    with mock.patch.object(Checkpoints, "_prepare", side_effect=DiskFull("the disk is full")):
        store = Store.of(follower.promote(), disk, SETTINGS, NOW_MS)
    assert checkpoint.load(disk) is None
    store.close(clean=False)
    owner.store.close(clean=False)


def test_an_owner_whose_clock_is_behind_the_last_tick_of_the_log(replicas: Replicas) -> None:
    """Its own clock decides: what is new is neither early by it nor late, and what was due stays due."""
    before, behind_ms = NOW_MS + 1_000, 250
    owner = replicas.owner(1, 1, before)
    topic = owner.store.topics.open("t", before)
    times = [before, before + 100]
    owner.store.produce.ingest(send(topic, [b"due", b"later"], times_ms=times), before)
    owner.commit()
    assert pump(owner.store, before) == 1
    owner.commit()
    owner.store.close(clean=False)

    now_ms = before - behind_ms
    other = replicas.owner(2, 2, now_ms)
    assert other.store.applier.tick_ms == before
    other.store.produce.ingest(send(topic, [b"between"], times_ms=[now_ms + 200]), now_ms)
    for at_ms, due in (
        (now_ms, 0),
        (now_ms + 199, 0),
        (now_ms + 200, 1),
        (before + 99, 0),
        (before + 100, 1),
    ):
        other.commit()
        assert pump(other.store, at_ms) == due
    other.commit()
    other.store.close(clean=False)


def test_a_wheel_that_is_ahead_of_its_owner_s_clock_is_found(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ahead(directory: Path | None, tick_ms: int, lender: Lender | None) -> TimerWheel:
        return TimerWheel(directory, max(tick_ms, NOW_MS + 1_000), lender)

    monkeypatch.setattr("timerlog.store.TimerWheel", ahead)
    with pytest.raises(AssertionError, match="0 == 1"):
        test_an_owner_whose_clock_is_behind_the_last_tick_of_the_log(replicas)
