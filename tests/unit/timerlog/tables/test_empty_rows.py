"""Stretches of ids whose messages are gone: what is known of them is right, and whoever reads rows leaves them out."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.bulk import columns, job
from tests.support.stores.purging import LATER_MS, ack, content, take
from tests.support.stores.queried import ask
from tickwheel_native import rebuild
from timerlog.commitlog.records import TopicRecord
from timerlog.files.holes import Holes
from timerlog.layout import MessageState
from timerlog.readers.describe import describe_directory
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store
from timerlog.tables import empty_rows
from timerlog.tables.empty_rows import LEAST_IDS, EmptyRows, Look, Stretch
from timerlog.tables.sparse_rows import BLOCK_IDS
from timerlog.tables.tables import Tables, parts, remove_derived_files, spans

#: So many ids were given to messages that came and went.
GONE = 2 * LEAST_IDS
YEARS_MS = NOW_MS + 5 * 365 * 86_400_000
TOPIC = 1


def apart(bounds: list[int]) -> list[Stretch]:
    """Stretches that lie apart, from any numbers."""
    found: list[Stretch] = []
    for start, end in zip(bounds[::2], bounds[1::2], strict=False):
        if start < end and (not found or found[-1][1] < start):
            found.append((start, end))
    return found


numbers = st.lists(st.integers(1, 120), max_size=16).map(sorted).map(apart)


@given(numbers, numbers, st.sets(st.integers(1, 119)))
def test_readers_see_all_rows_but_those_left_out(
    gaps: list[Stretch], stretches: list[Stretch], used: set[int]
) -> None:
    with closing(Tables(directory=None, log_id=1, settings=SMALL, gaps=gaps)) as tables:
        tables.start_rows(1, 120, gaps)
        tables.ensure_rows(130)
        tables.add_topic(TopicRecord(TOPIC, "t", 0))
        tables.empty.put(stretches)
        gone = {number for start, end in [*gaps, *stretches] for number in range(start, end)}
        for number in used - gone:
            tables.rows[number]["state"], tables.rows[number]["topic_id"] = MessageState.SCHEDULED, TOPIC
        seen = [number for span in tables.spans(1, 120, 7) for number in range(*span)]
        assert seen == [number for number in range(1, 120) if number not in gone]
        found, columns_ = [], (np.empty(3, np.int64), np.empty(3, np.uint64), np.empty(3, np.uint32))
        at = 1
        while at < 120:
            count, at = rebuild.scheduled(tables.native, at, 120, *columns_)
            found += columns_[1][:count].tolist()
        assert found == sorted(used - gone)
        assert rebuild.topics(tables.native)
        assert tables.native.topics[TOPIC].scheduled == len(found)


@given(numbers, st.integers(1, 120), st.integers(0, 30))
def test_no_stretch_has_what_is_to_be_filled(stretches: list[Stretch], start: int, count: int) -> None:
    with closing(Tables(directory=None, log_id=1, settings=SMALL)) as tables:
        empty = EmptyRows(tables.native, stretches)
        empty.leave(start, start + count)
        filled = range(start, start + count)
        assert not any(number in filled for first, end in empty.stretches for number in range(first, end))
        assert set(empty.stretches) <= set(stretches)
        assert [one for one in stretches if one[1] <= start or one[0] >= start + count] == empty.stretches


@given(st.sets(st.integers(1, 60)), st.integers(1, 4), numbers)
def test_a_look_finds_every_long_stretch(used: set[int], step: int, known: list[Stretch]) -> None:
    known = [one for one in known if one[1] <= 61 and not used & set(range(*one))]
    with mock.patch.object(empty_rows, "LEAST_IDS", 4):
        look = Look(1)
        for start, end in spans(known, 1, 61, step):
            there = [number for number in range(start, end) if number in used]
            look.piece((there[0], there[-1]) if there else None)
        bounds = [0, *sorted(number for number in used if number < 61), 61]
        runs = [(before + 1, after) for before, after in pairwise(bounds)]
        assert look.found(61) == [(start, end) for start, end in runs if end - start >= 4]


@given(numbers, st.integers(0, 60), st.integers(0, 130), st.integers(1, 30))
def test_parts_have_as_many_ids_as_they_may(gaps: list[Stretch], start: int, end: int, ids: int) -> None:
    gone = {number for first, stop in gaps for number in range(first, stop)}
    wanted = [number for number in range(start, end) if number not in gone]
    found = [
        [number for number in range(*part) if number not in gone] for part in parts(gaps, start, end, ids)
    ]
    assert found == [wanted[at : at + ids] for at in range(0, len(wanted), ids)]


def test_the_longest_are_kept() -> None:
    with (
        closing(Tables(directory=None, log_id=1, settings=SMALL)) as tables,
        mock.patch.object(empty_rows, "MOST", 2),
    ):
        tables.empty.put([(1, 10), (20, 22), (30, 60)])
        assert tables.empty.stretches == [(1, 10), (30, 60)]


# -- a store that has one message for a day in some years, and others behind what came and went --


def sent(store: Store, count: int, due_ms: int) -> list[int]:
    first = store.tables.next_id
    store.produce.ingest(send(TOPIC, [b"%d" % n for n in range(count)], times_ms=[due_ms] * count), NOW_MS)
    return list(range(first, first + count))


def leave_behind(directory: Path) -> tuple[Store, list[int]]:
    """The ids of what is there."""
    store = Store.open(directory, SMALL, NOW_MS)
    store.topics.open("t", NOW_MS)
    store.groups.open(TOPIC, "g", NOW_MS)
    kept = sent(store, 1, YEARS_MS)
    gone = sent(store, 200, NOW_MS)
    store.bulk.reserve_ids(GONE)
    kept += sent(store, 1, YEARS_MS + 1)
    store.bulk.reserve_ids(GONE)
    gone += sent(store, 200, NOW_MS)
    kept += sent(store, 20, YEARS_MS + 5)
    pump(store, NOW_MS + 1)
    taken, epochs = take(store, 1, 400, NOW_MS + 2)
    assert taken == gone
    ack(store, 1, taken, epochs, NOW_MS + 3)
    store.log.roll()
    store.purge(LATER_MS)
    store.sync()
    return store, kept


def disk_bytes(store: Store) -> int:
    """Of the rows of all messages that were sent: more are allocated ahead."""
    messages = store.tables.messages
    ahead_bytes = (messages.capacity - store.tables.next_id) * messages.dtype.itemsize
    return messages.region.disk_bytes() - ahead_bytes


@pytest.fixture(params=["disk", "holes"])
def _no_writes_into_holes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with holes that end the process when they are written."""
    monkeypatch.setattr(Holes, "are_read_only", request.param == "holes")


@pytest.mark.promise("a-full-disk")
@pytest.mark.parametrize("how", ["stop", "kill", "tables"])
@pytest.mark.usefixtures("_no_writes_into_holes")
def test_a_start_and_a_purge_leave_out_what_is_gone(tmp_path: Path, how: str) -> None:
    store, kept = leave_behind(tmp_path)
    store.purge(LATER_MS)
    stretches = [(kept[0] + 1, kept[1]), (kept[1] + 1, kept[2])]
    assert store.tables.empty.stretches == stretches
    state, messages = store.look.state_hash(), content(store)
    assert list(messages) == kept
    if how == "kill":
        store.checkpoints.save(clean=False, durable=False)
    store.close(clean=how == "stop")
    if how == "tables":
        remove_derived_files(tmp_path)
    with mock.patch.object(rebuild, "used", side_effect=rebuild.used) as used:
        store = Store.open(tmp_path, SMALL, NOW_MS)
    read = sum(call.args[2] - call.args[1] for call in used.call_args_list)
    assert read <= len(kept) + 4 * BLOCK_IDS, "what is known to be empty is not read"
    assert store.tables.empty.stretches == stretches
    assert store.look.state_hash() == state
    assert content(store) == messages
    if how == "tables":
        assert disk_bytes(store) < 1 << 20, "nor does it get disk space"
    store.purge(LATER_MS)
    assert disk_bytes(store) < 1 << 20, "nor has it disk space"
    assert store.tables.empty.stretches == stretches
    assert [row["id"] for row in ask(store, "select id from messages order by id", NOW_MS)] == kept
    store.checkpoints.save(clean=False, durable=False)
    offline = describe_directory(tmp_path, NOW_MS).description
    for description in (describe(store.log, store.tables, NOW_MS), offline):
        assert description.gaps == stretches
        with closing(Snapshot(description)) as snapshot:
            assert [int(one) for chunk in snapshot.chunks(None) for one in chunk.ids] == kept
    pump(store, YEARS_MS + 5)
    assert take(store, 1, 100, YEARS_MS + 6)[0] == kept
    store.close()


@pytest.mark.promise("a-full-disk")
@pytest.mark.parametrize("how", ["none", "kill", "old", "tables"])
@pytest.mark.usefixtures("_no_writes_into_holes")
def test_a_job_comes_into_what_was_empty(tmp_path: Path, how: str) -> None:
    """A purge has given its rows back, and the last checkpoint says that nothing is there."""
    data = tmp_path / "data"
    store = Store.open(data, SMALL, NOW_MS)
    store.topics.open("t", NOW_MS)
    store.groups.open(TOPIC, "g", NOW_MS)
    kept = sent(store, 1, YEARS_MS)
    store.bulk.reserve_ids(GONE)
    count = 3 * BLOCK_IDS
    plan = job(store, tmp_path / "job", [("t", columns([YEARS_MS + 1] * count))], NOW_MS)
    assert plan
    store.bulk.reserve_ids(GONE)
    kept += sent(store, 1, YEARS_MS)
    gone = sent(store, 50, NOW_MS)
    pump(store, NOW_MS + 1)
    ack(store, 1, *take(store, 1, 50, NOW_MS + 2), NOW_MS + 3)
    for _ in range(2):
        store.log.roll()
        store.purge(LATER_MS)
    assert store.tables.empty.stretches[0] == (kept[0] + 1, kept[1])
    store.checkpoints.save(clean=False, durable=False)
    content_of_old = (data / "checkpoint").read_bytes()
    assert store.adopt(tmp_path / "job", 0, NOW_MS).messages == count
    ids = range(kept[0] + 1 + GONE, kept[0] + 1 + GONE + count)
    assert not any(start < ids.stop and end > ids.start for start, end in store.tables.empty.stretches)
    store.sync()
    with closing(Snapshot(describe_directory(data, NOW_MS).description)) as snapshot:
        assert [int(one) for chunk in snapshot.chunks(None) for one in chunk.ids] == [kept[0], *ids, kept[1]]
    if how != "none":
        store.close(clean=False)
        if how == "old":
            (data / "checkpoint").write_bytes(content_of_old)
        if how == "tables":
            remove_derived_files(data)
        store = Store.open(data, SMALL, NOW_MS)
    assert gone
    assert store.look.topics()[0]["scheduled"] == count + 2
    store.purge(LATER_MS)
    assert len(store.tables.empty.stretches) == 2
    pump(store, YEARS_MS + 1)
    assert sorted(take(store, 1, count + 10, YEARS_MS + 2)[0]) == [kept[0], *ids, kept[1]]
    store.close()
