"""What an owner trims goes everywhere, wherever a machine stops meanwhile; a replica can begin with what is left."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.support.cluster.replicas import GENESIS, SETTINGS, START, Owner, Replicas, segments_of, work
from tests.support.native.driver import NOW_MS
from tests.support.stores.purging import LATER_MS
from timerlog.background import WaitDurable
from timerlog.errors import DamagedLog, DiskFull
from timerlog.files.disk import FileDisk
from timerlog.layout import RecordType
from timerlog.purge.drop import DropTicket, FreeTicket
from timerlog.replication.follower import Follower, open_follower
from timerlog.replication.genesis import genesis_record
from timerlog.replication.origin import origin_of
from timerlog.replication.record import Head, Kind, pack
from timerlog.store import Store


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def purge(replicas: Replicas, owner: Owner) -> None:
    """And the partition loses what is not needed any more."""
    owner.purge(LATER_MS)
    offset = owner.trimmed_offset
    assert offset is not None
    assert offset > replicas.first, "something went"
    replicas.first = offset


def trim(follower: Follower) -> int:
    """All that there is to drop; in how many steps."""
    count = 0
    while follower.trim_step():
        count += 1
    return count


def purged(replicas: Replicas) -> tuple[Owner, Follower]:
    """An owner that has dropped something, and a follower that has read so, and has still all."""
    owner = replicas.owner(1, 1)
    work(owner, 20)
    follower = replicas.follower(2)
    purge(replicas, owner)
    replicas.first = 0
    replicas.follow(follower)
    return owner, follower


def check_same(replicas: Replicas, node: int, term: int, segments: dict[str, bytes], state: str) -> None:
    """A node that follows to the end, and drops what can go, has these segments, and this state as the next owner."""
    follower = replicas.follower(node)
    replicas.follow(follower)
    trim(follower)
    assert replicas.segments(node) == segments
    follower.close()
    assert replicas.owner(node, term).close() == state


def test_followers_drop_what_the_owner_drops(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    for turn in range(3):
        work(owner, 20, first=20 * turn)
        owner.purge(LATER_MS)
        replicas.follow(follower)
        assert len(replicas.segments(2)) > len(replicas.segments(1))
        assert trim(follower) > 1
        assert trim(follower) == 0
        assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 2, 2)


def test_a_new_replica_begins_with_what_is_left(replicas: Replicas) -> None:
    """From the partition alone, after each of several trims; also when batches and BASE records are cut into many."""
    owner = replicas.owner(1, 1, max_bytes=200)
    for turn in range(3):
        work(owner, 15, first=15 * turn)
        purge(replicas, owner)
        node = 10 + turn
        follower = replicas.follower(node)
        assert follower.offset == replicas.first - 1
        replicas.follow(follower)
        trim(follower)
        assert replicas.segments(1) == replicas.segments(node)
        directory = replicas.directory(node)
        store = Store.of(follower.promote(), FileDisk(directory), SETTINGS, NOW_MS)
        assert store.look.state_hash() == owner.store.look.state_hash()
        assert store.select.find("t", ["key-0-19"]) == owner.store.select.find("t", ["key-0-19"])
        store.close(clean=False)
    owner.store.close(clean=False)


def test_owners_take_turns_and_trim(replicas: Replicas) -> None:
    """The segments of each of them say which log it is."""
    for turn in range(4):
        owner = replicas.owner(1 + turn % 2, turn + 1)
        work(owner, 15, first=15 * turn)
        purge(replicas, owner)
        segments = replicas.segments(1 + turn % 2)
        state = owner.close()
    check_same(replicas, 3, 5, segments, state)


def test_an_owner_drops_what_the_one_before_trimmed(replicas: Replicas) -> None:
    """A follower that had no time for it becomes the owner."""
    owner = replicas.owner(1, 1)
    work(owner, 20)
    owner.purge(LATER_MS)
    segments = replicas.segments(1)
    owner.store.close(clean=False)
    owner = replicas.owner(2, 2)
    before = len(replicas.segments(2))
    assert before > len(segments)
    steps = owner.purge_steps(NOW_MS)
    assert isinstance(next(steps), DropTicket), "before anything else"
    next(steps)
    assert replicas.segments(2).keys() == segments.keys()
    owner.store.close(clean=False)


def test_nothing_is_dropped_before_its_trim_counts(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    work(owner, 20)
    segments = owner.store.log.segments
    for pause in owner.purge_steps(LATER_MS):
        if isinstance(pause, WaitDurable):
            break
        assert not isinstance(pause, DropTicket)
    assert owner.store.applier.trimmed > segments[0]
    assert owner.store.log.segments[: len(segments)] == segments
    owner.store.checkpoints.save(clean=False, durable=False)
    owner.store.close(clean=False)
    follower = replicas.follower(1)  # its TRIM never counted
    replicas.follow(follower)
    assert trim(follower) == 0
    assert len(replicas.segments(1)) == len(segments)
    follower.close()


@pytest.mark.parametrize("count", [1, 3, 6, 9, 12, 15, 18, 21, 25, 30, 40])
def test_an_owner_may_stop_at_any_step(replicas: Replicas, count: int) -> None:
    owner = replicas.owner(1, 1)
    work(owner, 20)
    for _ in islice(owner.purge_steps(LATER_MS), count):
        pass
    owner.commit()
    state = owner.close()
    assert replicas.owner(1, 2).close() == state
    owner = replicas.owner(2, 3)
    assert owner.store.look.state_hash() == state
    work(owner, 5, first=20)
    owner.purge(LATER_MS)
    segments = replicas.segments(2)
    check_same(replicas, 1, 4, segments, owner.close())


def test_a_follower_may_stop_at_any_step(replicas: Replicas) -> None:
    owner, follower = purged(replicas)
    segments = replicas.segments(1)
    state = owner.close()
    steps = 0
    while True:
        copy = replicas.directory(100 + steps)
        shutil.copytree(replicas.directory(2), copy)
        again = replicas.follower(100 + steps)
        replicas.follow(again)
        trim(again)
        assert segments_of(copy) == segments
        store = Store.of(again.promote(), FileDisk(copy), SETTINGS, NOW_MS)
        assert store.look.state_hash() == state
        store.close(clean=False)
        shutil.rmtree(copy)
        if not follower.trim_step():
            break
        steps += 1
    assert steps > 3
    follower.close()


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_start_deletes_what_was_being_deleted(replicas: Replicas, deleted: int) -> None:
    """The checkpoint without the segments is on the disk, and they are not gone, or not all of them."""
    owner, follower = purged(replicas)
    segments = replicas.segments(1)
    remove = FileDisk.remove_segment
    left = [deleted]

    def stop(disk: FileDisk, base: int) -> None:
        if not left[0]:
            raise OSError("killed")
        left[0] -= 1
        remove(disk, base)

    with mock.patch.object(FileDisk, "remove_segment", stop), pytest.raises(OSError, match="killed"):
        follower.trim_step()
    shutil.copytree(replicas.directory(2), replicas.directory(3))
    follower.close()
    assert len(replicas.segments(3)) > len(segments)
    again = replicas.follower(3)
    assert replicas.segments(3).keys() == segments.keys()
    replicas.follow(again)
    replicas.hand_over(owner, again, 3, 2)


def test_a_stop_in_order_leaves_what_was_trimmed_to_the_next_start(replicas: Replicas) -> None:
    owner, follower = purged(replicas)
    follower.close()
    follower = replicas.follower(2)
    assert replicas.segments(2).keys() == replicas.segments(1).keys()
    replicas.follow(follower)
    replicas.hand_over(owner, follower, 2, 2)


def test_followers_give_pages_of_the_tables_back(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    topic = owner.store.topics.open("gone", NOW_MS)
    work(owner, 60)
    ids = range(1, owner.store.tables.next_id)
    owner.store.change.cancel(ids, NOW_MS)
    owner.commit()
    replicas.follow(follower)
    table = replicas.directory(2) / "messages.table"
    before = table.stat().st_blocks
    owner.purge(LATER_MS)
    replicas.follow(follower)
    with mock.patch.object(FreeTicket, "run", autospec=True, side_effect=FreeTicket.run) as run:
        assert trim(follower) > 3
    assert run.call_count
    assert table.stat().st_blocks < before
    assert topic
    replicas.hand_over(owner, follower, 2, 2)


def test_a_full_disk_only_delays_it(replicas: Replicas) -> None:
    owner, follower = purged(replicas)
    with mock.patch.object(FileDisk, "replace", side_effect=DiskFull("full")):
        assert not follower.trim_step()
        follower.housekeeping(NOW_MS + 60_000)
    assert trim(follower) > 1
    assert replicas.segments(1) == replicas.segments(2)
    follower.close()
    owner.store.close(clean=False)


def test_a_replica_that_is_too_old_is_made_anew(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1)
    follower = replicas.follower(2)
    work(owner, 5)
    replicas.follow(follower)
    follower.close()
    old = replicas.segments(2)
    work(owner, 20, first=5)
    purge(replicas, owner)
    follower = replicas.follower(2)
    assert follower.offset == replicas.first - 1
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    assert not old.keys() & replicas.segments(2).keys()
    replicas.hand_over(owner, follower, 2, 2)


def test_an_origin_is_told_by_genesis_or_base(replicas: Replicas) -> None:
    owner = replicas.owner(1, 1, max_bytes=200)
    work(owner, 20)
    purge(replicas, owner)
    owner.store.close(clean=False)
    records = list(enumerate(replicas.partition.records))
    assert origin_of(records[:1]) == (GENESIS, START, 0, None)
    first = replicas.first
    whole = origin_of(records[first:])
    assert whole is not None
    assert (whole.genesis, whole.start.offset, whole.first) == (GENESIS, first - 1, first)
    assert whole.start.end % SETTINGS.segment_bytes == 64
    needed = next(count for count in range(1, 100) if origin_of(records[first : first + count]))
    assert needed > 2, "the BASE goes on in further records"
    foreign = (first, b"nothing that counts")
    assert origin_of([*records[first : first + 1], foreign, *records[first + 1 :]]) == whole


def _base(payload: bytes) -> bytes:
    return struct.pack("<IIBBHI", 0, 16 + len(payload), RecordType.BASE, 0, 0, 0) + payload


@pytest.mark.parametrize(
    "body",
    [
        lambda: struct.pack("<IIBBHI", 0, 16, RecordType.PUT, 0, 0, 0),
        lambda: _base(b"\xc1"),
        lambda: _base(msgspec.msgpack.encode({"next_id": 1})),
        lambda: _base(msgspec.msgpack.encode({"genesis": b"{"})),
    ],
)
def test_what_begins_nowhere_is_refused(body: Callable[[], bytes]) -> None:
    with pytest.raises(DamagedLog):
        origin_of(
            [
                (
                    7,
                    pack(
                        Head(
                            kind=Kind.DATA, flags=1, term=1, node=1, seq=1, position=64, chain=0, clock_ms=0
                        ),
                        body(),
                    ),
                )
            ]
        )


def test_neither_a_beat_nor_anything_else_begins_a_log() -> None:
    for record in (
        b"something else",
        pack(Head(kind=Kind.BEAT, flags=0, term=1, node=1, seq=1, position=0, chain=0, clock_ms=0)),
    ):
        with pytest.raises(DamagedLog, match="offset 7"):
            origin_of([(7, record)])
    assert origin_of([]) is None


def test_genesis_may_stand_behind_deleted_records(tmp_path: Path) -> None:
    """A partition that was used before for something else, and emptied."""
    origin = origin_of([(41, genesis_record(GENESIS, 0))])
    assert origin is not None
    follower = open_follower(tmp_path, FileDisk(tmp_path), SETTINGS, origin, NOW_MS)
    assert follower.offset == 41
    follower.close()
