"""Opening after every kind of end. The torn tail has its own test in tests/crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.stores.purging import take
from timerlog.engine.groups import Start
from timerlog.errors import DamagedLog, StoreError
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.maintenance.inspect import inspect_directory
from timerlog.maintenance.repair import repair
from timerlog.recovery import checkpoint
from timerlog.settings import StoreSettings
from timerlog.store import Store


def busy(directory: Path) -> Store:
    """A store with something of everything."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    keys = [b"key-%d" % number for number in range(40)]
    times = [NOW_MS + 10 * number for number in range(40)]
    store.produce.ingest(send(topic, [b"x"] * 40, keys=keys, times_ms=times), NOW_MS)
    pump(store, NOW_MS + 200)
    frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 10, MIB, NOW_MS + 200)
    assert frame
    ids, epochs = delivered(frame)
    store.deliver.ack(ack_payload(group, ids[:5], epochs[:5]), 1, NOW_MS + 200)
    store.change.cancel([39], NOW_MS + 200)
    store.change.reschedule([38], NOW_MS + 900_000, NOW_MS + 200)
    store.sync()
    return store


def reopened(directory: Path, *, boot: str | None = None) -> Store:
    with mock.patch.object(checkpoint, "boot_id", return_value=boot or checkpoint.boot_id()):
        return Store.open(directory, SMALL, NOW_MS + 200)


@pytest.mark.promise("what-survives-a-restart-and-how-fast-it-comes-back")
@pytest.mark.parametrize("ending", ["clean", "killed", "reboot", "checkpoint gone", "checkpoint damaged"])
def test_the_same_state_after(tmp_path: Path, ending: str) -> None:
    store = busy(tmp_path)
    state = store.look.state_hash()
    store.close(clean=ending == "clean")
    if ending == "checkpoint gone":
        (tmp_path / "checkpoint").unlink()
    if ending == "checkpoint damaged":
        (tmp_path / "checkpoint").write_bytes(b"TWCHECK1" + bytes(100))
    store = reopened(tmp_path, boot="another" if ending == "reboot" else None)
    assert store.look.state_hash() == state
    assert store.recovery.from_checkpoint == (ending in ("clean", "killed"))
    assert store.recovery.was_clean == (ending == "clean")
    assert store.select.find("t", ["key-0", "key-37", "key-38"]) == [1, 38, 0]
    later_ms = NOW_MS + 1_000_000
    pump(store, later_ms)
    assert store.look.stats(later_ms)["scheduled"] == 0
    group = store.tables.topics[1].groups["g"]
    frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 1_000, MIB, later_ms)
    assert frame
    ids, epochs = delivered(frame)
    assert sorted(ids) == [*range(6, 39), 40], "all but the acked and the cancelled"
    assert [epoch for number, epoch in zip(ids, epochs, strict=True) if number <= 10] == [2] * 5
    store.close()


def test_opening_twice_in_a_row_changes_nothing(tmp_path: Path) -> None:
    busy(tmp_path).close(clean=False)
    first = reopened(tmp_path)
    position, state = first.log.appended_position, first.look.state_hash()
    first.close(clean=False)
    second = reopened(tmp_path)
    assert (second.log.appended_position, second.look.state_hash()) == (position, state)
    second.close()


def test_a_group_that_begins_behind_everything_and_was_never_served(tmp_path: Path) -> None:
    """Its table has no rows before its start, nor at it."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    for _ in range(3):
        store.produce.ingest(send(topic, [b""] * 1_000, times_ms=[NOW_MS] * 1_000), NOW_MS)
    pump(store, NOW_MS + 10)
    group = store.groups.open(topic, "late", NOW_MS, "latest")
    store.close()
    again = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert not take(again, group, 10, NOW_MS)[0]
    again.close()


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    for _ in range(300):
        store.produce.ingest(send(topic, [bytes(1_000)] * 60), NOW_MS)
    store.close()
    segments = sorted((tmp_path / "commitlog").iterdir())
    segments[1].unlink()
    with pytest.raises(DamagedLog, match="missing"):
        reopened(tmp_path)


def test_a_damaged_header_is_damage(tmp_path: Path) -> None:
    store = busy(tmp_path)
    store.close()
    (segment,) = (tmp_path / "commitlog").iterdir()
    with open(segment, "r+b") as file:
        file.write(b"garbage")
    content = segment.read_bytes()
    with pytest.raises(StoreError):
        reopened(tmp_path)
    assert segment.read_bytes() == content, "nothing was changed"


def test_a_newest_segment_without_header_is_dropped(tmp_path: Path) -> None:
    store = busy(tmp_path)
    state = store.look.state_hash()
    store.close(clean=False)
    (tmp_path / "commitlog" / f"{6 * MIB:020d}.log").write_bytes(bytes(4096))
    store = reopened(tmp_path)
    assert store.look.state_hash() == state
    assert store.log.segments == [0]
    store.close()


@pytest.mark.parametrize(
    "header",
    [b"", b"TWC", b"TWCOMLOG" + b"\1" * 55, b"\xff" * 64],
    ids=["nothing", "a little", "most", "all of it, and wrong"],
)
@pytest.mark.parametrize("size_bytes", [0, 4096])
def test_a_newest_segment_with_a_part_of_its_header_is_dropped(
    tmp_path: Path, header: bytes, size_bytes: int
) -> None:
    store = busy(tmp_path)
    state = store.look.state_hash()
    store.close(clean=False)
    (tmp_path / "commitlog" / f"{6 * MIB:020d}.log").write_bytes(header.ljust(size_bytes, b"\0"))
    assert inspect_directory(tmp_path).ok
    assert not repair(tmp_path, NOW_MS).is_needed
    store = reopened(tmp_path, boot="another")
    assert store.look.state_hash() == state
    assert store.log.segments == [0]
    store.close()


@pytest.mark.parametrize("damaged", [0, 1, 2], ids=["first", "middle", "newest"])
@pytest.mark.parametrize("is_begun", [False, True], ids=["used", "without records"])
def test_a_damaged_header_of_a_segment_to_which_the_log_goes_on_is_damage(
    tmp_path: Path, damaged: int, is_begun: bool
) -> None:
    """Its header was on the disk before the END that leads there."""
    store = busy(tmp_path)
    for body in (b"second", b"third"):
        store.log.roll()
        if not (body == b"third" and is_begun):
            store.produce.ingest(send(1, [body]), NOW_MS + 200)
    store.sync()
    state = store.look.state_hash()
    store.close(clean=False)
    path = sorted((tmp_path / "commitlog").iterdir())[damaged]
    with path.open("r+b") as file:
        file.write(b"\xff" * SEGMENT_HEADER_BYTES)
        if is_begun:
            file.write(bytes(path.stat().st_size - SEGMENT_HEADER_BYTES))
    content = path.read_bytes()
    with pytest.raises(DamagedLog, match="damaged header" if damaged == 2 else None):
        reopened(tmp_path, boot="another")
    assert path.read_bytes() == content, "nothing was changed"
    assert not inspect_directory(tmp_path).ok
    if damaged == 2 or not is_begun:
        assert repair(tmp_path, NOW_MS, apply=True).is_needed
        store = reopened(tmp_path, boot="another")
        assert store.look.state_hash() == state
        store.close()


def test_a_log_of_which_a_checkpoint_speaks_is_not_begun_anew(tmp_path: Path) -> None:
    busy(tmp_path).close()
    (segment,) = (tmp_path / "commitlog").iterdir()
    segment.write_bytes(bytes(segment.stat().st_size))
    with pytest.raises(DamagedLog, match="whole header"):
        reopened(tmp_path)


def test_a_segment_of_another_log_is_damage(tmp_path: Path) -> None:
    busy(tmp_path / "a").close()
    busy(tmp_path / "b").close()
    (segment,) = (tmp_path / "b" / "commitlog").iterdir()
    (tmp_path / "a" / "commitlog" / f"{6 * MIB:020d}.log").write_bytes(segment.read_bytes())
    with pytest.raises(DamagedLog, match="another log"):
        reopened(tmp_path / "a")


def test_fewer_topics_than_there_are(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    for name in ("a", "b", "c"):
        store.topics.open(name, NOW_MS)
    store.close()
    few = StoreSettings(segment_bytes=6 * MIB, max_frame_bytes=64 * 1024, max_topics=2)
    with pytest.raises(StoreError, match="raise max_topics"):
        Store.open(tmp_path, few, NOW_MS)


def test_a_new_log_starts_behind_its_header(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.recovery.is_new
    assert store.log.appended_position == SEGMENT_HEADER_BYTES
    store.close()


def test_a_shortened_segment_is_damage(tmp_path: Path) -> None:
    busy(tmp_path).close()
    (segment,) = (tmp_path / "commitlog").iterdir()
    with open(segment, "r+b") as file:
        file.truncate(1_000)
    with pytest.raises(DamagedLog, match="shorter"):
        reopened(tmp_path)


def test_a_missing_newest_segment_is_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    for _ in range(300):
        store.produce.ingest(send(topic, [bytes(1_000)] * 60), NOW_MS)
    store.close()
    sorted((tmp_path / "commitlog").iterdir())[-1].unlink()
    with pytest.raises(DamagedLog, match="missing"):
        reopened(tmp_path)


@pytest.mark.promise("what-survives-a-restart-and-how-fast-it-comes-back")
@pytest.mark.parametrize(
    "name", ["messages.table", "keys.index", "topics/1.arrivals", "topics/1-1.deliveries"]
)
@pytest.mark.parametrize("cut", [None, 0, 5_000])
def test_a_derived_file_that_was_cut_or_lost_is_made_again(
    tmp_path: Path, name: str, cut: int | None
) -> None:
    store = busy(tmp_path)
    state = store.look.state_hash()
    store.close()
    if cut is None:
        (tmp_path / name).unlink()
    else:
        with open(tmp_path / name, "r+b") as file:
            file.truncate(cut)
    store = reopened(tmp_path)
    assert not store.recovery.from_checkpoint
    assert store.look.state_hash() == state
    assert store.select.find("t", ["key-0", "key-37", "key-38"]) == [1, 38, 0]
    store.close()


@pytest.mark.parametrize("ending", ["clean", "killed", "checkpoint gone"])
def test_what_was_due_while_no_broker_ran_comes_in_the_order_of_its_times(
    tmp_path: Path, ending: str
) -> None:
    """Also where nothing was ever due before, so that the log knows no tick; and once more after that."""
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    times = [NOW_MS + delay_ms for delay_ms in (5_000_000, 20, 70_000, 10)]
    store.produce.ingest(send(topic, [b"x"] * 4, times_ms=times), NOW_MS)
    pump(store, NOW_MS)
    for _ in range(2):
        store.close(clean=ending == "clean")
        if ending == "checkpoint gone":
            (tmp_path / "checkpoint").unlink(missing_ok=True)
        store = Store.open(tmp_path, SMALL, NOW_MS + 5)
    store.close(clean=ending == "clean")
    store = Store.open(tmp_path, SMALL, NOW_MS + 9_000_000)
    due = store.dequeue_get.turn(NOW_MS + 9_000_000, 10)
    while due is None:
        due = store.dequeue_get.turn(NOW_MS + 9_000_000, 10)
    ids = due.ref.tolist()
    while len(ids) < 4:
        more = store.dequeue_get.turn(NOW_MS + 9_000_000, 10)
        ids += [] if more is None else more.ref.tolist()
    assert ids == [4, 2, 3, 1]
    store.close()


@pytest.mark.parametrize("to", ["earliest", "latest"])
def test_a_seek_that_a_start_replays(tmp_path: Path, to: Start) -> None:
    """The tables are those of a checkpoint before it, as of a node that follows and was started again."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"body"] * 9), NOW_MS)
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 6, MIB, NOW_MS)
    assert frame
    ids, epochs = delivered(frame)
    store.deliver.ack(ack_payload(group, ids[:3], epochs[:3]), 1, NOW_MS)
    store.close()
    shutil.copytree(tmp_path / "data", tmp_path / "earlier")
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    store.groups.seek("t", "g", to)
    state, described = store.look.state_hash(), store.groups.describe(group)
    store.sync()
    store.close(clean=False)
    shutil.rmtree(tmp_path / "earlier" / "commitlog")
    shutil.copytree(tmp_path / "data" / "commitlog", tmp_path / "earlier" / "commitlog")
    store = Store.open(tmp_path / "earlier", SMALL, NOW_MS)
    assert store.look.state_hash() == state
    assert {name: store.groups.describe(group)[name] for name in ("leased", "acked", "backlog")} == {
        name: described[name] for name in ("leased", "acked", "backlog")
    }
    store.close()
