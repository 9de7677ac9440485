"""A disk without a free block: what was accepted becomes due, is delivered, acked, given back, cancelled and purged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.stores.purging import LATER_MS
from tests.support.stores.small_disk import limited_disk, small_tmpfs
from timerlog.engine.produce import Stop
from timerlog.errors import DiskFull
from timerlog.files.disk import Disk, FileDisk
from timerlog.store import Store

DUE_MS = NOW_MS + 60_000
#: Space for all messages, whatever becomes of them.
WHOLE = msgspec.structs.replace(SMALL, disk_reserve_bytes=1 << 40)
BATCH = 50


@pytest.fixture
def size_bytes() -> int:
    return 32 * MIB


@pytest.fixture(params=["tmpfs", "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, size_bytes: int) -> Iterator[Path]:
    with (small_tmpfs if request.param == "tmpfs" else limited_disk)(tmp_path / "disk", size_bytes) as path:
        yield path


def offer(store: Store, topic_id: int, due_ms: int, now_ms: int = NOW_MS, body_bytes: int = 8) -> Stop:
    bodies = [bytes(body_bytes)] * BATCH
    times_ms = [due_ms + number for number in range(BATCH)]
    return store.produce.ingest(send(topic_id, bodies, times_ms=times_ms), now_ms).stop


def fill(store: Store, topic_ids: list[int], body_bytes: int = 8) -> None:
    """Sends messages to all topics in turn until one is refused, and takes what little is left of the disk."""
    number = 0
    while True:
        topic_id = topic_ids[number % len(topic_ids)]
        if offer(store, topic_id, DUE_MS + number, body_bytes=body_bytes) is Stop.DISK_FULL:
            break
        number += 1
        if number % 50 == 0:
            pump(store, NOW_MS)
            store.housekeeping(NOW_MS)
    pump(store, NOW_MS)
    take_the_rest(store.disk)


def take_the_rest(disk: Disk) -> None:
    size_bytes, step_bytes = 0, MIB
    while step_bytes >= 4_096:
        try:
            disk.resize_held("filler", size_bytes + step_bytes)
            size_bytes += step_bytes
        except DiskFull:
            step_bytes //= 2


def killed(store: Store, now_ms: int = NOW_MS) -> Store:
    """The store that a new process finds."""
    store.sync()
    directory, state = store.tables.directory, store.look.state_hash()
    assert directory is not None
    store.close(clean=False)
    store = Store.open(directory, WHOLE, now_ms)
    assert store.look.state_hash() == state
    return store


def consume(store: Store, group_id: int, now_ms: int, at_a_time: int = 1_000) -> int:
    """Takes and acks everything that is ready; how many messages."""
    holder, acked = store.holders.acquire(group_id), 0
    while frame := store.deliver.fetch(group_id, holder, 1, at_a_time, MIB, now_ms):
        ids, epochs = delivered(frame)
        assert store.deliver.ack(ack_payload(group_id, ids, epochs), 1, now_ms).accepted == len(ids)
        store.sync()
        acked += len(ids)
    return acked


def open_topics(store: Store) -> set[str]:
    """Opens topics until the disk is full, 1,000 at most; their names."""
    opened = set[str]()
    with suppress(DiskFull):
        for number in range(1_000):
            store.topics.open(f"another-{number}", NOW_MS)
            opened.add(f"another-{number}")
    return opened


def topic_with_groups(store: Store, name: str, groups: int) -> tuple[int, list[int]]:
    topic_id = store.topics.open(name, NOW_MS)
    return topic_id, [store.groups.open(topic_id, f"g{number}", NOW_MS) for number in range(groups)]


@pytest.mark.promise("sending-twice")
def test_a_repeated_send_has_the_answer_of_the_first_time(disk: Path) -> None:
    """The answer was lost, the disk has become full since: what is stored is said to be stored."""
    store = Store.open(disk, WHOLE, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    keys = [b"key-%d" % number for number in range(BATCH)]
    again = send(topic, [b"body"] * BATCH, keys=keys)
    new = send(topic, [b"body"] * BATCH, keys=[*keys[1:], b"another"])
    assert store.produce.ingest(again, NOW_MS).messages == BATCH
    fill(store, [topic])
    count = store.tables.next_id
    repeated = store.produce.ingest(again, NOW_MS)
    assert (repeated.stop, repeated.consumed_bytes, repeated.exceptions) == (
        Stop.NEED_MORE,
        len(again),
        BATCH,
    )
    refused = store.produce.ingest(new, NOW_MS)
    assert (refused.stop, refused.replies) == (Stop.DISK_FULL, b""), (
        "of a frame that has something new, nothing"
    )
    both = store.produce.ingest(again + new + again, NOW_MS)
    assert (both.stop, both.consumed_bytes, both.exceptions) == (Stop.DISK_FULL, len(again + new), BATCH)
    assert both.replies == repeated.replies
    assert store.tables.next_id == count
    store.close()


def test_a_refused_send_is_held_by_nothing(disk: Path) -> None:
    """Frames in which its error was raised would hold the bytes of the send, and be a cycle with them."""
    store = Store.open(disk, WHOLE, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    fill(store, [topic])
    refused = store.produce.ingest(send(topic, [b"body"] * BATCH), NOW_MS).refused
    assert type(refused) is DiskFull
    assert (refused.__traceback__, refused.__cause__, refused.__context__) == (None, None, None)
    store.close()


@pytest.mark.promise("a-full-disk")
def test_everything_but_sends_goes_on(disk: Path) -> None:
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    (one, groups), (other, _) = topic_with_groups(store, "one", 2), topic_with_groups(store, "other", 0)
    fill(store, [one, other])
    sent = store.tables.next_id - 1
    assert sent > 10_000
    store = killed(store)

    ids = range(1, sent + 1)
    assert set(store.change.cancel(ids[:200], NOW_MS)) == {"cancelled"}
    assert set(store.change.reschedule(ids[200:400], DUE_MS * 2 - NOW_MS, NOW_MS)) == {"rescheduled"}
    assert pump(store, DUE_MS + 10_000) >= sent - 400
    nacked, epochs = delivered(
        store.deliver.fetch(groups[0], store.holders.acquire(groups[0]), 1, 100, MIB, DUE_MS) or b""
    )
    assert store.settle.nack(groups[0], nacked, epochs, 0, "not now", DUE_MS) == ["nacked"] * len(nacked)

    store = killed(store, DUE_MS + 10_000)
    later = store.groups.open(other, "later", DUE_MS)
    pump(store, DUE_MS + 20_000)
    acked = [consume(store, group_id, DUE_MS + 20_000) for group_id in (*groups, later)]
    assert acked[0] == acked[1] > 0
    pump(store, DUE_MS * 2)
    again = [consume(store, group_id, DUE_MS * 2) for group_id in (*groups, later)]
    assert acked[0] + acked[2] + again[0] + again[2] == sent - 200

    store = killed(store, DUE_MS * 2)
    assert store.purge(DUE_MS * 2 + LATER_MS - NOW_MS).purged_messages == sent
    store.housekeeping(LATER_MS * 2)
    assert offer(store, one, DUE_MS * 3, DUE_MS * 2) is not Stop.DISK_FULL
    killed(store, DUE_MS * 2).close()


@pytest.mark.promise("a-full-disk")
@pytest.mark.parametrize("size_bytes", [20 * MIB, pytest.param(32 * MIB, marks=pytest.mark.soak)])
def test_one_message_at_a_time(disk: Path) -> None:
    """The reserve is for the worst: each message has records of its own."""
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    topic_id, groups = topic_with_groups(store, "one", 1)
    fill(store, [topic_id], 1_000)
    sent = store.tables.next_id - 1
    assert sent > 5_000
    while (due := store.dequeue_get.turn(DUE_MS + sent, 1)) is not None or store.wheel.pending:
        if due is not None:
            store.dequeue_put_message.move(
                store.dequeue_get_message.look_up(due, DUE_MS + sent), DUE_MS + sent
            )
            store.sync()
    assert consume(store, groups[0], DUE_MS + sent, 1) == sent
    store.close()


def test_another_group_is_refused_when_it_could_not_be_served(disk: Path) -> None:
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    topic_id, _ = topic_with_groups(store, "one", 1)
    fill(store, [topic_id])
    state = store.look.state_hash()
    with pytest.raises(DiskFull):
        store.groups.open(topic_id, "another", NOW_MS)
    assert store.look.state_hash() == state
    more = open_topics(store)  # the reserve may have room for some
    assert len(more) < 1_000
    assert more == store.tables.topic_ids.keys() - {"one"}
    store.close()


@pytest.mark.promise("a-full-disk")
def test_without_a_reserve_nothing_is_lost(disk: Path) -> None:
    """As in a directory of an older version, or when others took the space while the broker was down."""
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    topic_id, groups = topic_with_groups(store, "one", 1)
    fill(store, [topic_id])
    state = store.look.state_hash()
    store.close()
    for name in ("reserve", "timer.log", "timer.wheel"):
        (disk / "data" / name).unlink()
    (disk / "data" / "filler").unlink(missing_ok=True)
    take_the_rest(FileDisk(disk / "data"))
    with pytest.raises(DiskFull):
        Store.open(disk / "data", WHOLE, NOW_MS)
    (disk / "data" / "filler").unlink()
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    assert store.look.state_hash() == state
    pump(store, DUE_MS * 2)
    assert consume(store, groups[0], DUE_MS * 2) == store.tables.next_id - 1
    store.close()


def test_a_start_leaves_no_clean_checkpoint_behind_that_it_could_not_replace(disk: Path) -> None:
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    topic_id, _ = topic_with_groups(store, "one", 1)
    fill(store, [topic_id])
    state = store.look.state_hash()
    store.close()
    with mock.patch.object(FileDisk, "prepare", side_effect=DiskFull("full")):
        store = Store.open(disk / "data", WHOLE, NOW_MS)
        assert store.recovery.was_clean
        assert not (disk / "data" / "checkpoint").exists()
        store.close()
    store = Store.open(disk / "data", WHOLE, NOW_MS)
    assert not store.recovery.from_checkpoint
    assert store.look.state_hash() == state
    store.close()
