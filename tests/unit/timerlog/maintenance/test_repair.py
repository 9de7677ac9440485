"""Repair: what can be saved of a damaged directory is saved, the rest is named, and nothing is thrown away."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, content, fill, mixed
from timerlog.errors import DamagedLog, DirectoryLocked, NoDataDirectory, Unrepairable
from timerlog.layout import RECORD_HEAD_BYTES, RecordType
from timerlog.maintenance.inspect import inspect_directory
from timerlog.maintenance.repair import RepairReport, fill_record, repair
from timerlog.store import Store


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").glob("*.log"))


def flip(path: Path, offset: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        found = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ 0x55 for byte in found))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Any]]:
    """A directory of several segments with everything in it, cleanly closed; and its messages."""
    directory = tmp_path_factory.mktemp("original") / "data"
    store = mixed(directory)
    fill(store, 2, [b"more-%d" % number for number in range(5_000)], LATER_MS)
    topic = store.topics.open("late", NOW_MS)
    for number in range(30):
        store.produce.ingest(send(topic, [b"late %d" % number] * 5), NOW_MS)
        store.sync()
    found = content(store)
    store.close()
    return directory, found


@pytest.fixture
def directory(original: tuple[Path, dict[int, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(original[0], tmp_path / "data"))


def position_of(original: tuple[Path, dict[int, Any]], message_id: int) -> tuple[int, int]:
    """Where a message's record lies: number of the segment, offset in it."""
    store = Store.open(Path(shutil.copytree(original[0], original[0].parent / "looked at")), SMALL, LATER_MS)
    position = int(store.tables.rows["position"][message_id])
    size = store.log.segment_bytes
    store.close(clean=False)
    shutil.rmtree(original[0].parent / "looked at")
    return position // size, position % size


def check_repaired(
    directory: Path, original: tuple[Path, dict[int, Any]], damaged: dict[str, bytes]
) -> RepairReport:
    """Dry run, repair, start; what is there afterwards is as it was, and what is not is named."""
    with pytest.raises(DamagedLog):
        Store.open(directory, SMALL, LATER_MS)
    planned = repair(directory, NOW_MS)
    assert snapshot(directory) == damaged, "a dry run changes nothing"
    done = repair(directory, NOW_MS, apply=True)
    assert (done.losses, done.messages) == (planned.losses, planned.messages)
    kept = Path(done.kept_in)
    for name, bytes_ in snapshot(kept).items():
        assert bytes_ == damaged[name], "the damaged bytes are kept"
    assert inspect_directory(directory).ok
    store = Store.open(directory, SMALL, LATER_MS)
    found = content(store)
    missing = original[1].keys() - found.keys()
    named = {number for loss in done.losses for number in range(loss.first_id, loss.end_id)}
    assert missing <= named, "a lost message was not named"
    assert done.messages == len(found)
    assert all(found[number][0].body == original[1][number][0].body for number in found)
    state = store.look.state_hash()
    # It goes on: new messages get new numbers.
    store.produce.ingest(send(store.tables.topic_ids["a"], [b"new"]), LATER_MS)
    assert store.tables.next_id - 1 > max(original[1])
    store.close(clean=False)
    assert not repair(directory, NOW_MS + 5_000).is_needed
    assert state
    return done


def test_a_flipped_bit_costs_one_record(directory: Path, original: tuple[Path, dict[int, Any]]) -> None:
    number, offset = position_of(original, 5_000)
    flip(segments(directory)[number], offset + 100)
    (directory / "checkpoint").unlink()
    report = check_repaired(directory, original, snapshot(directory))
    assert [(loss.first_id, loss.end_id, loss.reason) for loss in report.losses] == [
        (5_000, 5_001, "bad checksum")
    ]
    assert report.lost_messages == 1


def test_a_wrong_length_costs_what_lies_before_the_next_mark(
    directory: Path, original: tuple[Path, dict[int, Any]]
) -> None:
    last = max(original[1])
    number, offset = position_of(original, last - 74)
    flip(segments(directory)[number], offset + 4, 4)
    (directory / "checkpoint").unlink()
    report = check_repaired(directory, original, snapshot(directory))
    assert report.lost_messages == 5, "they were synced together"


@pytest.mark.parametrize("seed", range(12))
def test_damage_anywhere(directory: Path, original: tuple[Path, dict[int, Any]], seed: int) -> None:
    """A few bytes, or a few thousand."""
    rng = random.Random(seed)
    path = rng.choice(segments(directory)[:-1])
    end = len(path.read_bytes().rstrip(b"\0"))
    count = rng.choice([1, 4, 600, 50_000])
    flip(path, rng.randrange(64, end - count), count)
    try:
        Store.open(directory, SMALL, LATER_MS).close(clean=False)
    except DamagedLog:
        pass
    else:  # a clean checkpoint speaks for the tables; without it, the log is read
        (directory / "checkpoint").unlink()
    check_repaired(directory, original, snapshot(directory))


def remove_middle(directory: Path) -> None:
    segments(directory)[1].unlink()


def remove_end(directory: Path) -> None:
    segments(directory)[-1].unlink()


def remove_start(directory: Path) -> None:
    segments(directory)[0].unlink()


def wipe_header(directory: Path) -> None:
    flip(segments(directory)[1], 0, 64)


def swap_for_another(directory: Path) -> None:
    other = Store.open(directory.parent / "other", SMALL, NOW_MS)
    other.close()
    shutil.copy(segments(directory.parent / "other")[0], segments(directory)[1])


@pytest.mark.parametrize("damage", [remove_middle, remove_end, remove_start, wipe_header, swap_for_another])
def test_whole_files(
    directory: Path, original: tuple[Path, dict[int, Any]], damage: Callable[[Path], None]
) -> None:
    damage(directory)
    report = check_repaired(directory, original, snapshot(directory))
    assert (report.lost_messages == 0) == (damage is wipe_header)


def test_a_header_with_one_wrong_bit_is_put_right(
    directory: Path, original: tuple[Path, dict[int, Any]]
) -> None:
    for bit in range(0, 512, 7):
        path = segments(directory)[0]
        with path.open("r+b") as file:
            header = bytearray(file.read(64))
            header[bit // 8] ^= 1 << bit % 8
            file.seek(0)
            file.write(header)
        report = repair(directory, NOW_MS + bit * 1_000, apply=True)
        assert report.mended == [path.name]
        assert report.lost_messages == 0
    assert path.read_bytes() == segments(original[0])[0].read_bytes()


def test_what_a_body_says_is_no_record(tmp_path: Path) -> None:
    """A body that looks like records, behind a length that is damaged: they do not come alive."""
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.sync()
    forged = b"".join(fill_record(32, b"forged %d" % number) for number in range(50))
    store.produce.ingest(send(topic, [bytes(pad) + forged for pad in range(8)]), NOW_MS)
    store.sync()
    store.produce.ingest(send(topic, [b"behind"]), NOW_MS)
    store.sync()
    position = int(store.tables.rows["position"][1])
    store.close()
    flip(segments(tmp_path)[0], position + 4, 4)
    (tmp_path / "checkpoint").unlink()
    report = repair(tmp_path, NOW_MS, apply=True)
    assert (report.lost_messages, report.messages) == (8, 1)
    assert inspect_directory(tmp_path).records_by_type["fill"] == 1


def test_a_whole_directory_needs_none(directory: Path) -> None:
    before = snapshot(directory)
    assert not repair(directory, NOW_MS, apply=True).is_needed
    assert snapshot(directory) == before


def test_what_cannot_be_repaired(directory: Path, tmp_path: Path) -> None:
    for path in segments(directory):
        flip(path, 0, 64)
    before = snapshot(directory)
    with pytest.raises(Unrepairable):
        repair(directory, NOW_MS, apply=True)
    assert snapshot(directory) == before
    with pytest.raises(NoDataDirectory):
        repair(tmp_path / "nothing", NOW_MS)


def test_not_under_a_broker(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    with pytest.raises(DirectoryLocked):
        repair(tmp_path, NOW_MS)
    store.close()


def test_files_that_are_no_part_of_the_log_are_set_aside(
    directory: Path, original: tuple[Path, dict[int, Any]]
) -> None:
    (directory / "commitlog" / "00000000000000000007.log").write_bytes(b"something else")
    report = repair(directory, NOW_MS, apply=True)
    assert (report.set_aside, report.losses) == (["00000000000000000007.log"], [])
    kept = Path(report.kept_in) / "commitlog" / "00000000000000000007.log"
    assert kept.read_bytes() == b"something else"
    assert not repair(directory, NOW_MS).is_needed
    store = Store.open(directory, SMALL, LATER_MS)
    assert content(store) == original[1]
    store.close()


def test_segments_that_changed_their_names_are_left_alone(directory: Path) -> None:
    first, second, *others = segments(directory)
    for other in others:
        other.unlink()
    first.rename(directory / "commitlog" / "first")
    second.rename(first)
    (directory / "commitlog" / "first").rename(second)
    before = snapshot(directory)
    with pytest.raises(Unrepairable, match="name that its header says"):
        repair(directory, NOW_MS, apply=True)
    assert snapshot(directory) == before


def test_no_number_is_given_again_of_messages_that_make_no_sense(tmp_path: Path) -> None:
    """Their topic is lost, so they are; but who sent them was told their numbers."""
    directory = tmp_path / "data"
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("first", NOW_MS)
    store.produce.ingest(send(topic, [b"kept"] * 3), NOW_MS)
    store.sync()
    place = store.log.appended_position
    store.produce.ingest(send(store.topics.open("late", NOW_MS), [b"lost"] * 5), NOW_MS)
    store.sync()
    end_id = store.tables.next_id
    store.close()
    (directory / "checkpoint").unlink()
    flip(segments(directory)[0], place + 20)
    dry = repair(directory, NOW_MS)
    report = repair(directory, NOW_MS, apply=True)
    assert (dry.losses, dry.lost_messages) == (report.losses, report.lost_messages)
    assert report.losses[-1].end_id == end_id
    assert report.lost_messages == 5
    assert not repair(directory, NOW_MS).is_needed
    store = Store.open(directory, SMALL, NOW_MS)
    assert store.tables.gaps[0][0] == end_id, "the numbers of before, and then those that nobody was told"
    store.close()


def test_bytes_behind_a_whole_segment_do_no_harm(directory: Path) -> None:
    with segments(directory)[0].open("ab") as file:
        file.write(b"x" * 5_000)
    for _ in range(2):  # the first one notes how long the files are
        Store.open(directory, SMALL, LATER_MS).close()


def test_an_end_with_less_than_a_record_behind_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("a", NOW_MS)
    store.produce.ingest(send(topic, [b"first"]), NOW_MS)
    log, end = store.log, SMALL.segment_bytes - RECORD_HEAD_BYTES
    while room := end - 8 - log.appended_position:
        size_bytes = room if room <= 60_000 else min(60_000, room - 64)
        log.append(RecordType.FILL, 0, bytes(size_bytes - RECORD_HEAD_BYTES))
    assert log.appended_position == end - 8
    at = log.appended_position
    log.roll()
    store.produce.ingest(send(topic, [b"second"]), NOW_MS)
    store.sync()
    store.close(clean=False)
    (directory / "checkpoint").unlink(missing_ok=True)
    first = segments(directory)[0]
    flip(first, at + 1)
    with pytest.raises(DamagedLog):
        Store.open(directory, SMALL, LATER_MS)
    assert repair(directory, NOW_MS, apply=True).is_needed
    assert first.stat().st_size == SMALL.segment_bytes
    store = Store.open(directory, SMALL, LATER_MS)
    assert store.look.topics()[0]["messages"] == 2
    store.close()


def test_a_group_whose_end_is_lost_keeps_its_number(tmp_path: Path) -> None:
    """A later segment says that the number is free, and the log no longer says why."""
    directory = tmp_path / "data"
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("a", NOW_MS)
    store.groups.open(topic, "ghost", NOW_MS)
    at = store.log.appended_position
    store.groups.delete("a", "ghost")
    store.produce.ingest(send(topic, [b"first"]), NOW_MS)
    store.log.roll()
    store.produce.ingest(send(topic, [b"second"]), NOW_MS)
    store.sync()
    store.close(clean=False)
    (directory / "checkpoint").unlink(missing_ok=True)
    flip(segments(directory)[0], at + RECORD_HEAD_BYTES)
    with pytest.raises(DamagedLog):
        Store.open(directory, SMALL, LATER_MS)
    assert repair(directory, NOW_MS, apply=True).is_needed
    store = Store.open(directory, SMALL, LATER_MS)
    assert store.tables.free_groups.keys().isdisjoint(store.tables.groups)
    store.groups.open(topic, "next", LATER_MS)
    store.log.roll()
    store.close()
    Store.open(directory, SMALL, LATER_MS).close()
