"""Jobs of bulk scheduling: all of one or nothing, and its messages are like any others."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.run.profile import every
from tests.support.stores.bulk import JOB, columns, job
from timerlog.background import InThread, Join, Pace, WaitDurable
from timerlog.bulk.write import MANIFEST, Manifest, Topics, by_time, write_manifest, write_segments
from timerlog.commitlog.log import CommitLog
from timerlog.errors import BadJob, LogFailed
from timerlog.files.disk import SegmentFile
from timerlog.layout import RECORD_HEAD_BYTES, MessageState
from timerlog.purge.drop import DropTicket, FreeTicket
from timerlog.settings import StoreSettings
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

MINUTE_MS = 60_000


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    return tmp_path / "data" / "staging" / "job"


def keys(count: int, prefix: str = "k") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def drain(store: Store, topic: str, now_ms: int) -> list[int]:
    """Delivers and acks everything that is due; the ids in the order in which they came."""
    pump(store, now_ms)
    group = store.groups.open(store.topics.record(topic).topic_id, "g", now_ms)
    holder = store.holders.acquire(group)
    found: list[int] = []
    while frame := store.deliver.fetch(group, holder, 1, 5_000, 1 << 20, now_ms):
        ids, epochs = delivered(frame)
        store.deliver.ack(ack_payload(group, ids, epochs), 1, now_ms)
        found += ids
    return found


def test_a_job_is_delivered_by_time_beside_what_was_sent(store: Store, staged: Path) -> None:
    sent = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(sent, [b"sent"], times_ms=[NOW_MS + 1_500]), NOW_MS)
    times = [NOW_MS + 1_000 * (number % 7) for number in range(30_000)]
    job(store, staged, [("t", columns(times, keys=keys(30_000), bodies=[bytes(300)] * 30_000))], NOW_MS)
    report = store.adopt(staged, 0, NOW_MS)
    assert (report.messages, report.rejected, report.repeated) == (30_000, 0, False)
    assert store.look.topics()[0]["scheduled"] == 30_001
    assert len(store.log.segments) >= 4, "it takes several segments"
    early = drain(store, "t", NOW_MS + 1_000)
    assert len(early) == sum(time <= NOW_MS + 1_000 for time in times)
    late = drain(store, "t", NOW_MS + 10_000)
    assert len(early) + len(late) == 30_001
    due = [int(store.tables.rows["deliver_at_ms"][i]) for i in early + late]
    assert due == sorted(due)


@pytest.mark.parametrize("how", ["killed", "clean", "no derived files"])
def test_it_is_there_after_a_restart(tmp_path: Path, staged: Path, how: str) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    times = [NOW_MS + number for number in range(5_000)]
    parts = [
        ("plain", columns(times, keys=keys(5_000))),
        ("plain", columns(times, headers=[b"\x81\xa1a\x01"] * 5_000, priorities=[5, 9] * 2_500)),
        ("other", columns(times, orders=keys(5_000, "o"))),
    ]  # fmt: skip
    store.topics.create("other", {}, 4, NOW_MS)
    job(store, staged, parts, NOW_MS)
    store.adopt(staged, 0, NOW_MS)
    store.produce.ingest(send(store.topics.record("plain").topic_id, [b"after"], keys=[b"after"]), NOW_MS)
    assert store.change.cancel(store.select.find("plain", ["k7", "after"]), NOW_MS) == ["cancelled"] * 2
    store.sync()
    state, counts = store.look.state_hash(), store.look.topics()
    store.close(clean=how == "clean")
    if how == "no derived files":
        remove_derived_files(tmp_path / "data")
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.look.state_hash() == state
    assert store.look.topics() == counts
    assert store.select.find("plain", ["k7"]) == [0]
    assert len(drain(store, "plain", NOW_MS + 10_000)) == 9_999
    store.close()


@pytest.mark.parametrize("left_bytes", [64, 96, 128, 256])
def test_a_segment_that_is_nearly_full_when_the_job_counts(
    tmp_path: Path, staged: Path, left_bytes: int
) -> None:
    """The record that makes the job count finds no room behind what others have written meanwhile."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    job(store, staged, [("t", columns([NOW_MS] * 100, keys=keys(100)))], NOW_MS)
    adoption = store.adopter.start(staged, 0)
    while not adoption.is_done:
        carry_out(store, store.adopter.step(NOW_MS))
        fill(store, left_bytes)
    assert adoption.error is None
    store.sync()
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert len(drain(store, "t", NOW_MS)) == 100
    store.close()


def test_a_job_whose_files_cannot_be_opened_leaves_nothing_behind(tmp_path: Path, staged: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    parts = [("t", columns([NOW_MS] * 30_000, bodies=[bytes(300)] * 30_000))]
    job(store, staged, parts, NOW_MS)
    segments, true = store.log.segments, store.log.disk.open_segment

    def open_segment(base: int, *, create: bool) -> SegmentFile:
        if not create and base > SMALL.segment_bytes:
            raise OSError(errno.EMFILE, "too many open files")
        return true(base, create=create)

    with (
        mock.patch.object(store.log.disk, "open_segment", open_segment),
        pytest.raises(OSError, match="open"),
    ):
        store.adopt(staged, 0, NOW_MS)
    assert store.log.segments == segments == store.log.disk.segments()
    store.produce.ingest(send(store.topics.record("t").topic_id, [b"after"]), NOW_MS)
    store.log.roll()
    store.sync()
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert len(drain(store, "t", NOW_MS)) == 1
    store.close()


def test_a_log_that_fails_when_a_job_counts_keeps_its_files(store: Store, staged: Path) -> None:
    """The record that makes them count may be on the disk."""
    job(store, staged, [("t", columns([NOW_MS] * 100))], NOW_MS)
    true = store.log._take_over

    def fail(*arguments: Any) -> None:
        true(*arguments)
        raise LogFailed("the disk did not take it")

    with mock.patch.object(CommitLog, "_take_over", side_effect=fail), pytest.raises(LogFailed):
        store.adopt(staged, 0, NOW_MS)
    assert SMALL.segment_bytes in store.log.disk.segments()


def fill(store: Store, left_bytes: int) -> None:
    """Writes into the log until its segment has so many bytes left, if there are more."""
    log = store.log
    (following,) = log.following_bases(1)
    while (room := following - RECORD_HEAD_BYTES - log.appended_position - left_bytes) > 100:
        store.change.put_document("filler", bytes(min(room, 60_000) - 100), NOW_MS)


def test_messages_of_a_job_are_like_sent_ones(store: Store, staged: Path) -> None:
    job(store, staged, [("t", columns([NOW_MS + MINUTE_MS] * 10, keys=keys(10)))], NOW_MS)
    store.adopt(staged, 0, NOW_MS)
    ids = store.select.find("t", [f"k{number}" for number in range(10)])
    assert all(ids)
    topic = store.topics.record("t").topic_id
    assert store.produce.ingest(send(topic, [b"again"], keys=[b"k3"]), NOW_MS).messages == 1
    assert store.look.topics()[0]["messages"] == 10, "its key is taken"
    assert store.change.cancel([ids[0]], NOW_MS) == ["cancelled"]
    assert store.change.reschedule([ids[1]], NOW_MS + 5, NOW_MS) == ["rescheduled"]
    assert drain(store, "t", NOW_MS + 10) == [ids[1]]
    assert sorted(drain(store, "t", NOW_MS + MINUTE_MS)) == sorted(ids[2:])


def test_bodies_of_megabytes(tmp_path: Path) -> None:
    """They are larger than what is written at once."""
    settings = StoreSettings(max_body_bytes=4 << 20, max_frame_bytes=8 << 20)
    store = Store.open(tmp_path / "data", settings, NOW_MS)
    bodies = [b"small", b"x" * (3 << 20), b"", b"y" * (1 << 20)]
    staged = tmp_path / "data" / "staging" / "job"
    job(store, staged, [("t", columns([NOW_MS] * 4, bodies=bodies))], NOW_MS)
    assert store.adopt(staged, 0, NOW_MS).messages == 4
    assert len(drain(store, "t", NOW_MS)) == 4
    store.close(clean=True)


def test_keys_that_are_taken_are_rejected(store: Store, staged: Path) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(
        send(topic, [b"x", b"y"], keys=[b"k1", b"free"], times_ms=[NOW_MS + MINUTE_MS] * 2), NOW_MS
    )
    taken, free = store.select.find("t", ["k1", "free"])
    parts = [
        ("t", columns([NOW_MS] * 3, keys=[b"k0", b"k1", b"k2"])),
        ("t", columns([NOW_MS] * 2, keys=[b"k2", b""])),
    ]
    job(store, staged, parts, NOW_MS)
    before = store.look.state_hash()
    with pytest.raises(BadJob, match="2 messages have a key"):
        store.adopt(staged, 1, NOW_MS)
    assert store.look.state_hash() == before
    assert store.select.find("t", ["k0", "k1", "k2"]) == [0, taken, 0]
    report = store.adopt(staged, 2, NOW_MS)
    assert (report.messages, report.rejected, report.inside) == (3, 2, 1)
    assert Counter(reject.key for reject in report.samples) == {"k1": 1, "k2": 1}
    assert taken in {reject.earlier_id for reject in report.samples}
    assert store.change.cancel([free], NOW_MS) == ["cancelled"]
    assert len(drain(store, "t", NOW_MS + 1)) == 3
    assert drain(store, "t", NOW_MS + MINUTE_MS) == [taken]


def test_a_job_is_taken_in_once(store: Store, staged: Path, tmp_path: Path) -> None:
    job(store, staged, [("t", columns([NOW_MS] * 5))], NOW_MS)
    copy = tmp_path / "copy"
    shutil.copytree(staged, copy)
    assert store.adopt(staged, 0, NOW_MS).messages == 5
    assert not staged.exists(), "its files are the log's now"
    again = store.adopt(copy, 0, NOW_MS)
    assert (again.messages, again.repeated) == (5, True)
    assert len(drain(store, "t", NOW_MS)) == 5


def test_sends_during_a_job_keep_their_keys(store: Store, staged: Path) -> None:
    """Between any two steps of a job somebody sends a message with a key of it: one of the two is stored."""
    topic = store.topics.open("t", NOW_MS)
    count = 9_000
    job(store, staged, [("t", columns([NOW_MS + MINUTE_MS] * count, keys=keys(count)))], NOW_MS)
    adoption = store.adopter.start(staged, count)
    sent = 0
    while not adoption.is_done:
        assert sent * 7 < count, "it ends although somebody else is always first"
        store.produce.ingest(
            send(topic, [b"sent"], keys=[b"k%d" % (sent * 7)], times_ms=[NOW_MS + 1]), NOW_MS
        )
        sent += 1
        match store.adopter.step(NOW_MS):
            case WaitDurable():
                store.sync()
            case InThread() as pause:
                pause.work()
    assert adoption.error is None
    rows = store.tables.rows[: store.tables.next_id]
    assert int((rows["state"] == MessageState.SCHEDULED).sum()) == count
    assert adoption.report.rejected > 0
    assert len(set(store.select.find("t", [f"k{number}" for number in range(count)]))) == count
    assert len(drain(store, "t", NOW_MS + MINUTE_MS)) == count


def damaged(staged: Path, how: str) -> None:
    path = next(staged.glob("*.log"))
    data = bytearray(path.read_bytes())
    if how == "a flipped bit":
        data[len(data) // 2] ^= 4
    elif how == "cut":
        del data[-8:]
    elif how == "longer":
        data += bytes(8)
    elif how == "no header":
        data[:8] = bytes(8)
    elif how == "no manifest":
        (staged / MANIFEST).unlink()
    elif how == "bad manifest":
        (staged / MANIFEST).write_text("{}")
    elif how == "no file":
        path.unlink()
        return
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how", ["a flipped bit", "cut", "longer", "no header", "no manifest", "bad manifest", "no file"]
)
def test_what_is_not_whole_is_refused(store: Store, staged: Path, how: str) -> None:
    parts = [
        ("t", columns([NOW_MS] * 500, keys=keys(500))),
        ("t", columns([NOW_MS] * 500, keys=keys(500, "x"))),
    ]
    job(store, staged, parts, NOW_MS)
    before = store.look.state_hash()
    damaged(staged, how)
    with pytest.raises(BadJob):
        store.adopt(staged, 0, NOW_MS)
    assert store.look.state_hash() == before
    assert store.select.find("t", ["k1", "x1"]) == [0, 0]
    assert drain(store, "t", NOW_MS) == []


def test_numbers_that_others_have_are_refused(store: Store, staged: Path, tmp_path: Path) -> None:
    """Somebody gives in what was taken in already, as another job."""
    job(store, staged, [("t", columns([NOW_MS] * 5, keys=keys(5)))], NOW_MS)
    copy = tmp_path / "copy"
    shutil.copytree(staged, copy)
    text = (copy / MANIFEST).read_text()
    (copy / MANIFEST).write_text(text.replace(JOB, JOB[::-1]))
    store.adopt(staged, 0, NOW_MS)
    before = store.look.state_hash()
    with pytest.raises(BadJob, match="a number that is in use"):
        store.adopt(copy, 5, NOW_MS)
    assert store.look.state_hash() == before
    assert len(drain(store, "t", NOW_MS)) == 5


@pytest.mark.parametrize("is_late", [False, True])
def test_a_segment_that_is_damaged_behind_others(store: Store, staged: Path, is_late: bool) -> None:
    """``is_late``: keys of all others are in the index when it turns out; else it is found one step ahead."""
    parts = [("t", columns([NOW_MS] * 9_000, keys=keys(9_000, prefix))) for prefix in "xyz"]
    job(store, staged, parts, NOW_MS)
    path = max(staged.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    before = store.look.state_hash()
    adoption = store.adopter.start(staged, 0)
    later: list[InThread] = []
    while not adoption.is_done:
        match store.adopter.step(NOW_MS):
            case InThread(beside=True) as pause if is_late:
                later.append(pause)
            case InThread() as pause:
                pause.work()
            case Join() if later:
                later.pop().work()
            case WaitDurable():
                store.sync()
    assert isinstance(adoption.error, BadJob)
    assert "a record is damaged" in str(adoption.error)
    assert not later
    assert store.look.state_hash() == before
    assert store.select.find("t", ["x1", "y1", "z1"]) == [0, 0, 0]


def test_a_job_for_another_broker_is_refused(store: Store, staged: Path, tmp_path: Path) -> None:
    other = Store.open(tmp_path / "other", SMALL, NOW_MS)
    job(other, staged, [("t", columns([NOW_MS]))], NOW_MS)
    other.close()
    store.bulk.reserve_ids(10)
    with pytest.raises(BadJob, match="another broker"):
        store.adopt(staged, 0, NOW_MS)


def test_a_topic_that_is_gone(store: Store, staged: Path) -> None:
    job(store, staged, [("t", columns([NOW_MS] * 5))], NOW_MS)
    store.topics.delete("t")
    with pytest.raises(BadJob, match="cannot be stored"):
        store.adopt(staged, 0, NOW_MS)


def test_a_topic_that_goes_while_its_job_has_rejects(store: Store, staged: Path) -> None:
    job(store, staged, [("t", columns([NOW_MS] * 5, keys=[b"k"] * 5))], NOW_MS)
    adoption = store.adopter.start(staged, 4)
    while not len(store.adopter._adoption._rejects if store.adopter._adoption else ()):
        carry_out(store, store.adopter.step(NOW_MS))
    store.topics.delete("t")
    while not adoption.is_done:
        carry_out(store, store.adopter.step(NOW_MS))
    assert isinstance(adoption.error, BadJob)
    assert "a topic of the job was deleted" in str(adoption.error)


def carry_out(store: Store, pause: object) -> None:
    """What a step of adopting or purging asks for."""
    match pause:
        case WaitDurable():
            store.sync()
        case InThread():
            pause.work()
        case DropTicket() | FreeTicket():
            pause.run()


def test_a_job_and_a_purge_take_turns(store: Store, staged: Path) -> None:
    """A purge gives back pages that look empty, and rows of a job look so until the last moment."""
    job(store, staged, [("t", columns([NOW_MS + MINUTE_MS] * 5_000))], NOW_MS)
    purge = store.purger.start()
    carry_out(store, store.purger.step(NOW_MS))
    adoption = store.adopter.start(staged, 0)
    while not purge.is_done:
        assert store.adopter.is_waiting
        assert store.adopter.step(NOW_MS) is None
        carry_out(store, store.purger.step(NOW_MS))
    later = store.purger.start()
    while not adoption.is_done:
        carry_out(store, store.adopter.step(NOW_MS))
        assert store.purger.is_idle(NOW_MS) or adoption.is_done
        assert store.purger.step(NOW_MS) is None or adoption.is_done
    assert adoption.error is None
    while not later.is_done:
        carry_out(store, store.purger.step(NOW_MS))
    assert store.look.topics()[0]["scheduled"] == 5_000


def test_rows_that_were_given_back_get_disk_space_again(store: Store, staged: Path) -> None:
    job(store, staged, [("t", columns([NOW_MS] * 20_000))], NOW_MS)
    region = store.tables.messages.region
    region.free(8_192, region.allocated_bytes // 4_096 * 4_096)
    before_bytes = region.disk_bytes()
    store.tables.refill_rows(1, 20_001)
    assert region.disk_bytes() >= before_bytes + 20_000 * 48 - 4 * 4_096
    store.adopt(staged, 0, NOW_MS)
    assert len(drain(store, "t", NOW_MS)) == 20_000


def test_what_goes_wrong_once_it_counts_is_raised_and_the_next_start_mends_it(
    tmp_path: Path, staged: Path
) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    job(store, staged, [("t", columns([NOW_MS + MINUTE_MS] * 9_000, keys=keys(9_000)))], NOW_MS)
    pump(store, NOW_MS)  # EnqueueGet has passed the job's numbers
    defect = mock.patch.object(type(store.wheel), "link", side_effect=RuntimeError("a defect"))
    with defect, pytest.raises(RuntimeError, match="a defect"):
        store.adopt(staged, 0, NOW_MS)
    assert store.adopter.is_committing, "no checkpoint may be made"
    store.close()
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.look.topics()[0]["scheduled"] == 9_000
    assert all(store.select.find("t", ["k0", "k8999"]))
    store.close()


@pytest.mark.parametrize("is_clean", [False, True])
def test_ended_between_any_two_steps(tmp_path: Path, is_clean: bool) -> None:
    """However far it came when the broker was killed or stopped: all of the job is there or nothing, and it can be
    taken in again."""
    step, found = 0, set[int]()
    while True:
        directory = tmp_path / str(step)
        staged = directory / "staging" / "job"
        store = Store.open(directory, SMALL, NOW_MS)
        store.produce.ingest(
            send(store.topics.open("t", NOW_MS), [b"sent"], keys=[b"k3"], times_ms=[NOW_MS + 5]), NOW_MS
        )
        job(store, staged, [("t", columns([NOW_MS + 5] * 6_000, keys=keys(6_000)))], NOW_MS)
        store.sync()
        adoption = store.adopter.start(staged, 10)
        for _ in range(step):
            match store.adopter.step(NOW_MS):
                case WaitDurable():
                    store.sync()
                case InThread() as pause:
                    pause.work()
        is_done = adoption.is_done
        store.close(clean=is_clean)
        store = Store.open(directory, SMALL, NOW_MS)
        count = store.look.topics()[0]["scheduled"]
        found.add(count)
        again = store.adopt(staged, 10, NOW_MS, bytes.fromhex(JOB))
        assert (again.messages, again.repeated) == (5_999, count == 6_000)
        assert not staged.exists(), "also where only the clearing away was missing"
        assert len(drain(store, "t", NOW_MS + 5)) == 6_000
        store.close()
        shutil.rmtree(directory)
        if is_done:
            break
        step += every(4)
    assert found == {1, 6_000}


def test_the_keys_of_a_job_that_a_stop_has_ended_are_free(tmp_path: Path, staged: Path) -> None:
    """They are in the index when the broker stops. Nobody may look for them in the files of the next job then."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    job(store, staged, [("t", columns([NOW_MS + 5] * 20_000, keys=keys(20_000)))], NOW_MS)
    adoption = store.adopter.start(staged, 0)
    with mock.patch("timerlog.bulk.adopt._Adoption._settle", return_value=iter(["keys are entered"])):
        while (pause := store.adopter.step(NOW_MS)) != "keys are entered":
            if isinstance(pause, InThread):
                pause.work()
    assert not adoption.is_done
    store.close()
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.recovery.was_clean
    other = staged.with_name("other")
    job(store, other, [("t", columns([NOW_MS + 5] * 500, keys=keys(500)))], NOW_MS, JOB[::-1])
    report = store.adopt(other, 0, NOW_MS)
    assert (report.messages, report.rejected) == (500, 0)
    assert len(drain(store, "t", NOW_MS + 5)) == 500
    store.close()


def test_a_file_of_several_topics(store: Store, staged: Path) -> None:
    store.topics.create("sharded", {}, 4, NOW_MS)
    names = ["plain", "sharded", "other"]
    plan = store.bulk.plan(JOB, names, NOW_MS)
    staged.mkdir(parents=True)
    of = np.arange(3_000) % 3
    segments = write_segments(
        plan,
        Topics(names, of.astype(np.uint16)),
        columns([NOW_MS + MINUTE_MS - n for n in range(3_000)], keys=keys(3_000)),
        store.bulk.reserve_ids,
        staged,
        "run",
    )
    write_manifest(Manifest(plan=plan, segments=segments), staged)
    assert store.adopt(staged, 0, NOW_MS).messages == 3_000
    assert store.select.find("sharded", ["k1", "k4"]) != [0, 0]
    assert store.select.find("plain", ["k1"]) == [0]
    assert [len(drain(store, name, NOW_MS + MINUTE_MS)) for name in ("plain", "other")] == [1_000] * 2
    hours = Counter[int]()
    for segment in segments:
        for topic_id, hour, count in segment.hours:
            hours[topic_id] += count
            assert hour in (NOW_MS // 3_600_000, (NOW_MS + MINUTE_MS) // 3_600_000)
    assert hours[plan.topics["plain"].topic_id] == hours[plan.topics["other"].topic_id] == 1_000
    assert hours.total() == 3_000


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1 << 62)), max_size=50))
def test_order_by_time(times: list[int]) -> None:
    found = by_time(np.array(times, np.int64))
    assert found.tolist() == sorted(range(len(times)), key=times.__getitem__)


def test_steps_get_small_where_they_are_slow_and_grow_again() -> None:
    pace = Pace(8_192)

    def after(taken_s: float) -> int:
        pace.took(taken_s)
        return pace.count

    assert [after(0.005) for _ in range(4)] == [4_096, 2_048, 1_024, 1_024]
    assert [after(0.002) for _ in range(2)] == [1_024, 1_024], "two milliseconds are right"
    assert [after(0.0001) for _ in range(4)] == [2_048, 4_096, 8_192, 8_192]


def test_a_job_whose_steps_are_slow_is_taken_in_as_well(store: Store, staged: Path) -> None:
    job(store, staged, [("t", columns([NOW_MS] * 9_000, keys=keys(9_000)))], NOW_MS)
    adoption, steps = store.adopter.start(staged, 0), 0
    while not adoption.is_done:
        carry_out(store, store.adopter.step(NOW_MS))
        store.adopter.took(1.0)
        steps += 1
    assert adoption.error is None
    assert steps > 2 * 9
    assert len(drain(store, "t", NOW_MS)) == 9_000
