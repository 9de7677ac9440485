"""Tables of which most is gone: ids, topics and groups go on for as long as anybody sends."""

from __future__ import annotations

import errno
from contextlib import ExitStack, closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.bulk import columns, job
from tests.support.stores.far import begin_late, narrow_tables
from tests.support.stores.purging import LATER_MS, ack, take
from tests.support.stores.queried import ask
from timerlog.background import InThread, WaitDurable
from timerlog.engine.produce import Stop
from timerlog.errors import LogAtItsEnd, NoAddressSpace
from timerlog.files import mapped_file
from timerlog.files.window import PAGE_BYTES, Window
from timerlog.readers.describe import describe_directory
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store
from timerlog.tables import reach, tables
from timerlog.tables.tables import MAX_ID, remove_derived_files

GIB = 1 << 30
#: Where each table ended once, with these settings: of all messages, of a topic, of a group.
ENDS = {
    "ids": (512 * GIB - PAGE_BYTES) // 48,
    "topic": (32 * GIB - PAGE_BYTES) // 16,
    "group": (48 * GIB - PAGE_BYTES) // 32,
}
TOPIC = 1
LATER_STEP_MS = 100_000_000
FAR_OFF = [
    pytest.param(ENDS["ids"] - 50, 7, id="ids"),
    pytest.param(1_000, ENDS["topic"] - 50, id="topic"),
    pytest.param(1_000, ENDS["group"] - 50, id="group"),
    pytest.param((1 << 32) - 50, (1 << 32) - 50, id="32 bits"),
    pytest.param(1 << 38, 1 << 38, id="all"),
]


def sent(store: Store, count: int, hold_ms: int = 0) -> list[int]:
    first = store.tables.next_id
    data = send(TOPIC, [b"%d" % number for number in range(count)], times_ms=[NOW_MS + hold_ms] * count)
    assert store.produce.ingest(data, NOW_MS).stop is Stop.NEED_MORE
    return list(range(first, first + count))


@pytest.mark.parametrize(("first_id", "seq"), FAR_OFF)
def test_a_store_goes_on_as_after_years(tmp_path: Path, first_id: int, seq: int) -> None:
    begin_late(tmp_path, first_id, seq)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    ids = sent(store, 200)
    waiting = sent(store, 20, hold_ms=50_000)
    assert (ids[0], waiting[-1]) == (first_id, first_id + 219)
    assert pump(store, NOW_MS + 1) == 200
    taken, epochs = take(store, 1, 150, NOW_MS + 2)
    assert taken == ids[:150]
    ack(store, 1, taken[:100], epochs[:100], NOW_MS + 3)
    assert store.change.cancel(waiting[:5], NOW_MS) == ["cancelled"] * 5
    assert store.change.reschedule([ids[160], waiting[9]], NOW_MS + 70_000, NOW_MS) == ["rescheduled"] * 2
    old = [first_id - 1, 1, first_id // 2]
    assert store.change.cancel(old, NOW_MS) == ["not_found"] * 3
    assert store.select.message(first_id - 1, NOW_MS, 10) is None
    assert store.groups.holders_of(np.array([ids[0], ids[120]], np.uint64))[0].ids == [ids[120]]
    found = store.select.message(ids[160], NOW_MS, 10)
    assert found is not None
    assert (found["body"], found["state"]) == (b"160", "scheduled")
    state = store.look.state_hash()
    store.sync()
    for how in ("stop", "kill", "tables"):
        store.close(clean=how == "stop")
        if how == "tables":
            remove_derived_files(tmp_path)
        store = Store.open(tmp_path, SMALL, NOW_MS)
        assert store.look.state_hash() == state, how
    assert store.groups.seek("t", "g", "earliest") == 199
    pump(store, NOW_MS + 100_000)
    again, epochs = take(store, 1, 500, NOW_MS + 100_001)
    assert sorted(again) == sorted([*ids, *waiting[5:]])
    ack(store, 1, again, epochs, NOW_MS + 100_002)
    store.purge(LATER_MS * 2)
    assert store.tables.native.first_id >= waiting[4]
    assert sent(store, 3)[0] == waiting[-1] + 1
    store.close()


@pytest.mark.parametrize(("first_id", "seq"), FAR_OFF)
def test_readers_find_what_is_there(tmp_path: Path, first_id: int, seq: int) -> None:
    begin_late(tmp_path, first_id, seq)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    ids = sent(store, 200)
    pump(store, NOW_MS + 1)
    taken, epochs = take(store, 1, 50, NOW_MS + 2)
    ack(store, 1, taken, epochs, NOW_MS + 3)
    store.sync()
    sql = "select id, state from messages order by id"
    rows = ask(store, sql, NOW_MS)
    assert [row["id"] for row in rows] == ids
    assert [row["state"] for row in rows].count("acked") == 50
    online, offline = (
        describe(store.log, store.tables, NOW_MS),
        describe_directory(tmp_path, NOW_MS).description,
    )
    assert (online.first_id, online.first_seqs) == (first_id, {TOPIC: seq})
    for description in (online, offline):
        with closing(Snapshot(description)) as snapshot:
            chunks = list(snapshot.chunks(None))
            assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == ids
            everything = np.array([0, 1, first_id - 1, *ids, first_id + 10_000])
            assert snapshot.records(everything).is_whole.tolist() == [False] * 3 + [True] * 200 + [False]
            numbers = np.array([-1, 0, seq - 1, seq, seq + 199, seq + 10_000_000])
            assert snapshot.ids_of(TOPIC, numbers).tolist() == [0, 0, 0, ids[0], ids[-1], 0]
            del chunks
    store.close()


@pytest.mark.parametrize("seq", [0, 1 << 38])  # beyond it ext4 has no longer files
def test_all_tables_move_while_they_are_used(tmp_path: Path, seq: int) -> None:
    """Sent, given out, given back, acked, purged: the same again and again, while a few stay from the beginning."""
    with narrow_tables():
        if seq:
            begin_late(tmp_path, (1 << 37) + 5, seq)
        store = Store.open(tmp_path, SMALL, NOW_MS)
        store.topics.open("t", NOW_MS)
        group = store.groups.open(TOPIC, "g", NOW_MS)
        starts: set[tuple[int, ...]] = set()
        kept = sent(store, 3, hold_ms=10**11)
        held: list[int] = []
        for turn in range(12):
            now_ms = NOW_MS + turn * LATER_STEP_MS
            ids = sent(store, 300)
            pump(store, now_ms)
            taken, epochs = take(store, group, 300, now_ms)
            assert sorted(taken) == sorted([*held, *ids])[:300]
            held = sorted({*held, *ids} - set(taken))
            ack(store, group, taken, epochs, now_ms)
            store.log.roll()
            store.purge(now_ms + LATER_STEP_MS)
            everything = store.tables
            starts.add((everything.messages.start, everything.topics[TOPIC].arrivals.start))
            starts.add((everything.groups[group].deliveries.start,))
            assert {store.select.message(one, now_ms, 1)["state"] for one in kept} == {"scheduled"}
        assert len(starts) > 8
        state = store.look.state_hash()
        store.sync()
        store.close(clean=False)
        store = Store.open(tmp_path, SMALL, NOW_MS)
        assert store.look.state_hash() == state
        store.close()


class Addresses:
    """Lets windows be made only while there are some left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.are_left = True
        before = Window.__init__

        def make(made: Window, start: int, end: int) -> None:
            if not self.are_left:
                raise NoAddressSpace("cannot reserve address space")
            before(made, start, end)

        monkeypatch.setattr(Window, "__init__", make)


@pytest.mark.parametrize("late", [None, ((1 << 37) - 300, 1 << 35)])
def test_without_addresses_sends_are_refused_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: tuple[int, int] | None
) -> None:
    with narrow_tables(16 * PAGE_BYTES):
        if late is not None:
            begin_late(tmp_path, *late)
        store = Store.open(tmp_path, SMALL, NOW_MS)
        store.topics.open("t", NOW_MS)
        group = store.groups.open(TOPIC, "g", NOW_MS)
        addresses = Addresses(monkeypatch)
        addresses.are_left = False
        accepted: list[int] = []
        for _ in range(200):
            first = store.tables.next_id
            result = store.produce.ingest(send(TOPIC, [b"x"] * 50, times_ms=[NOW_MS + 10] * 50), NOW_MS)
            if result.refused is not None:
                break
            accepted += range(first, first + 50)
        assert isinstance(result.refused, NoAddressSpace)
        assert store.tables.next_id == first, "nothing of the batch is stored"
        assert len(accepted) >= 200
        pump(store, NOW_MS + 11)
        taken, epochs = take(store, group, len(accepted), NOW_MS + 12)
        assert taken == accepted
        ack(store, group, taken[:-2], epochs[:-2], NOW_MS + 13)
        with pytest.raises(NoAddressSpace):
            store.bulk.reserve_ids(10_000)
        store.sync()
        addresses.are_left = True
        assert sent(store, 50)[0] == first
        store.sync()
        store.close(clean=False)
        store = Store.open(tmp_path, SMALL, NOW_MS)
        assert store.tables.next_id == first + 50
        store.close()


def test_a_job_wants_addresses_for_all_of_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with narrow_tables():
        store = Store.open(tmp_path / "data", SMALL, NOW_MS)
        store.topics.open("t", NOW_MS)
        job(store, tmp_path / "job", [("t", columns([NOW_MS] * 2_000))], NOW_MS)
        state, addresses = store.look.state_hash(), Addresses(monkeypatch)
        addresses.are_left = False
        with pytest.raises(NoAddressSpace):
            store.adopt(tmp_path / "job", 0, NOW_MS)
        assert store.look.state_hash() == state
        addresses.are_left = True
        assert store.adopt(tmp_path / "job", 0, NOW_MS).messages == 2_000
        assert pump(store, NOW_MS + 10) == 2_000
        store.close()


def test_a_topic_and_a_group_want_addresses_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    position = store.log.appended_position
    with monkeypatch.context() as patch:
        patch.setattr(reach, "TOPIC_ROOM", 1 << 47)
        with pytest.raises(NoAddressSpace):
            store.topics.open("another", NOW_MS)
        with pytest.raises(NoAddressSpace):
            store.groups.open(topic, "g", NOW_MS)
    assert store.log.appended_position == position, "nothing is logged that could not be made"
    store.groups.open(topic, "g", NOW_MS)
    store.close()


def test_the_last_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^40 - 1, of which an entry of the key index has room."""
    assert MAX_ID == (1 << 40) - 1
    monkeypatch.setattr(tables, "MAX_ID", 9_999)
    begin_late(tmp_path, 9_900, 5)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    ids = sent(store, 100)
    assert ids[-1] == 9_999
    refused = store.produce.ingest(send(TOPIC, [b"one more"]), NOW_MS).refused
    assert isinstance(refused, LogAtItsEnd)
    with pytest.raises(LogAtItsEnd, match="9999"):
        store.bulk.reserve_ids(1)
    pump(store, NOW_MS + 1)
    taken, epochs = take(store, 1, 200, NOW_MS + 2)
    assert taken == ids
    ack(store, 1, taken, epochs, NOW_MS + 3)
    store.close()
    Store.open(tmp_path, SMALL, NOW_MS).close()


def test_a_bulk_job_is_taken_in_while_tables_move(tmp_path: Path) -> None:
    """Its ids were given to it long ago: the table of messages has moved on, and goes on while the job is taken in."""
    data, staged = tmp_path / "data", tmp_path / "staged"
    with narrow_tables():
        begin_late(data, 1 << 37, 1 << 37)
        store = Store.open(data, SMALL, NOW_MS)
        job(store, staged, [("t", columns([NOW_MS + 5] * 500, keys=[b"%d" % n for n in range(500)]))], NOW_MS)
        assert store.tables.next_id == (1 << 37) + 500
        group = store.groups.open(TOPIC, "g", NOW_MS)
        for _ in range(6):
            sent(store, 200)
            pump(store, NOW_MS + 1)
            taken, epochs = take(store, group, 200, NOW_MS + 2)
            ack(store, group, taken, epochs, NOW_MS + 3)
            store.log.roll()
            store.purge(LATER_MS)
        sent(store, 200)
        assert store.tables.messages.start >= (1 << 37) + 500, "what the job has ids for has no addresses"
        adoption, starts = store.adopter.start(staged, 0), set()
        while not adoption.is_done:
            match store.adopter.step(NOW_MS):
                case InThread() as pause:
                    pause.work()
                case WaitDurable(position):
                    store.sync()
                    assert store.log.durable_position >= position
            if not store.adopter.is_committing:
                sent(store, 40)
            starts.add(store.tables.messages.address)
        assert adoption.error is None
        assert len(starts) > 3, "it moved"
        sent(store, 100)
        assert store.tables.messages.region._left == [], "nothing looks at where it was"
        state = store.look.state_hash()
        store.sync()
        for how in ("kill", "tables"):
            store.close(clean=False)
            if how == "tables":
                remove_derived_files(data)
            store = Store.open(data, SMALL, NOW_MS)
            assert store.look.state_hash() == state, how
        pump(store, NOW_MS + 100)
        taken, _ = take(store, group, 5_000, NOW_MS + 101)
        assert set(range(1 << 37, (1 << 37) + 500)) <= set(taken)
        store.close()


def test_files_that_cannot_be_longer_are_told(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    too_long = mock.patch.object(mapped_file.memory, "allocate", return_value=-errno.EFBIG)
    with too_long, pytest.raises(LogAtItsEnd, match="no longer files"):
        store.tables.ensure_rows(10_000_000)
    store.close()


def test_twenty_stores_fit_into_a_process(tmp_path: Path) -> None:
    with ExitStack() as opened:
        for number in range(20):
            store = Store.open(tmp_path / str(number), SMALL, NOW_MS)
            opened.callback(store.close, clean=False)
            for topic in range(50):
                store.groups.open(store.topics.open(f"t{topic}", NOW_MS), "g", NOW_MS)
            sent(store, 5)
            assert pump(store, NOW_MS + 1) == 5
