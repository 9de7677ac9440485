"""Bulk jobs in a log that several machines have: all of a job counts, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster.replicas import LOG_ID, Owner, Replicas, work
from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.bulk import JOB, columns, job
from tests.support.stores.purging import LATER_MS, ack, fill, take
from timerlog.background import InThread, Stage
from timerlog.commitlog.durability import Link
from timerlog.errors import DamagedSharedLog, DiskFull, TooManyRejects
from timerlog.files.disk import STAGED_FOLDER, FileDisk, FileSegment, SegmentFile
from timerlog.layout import SEGMENT_HEADER_BYTES, RecordType
from timerlog.replication.origin import origin_of
from timerlog.replication.record import Head, Kind, Staging, fence, unpack
from timerlog.replication.rule import Reader
from timerlog.replication.staged import Staged, StagedRecord

COUNT = 3_000
JOB_ID = bytes.fromhex(JOB)


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def plan(owner: Owner, directory: Path, prefix: str = "job", number: str = JOB) -> None:
    """Writes a job of some segments."""
    keys = [b"%s-%d" % (prefix.encode(), message) for message in range(COUNT)]
    times = [NOW_MS + 10_000 + message for message in range(COUNT)]
    part = columns(times, bodies=[b"b" * 900] * COUNT, keys=keys)
    job(owner.store, directory, [("jobs", part)], NOW_MS, number)
    owner.commit()


def stored(owner: Owner) -> int:
    """How many messages of jobs wait."""
    (topic,) = (each for each in owner.store.look.topics() if each["name"] == "jobs")
    return int(topic["scheduled"])


def unpacked(replicas: Replicas, first: int = 0) -> list[Head]:
    found = (unpack(record) for record in replicas.partition.records[first:])
    return [head for head, _ in filter(None, found)]


def kinds(replicas: Replicas) -> list[Kind]:
    return [head.kind for head in unpacked(replicas)]


def test_all_nodes_have_the_job_and_the_same_bytes(replicas: Replicas, tmp_path: Path) -> None:
    follower, owner = replicas.follower(1), replicas.owner(2, 1)
    work(owner, 5)
    plan(owner, tmp_path / "job")
    replicas.follow(follower)
    report = owner.adopt(tmp_path / "job", staged=lambda: replicas.follow(follower))
    assert (report.messages, stored(owner)) == (COUNT, COUNT)
    assert {Kind.STAGE, Kind.LINK} <= set(kinds(replicas))
    work(owner, 5, first=5)
    replicas.follow(follower)
    assert len(replicas.segments(1)) > 3
    assert replicas.segments(1) == replicas.segments(2)
    assert not list((replicas.directory(1) / STAGED_FOLDER).glob("*.log"))
    replicas.hand_over(owner, follower, 1, 2)


def test_what_is_rejected_after_the_files_have_left_is_rejected_by_all(
    replicas: Replicas, tmp_path: Path
) -> None:
    follower, owner = replicas.follower(1), replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    topic = owner.store.topics.record("jobs").topic_id
    owner.store.produce.ingest(send(topic, [b"first"], keys=[b"job-7"]), NOW_MS)

    def send_meanwhile() -> None:
        owner.store.produce.ingest(send(topic, [b"late"], keys=[b"job-8"]), NOW_MS)
        owner.commit()

    report = owner.adopt(tmp_path / "job", max_rejects=2, staged=send_meanwhile)
    assert (report.messages, report.rejected) == (COUNT - 2, 2)
    assert sorted(sample.key for sample in report.samples) == ["job-7", "job-8"]
    owner.commit()
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 1, 2)


@pytest.mark.promise("in-a-cluster")
def test_nothing_of_a_job_is_left_whose_owner_is_gone(replicas: Replicas, tmp_path: Path) -> None:
    follower, owner = replicas.follower(1), replicas.owner(2, 1)
    work(owner, 3)
    plan(owner, tmp_path / "job")

    class Gone(Exception):
        pass

    def end() -> None:
        raise Gone

    with pytest.raises(Gone):
        owner.adopt(tmp_path / "job", staged=end)
    replicas.follow(follower)
    assert list((replicas.directory(1) / STAGED_FOLDER).glob("*.log"))
    owner.store.close(clean=False)
    follower.close()
    following = replicas.owner(1, 2)
    assert not (replicas.directory(1) / STAGED_FOLDER).exists()
    assert stored(following) == 0
    plan(following, tmp_path / "again", number="f" * 32)
    assert following.adopt(tmp_path / "again").messages == COUNT
    following.commit()
    behind = replicas.follower(2)
    replicas.follow(behind)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(following, behind, 2, 3)


def test_the_files_of_a_job_that_is_refused_go_from_all_nodes(replicas: Replicas, tmp_path: Path) -> None:
    follower, owner = replicas.follower(1), replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    topic = owner.store.topics.record("jobs").topic_id

    def send_meanwhile() -> None:
        replicas.follow(follower)
        assert list((replicas.directory(1) / STAGED_FOLDER).glob("*.log"))
        owner.store.produce.ingest(send(topic, [b"late"], keys=[b"job-8"]), NOW_MS)
        owner.commit()

    with pytest.raises(TooManyRejects):
        owner.adopt(tmp_path / "job", staged=send_meanwhile)
    work(owner, 3)
    replicas.follow(follower)
    assert not (replicas.directory(1) / STAGED_FOLDER).exists()
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 1, 2)


def test_a_job_with_too_many_rejects_goes_to_nobody_and_may_come_again(
    replicas: Replicas, tmp_path: Path
) -> None:
    owner = replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    topic = owner.store.topics.record("jobs").topic_id
    owner.store.produce.ingest(send(topic, [b"first"], keys=[b"job-7"]), NOW_MS)
    with pytest.raises(TooManyRejects):
        owner.adopt(tmp_path / "job")
    owner.commit()
    assert Kind.STAGE not in kinds(replicas)
    report = owner.adopt(tmp_path / "job", max_rejects=1)
    assert (report.messages, [sample.key for sample in report.samples]) == (COUNT - 1, ["job-7"])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_node_that_starts_again_meanwhile_reads_the_files_again(
    replicas: Replicas, tmp_path: Path, share: float
) -> None:
    owner = replicas.owner(2, 1)
    work(owner, 3)
    plan(owner, tmp_path / "job")
    before = len(replicas.partition.records)
    owner.adopt(tmp_path / "job", staged=lambda: work(owner, 3, first=3))
    work(owner, 3, first=6)
    end = len(replicas.partition.records)
    follower = replicas.follower(1)
    replicas.follow(follower, before + int(share * (end - before)))
    follower.housekeeping(NOW_MS + 10_000_000)
    follower.close()
    follower = replicas.follower(1)
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 1, 2)


class FullDisk(FileDisk):
    """It has room for so many bytes of files that are staged."""

    room_bytes = 0

    def open_staged(self, number: int) -> SegmentFile:
        file, allocate = super().open_staged(number), FileSegment.allocate

        def allocate_some(size_bytes: int) -> None:
            if size_bytes > self.room_bytes:
                raise DiskFull("there is no room")
            allocate(file, size_bytes)

        file.allocate = allocate_some  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("room_bytes", [0, 120_000])
def test_a_node_without_room_for_the_files_reads_them_when_there_is_room(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    owner = replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    owner.adopt(tmp_path / "job")
    work(owner, 3)
    with monkeypatch.context() as full:
        full.setattr(FullDisk, "room_bytes", room_bytes)
        full.setattr("tests.support.cluster.replicas.FileDisk", FullDisk)
        follower = replicas.follower(1)
        with pytest.raises(DiskFull):
            replicas.follow(follower)
        assert next(iter(unpacked(replicas, follower.offset + 1))).kind is not Kind.STAGE
        follower.close()
    follower = replicas.follower(1)
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 1, 2)


def test_a_node_without_room_goes_on_where_nothing_comes_of_the_job(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    topic = owner.store.topics.record("jobs").topic_id

    def send_meanwhile() -> None:
        owner.store.produce.ingest(send(topic, [b"late"], keys=[b"job-8"]), NOW_MS)
        owner.commit()

    with pytest.raises(TooManyRejects):
        owner.adopt(tmp_path / "job", staged=send_meanwhile)
    work(owner, 3)
    monkeypatch.setattr("tests.support.cluster.replicas.FileDisk", FullDisk)
    follower = replicas.follower(1)
    replicas.follow(follower)
    assert replicas.segments(1) == replicas.segments(2)
    replicas.hand_over(owner, follower, 1, 2)


def test_the_files_of_jobs_that_came_to_nothing_are_deleted_one_by_one(
    replicas: Replicas, tmp_path: Path
) -> None:
    owner, follower = replicas.owner(2, 1), replicas.follower(1)
    plan(owner, tmp_path / "job")

    class Gone(Exception):
        pass

    def end() -> None:
        replicas.follow(follower)
        raise Gone

    with pytest.raises(Gone):
        owner.adopt(tmp_path / "job", staged=end)
    owner.store.close(clean=False)
    files = len(list((replicas.directory(1) / STAGED_FOLDER).iterdir()))
    replicas.partition.append(fence(3, 2, NOW_MS))
    replicas.follow(follower)
    assert not (replicas.directory(1) / STAGED_FOLDER).exists()
    steps = 0
    while follower.sweep_step():
        steps += 1
    assert steps == files + 1
    assert not list(replicas.directory(1).glob(f"{STAGED_FOLDER}*"))
    follower.close()


def test_a_node_that_begins_within_a_job_that_came_to_nothing_passes_it_over(
    replicas: Replicas, tmp_path: Path
) -> None:
    """A segment began while the files came, and all before it was deleted from the shared log."""
    owner = replicas.owner(1, 1)
    work(owner, 3)
    plan(owner, tmp_path / "job")
    begun: list[int] = []

    def roll_in_the_middle(stage: Stage) -> None:
        pieces = list(stage.ranges(50_000))
        for number, piece in enumerate(pieces):
            if number == len(pieces) // 2:
                owner.store.log.roll()
                begun.append(len(replicas.partition.records))
                owner.commit()
            for record in owner.writer.stage(stage.job, [piece], NOW_MS):
                replicas.partition.append(record)

    adopting = owner.store.adopter.start(tmp_path / "job", 0)
    while not begun:
        match owner.store.adopter.step(NOW_MS):
            case Stage() as stage:
                roll_in_the_middle(stage)
            case InThread() as pause:
                pause.work()
    assert not adopting.is_done
    owner.store.close(clean=False)
    following = replicas.owner(2, 2)
    (begins,) = (place.end for place in following.places.starts if place.offset >= begun[0] - 1)
    start = following.places.start_of(begins - SEGMENT_HEADER_BYTES)
    assert start is not None
    replicas.first = start.offset + 1
    assert kinds(replicas)[replicas.first + 1 :].count(Kind.STAGE) > 2
    new = replicas.follower(3)
    replicas.follow(new)
    work(following, 3)
    replicas.follow(new)
    assert new.end == following.store.log.appended_position
    following.close()
    new.close()
    replicas.owner(3, 3).close()


def test_a_job_that_was_refused_keeps_no_record_of_the_shared_log(replicas: Replicas, tmp_path: Path) -> None:
    owner = replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    topic = owner.store.topics.record("jobs").topic_id

    def send_meanwhile() -> None:
        assert owner.places.is_staging
        owner.store.produce.ingest(send(topic, [b"late"], keys=[b"job-8"]), NOW_MS)
        owner.commit()

    with pytest.raises(TooManyRejects):
        owner.adopt(tmp_path / "job", staged=send_meanwhile)
    assert not owner.places.is_staging
    refused = len(replicas.partition.records)
    report = owner.adopt(tmp_path / "job", max_rejects=1)
    assert report.rejected == 1
    (linked,) = owner.places.linked
    assert linked.staged_at >= refused
    # Its record was a message in the files that came first, and means nothing in the files that count.
    addresses, at = owner.store.log.addresses, linked.first + SEGMENT_HEADER_BYTES
    while addresses.view(at + 8, 1)[0] != RecordType.FILL:
        at += -(-int.from_bytes(addresses.view(at + 4, 4), "little") // 8) * 8
    staged, reader, healed = StagedRecord(linked, at), Reader(SMALL.segment_bytes), b""
    for record in replicas.partition.records:
        head, body = unpack(record) or pytest.fail("it is a record")
        healed = staged.read(head, body, reader.take(head, body)) or healed
    assert healed == bytes(addresses.view(at, len(healed)))


def test_trimming_that_a_job_interrupts_frees_none_of_its_messages(
    replicas: Replicas, tmp_path: Path
) -> None:
    """The job's ids lie below the first message that is left, until the job counts."""
    count = 24_000
    owner = replicas.owner(1, 1, max_bytes=900_000)
    store = owner.store
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    owner.commit()
    follower = replicas.follower(2)
    replicas.follow(follower)
    fill(store, topic, [b"a%d" % number for number in range(6_000)], NOW_MS)
    owner.commit()
    keys = [b"job-%d" % number for number in range(count)]
    part = columns([2 * LATER_MS] * count, bodies=[b"b" * 100] * count, keys=keys)
    job(store, tmp_path / "job", [("jobs", part)], NOW_MS)
    owner.commit()
    fill(store, topic, [b"z%d" % number for number in range(50)], 2 * LATER_MS)
    owner.commit()
    pump(store, NOW_MS + 10)
    owner.commit()
    ids, epochs = take(store, group, 6_000, NOW_MS + 10)
    ack(store, group, ids, epochs, NOW_MS + 10)
    owner.commit()
    store.log.roll()
    owner.commit()
    replicas.follow(follower)
    owner.purge(LATER_MS)
    owner.commit()
    replicas.follow(follower)
    for _ in range(2):
        assert follower.trim_step()
    assert owner.adopt(tmp_path / "job").messages == count
    owner.commit()
    replicas.follow(follower)
    while follower.trim_step():
        pass
    replicas.hand_over(owner, follower, 2, 2)


def test_a_new_node_finds_the_files_of_all_jobs_that_the_log_has(replicas: Replicas, tmp_path: Path) -> None:
    """A job's segments outlive those before them, in which it was staged."""
    owner = replicas.owner(2, 1)
    work(owner, 8)
    plan(owner, tmp_path / "job")

    def go_on() -> None:
        owner.store.log.roll()  # a new node could begin here, but for the files
        work(owner, 8, first=8)

    owner.adopt(tmp_path / "job", staged=go_on)
    work(owner, 8, first=16)
    staged_at = kinds(replicas).index(Kind.STAGE)
    linked = owner.places.linked
    assert [each.job for each in linked] == [JOB_ID]
    first = linked[0].first
    start = owner.places.start_of(first)
    assert start is not None
    assert start.offset < staged_at
    replicas.first = start.offset + 1
    assert origin_of(list(enumerate(replicas.partition.records))[replicas.first :]) is not None
    follower = replicas.follower(1)
    replicas.follow(follower)
    names = replicas.segments(1).keys()
    assert {
        name: found for name, found in replicas.segments(2).items() if name in names
    } == replicas.segments(1)
    waiting = stored(owner)
    owner.close()
    follower.close()
    following = replicas.owner(1, 2)
    assert stored(following) == waiting > 0.9 * COUNT
    following.close()


def test_places_know_the_jobs_after_a_start(replicas: Replicas, tmp_path: Path) -> None:
    follower, owner = replicas.follower(1), replicas.owner(2, 1)
    plan(owner, tmp_path / "job")
    owner.adopt(tmp_path / "job")
    work(owner, 3)
    replicas.follow(follower)
    linked = follower.places.linked
    assert len(linked) == 1
    follower.close()
    follower = replicas.follower(1)
    assert follower.places.linked == linked
    replicas.follow(follower)
    inside, behind = linked[0].first + 100, linked[0].end + 100
    assert follower.places.linked_with(inside) == linked[0]
    assert follower.places.linked_with(behind) is None
    place = follower.places.before(inside)
    assert place is not None
    assert place.offset < linked[0].staged_at
    follower.close()
    owner.store.close(clean=False)


def staging(position: int, data: bytes, job_id: bytes = JOB_ID) -> Staging:
    return Staging(job_id, position, data)


def linked(staged: Staged, link: Link) -> list[int]:
    """Where the segments begin that a link makes."""
    steps = staged.link(link)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return list(end.value)


def test_bytes_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    size = SMALL.segment_bytes
    staged = Staged(FileDisk(tmp_path), size, LOG_ID)
    staged.take(staging(0, bytes(100)))
    staged.take(staging(100, bytes(50)))
    for wrong in (staging(151, b"x"), staging(100, b"x"), staging(2 * size, b"x"), staging(size + 1, b"x")):
        with pytest.raises(DamagedSharedLog, match="do not follow"):
            staged.take(wrong)
    staged.take(staging(size, bytes(80)))
    for sizes in ((150,), (150, 81), (150, 80, 1)):
        with pytest.raises(DamagedSharedLog, match="not all bytes"):
            linked(staged, Link(10 * size + SEGMENT_HEADER_BYTES, JOB_ID, sizes))
    with pytest.raises(DamagedSharedLog, match="not all bytes"):
        linked(staged, Link(10 * size + SEGMENT_HEADER_BYTES, b"j" * 16, (150, 80)))
    assert linked(staged, Link(10 * size + SEGMENT_HEADER_BYTES, JOB_ID, (150, 80))) == [8 * size, 9 * size]
    assert staged.is_empty
    assert FileDisk(tmp_path).segments() == [8 * size, 9 * size]


def test_another_job_takes_the_place_of_one_that_ended(tmp_path: Path) -> None:
    staged = Staged(FileDisk(tmp_path), SMALL.segment_bytes, LOG_ID)
    staged.take(staging(0, bytes(100)))
    staged.take(staging(0, b"other", b"o" * 16))
    assert [path.stat().st_size for path in (tmp_path / STAGED_FOLDER).iterdir()] == [5]
    staged.take(staging(0, b"", b"o" * 16))
    assert staged.is_empty
    assert not (tmp_path / STAGED_FOLDER).exists()
