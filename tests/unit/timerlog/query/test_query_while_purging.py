"""A query that reads while messages are purged and moved: nothing that is gone looks new, what stays is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS
from tests.support.stores.purging import LATER_MS, content, fill, mixed
from tests.support.stores.queried import ask, expected_rows
from timerlog.commitlog.records import GroupRecord
from timerlog.commitlog.view import LogView
from timerlog.layout import Array, Int64Array, MessageState
from timerlog.query.columns import LogColumns
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = mixed(tmp_path)
    yield opened
    opened.close(clean=False)


def test_after_a_purge_messages_are_what_the_tables_say(store: Store) -> None:
    store.purge(LATER_MS)
    kept = content(store)
    rows = ask(store, "SELECT id, state, key, body FROM messages ORDER BY id", LATER_MS)
    expected = sorted((row["id"], row["state"]) for row in expected_rows(store, LATER_MS))
    assert [(row["id"], row["state"]) for row in rows] == expected
    assert {row["id"]: (row["key"].encode(), row["body"]) for row in rows} == {
        message_id: (view.key, view.body) for message_id, (view, *_) in kept.items()
    }


def test_what_is_purged_under_a_scan_is_left_out(store: Store) -> None:
    """The rows are copied, then everything that is done is purged, then deliveries are read: they are zeros by then,
    and a row with zeros for a delivery means a message that nobody got yet."""
    read, purged = Snapshot.deliveries, []

    def purge_then_read(snapshot: Snapshot, group: GroupRecord, seqs: Int64Array) -> Array:
        if not purged:
            purged.append(store.purge(LATER_MS).purged_messages)
        return read(snapshot, group, seqs)

    untouched = {
        (row["id"], row["state"]) for row in expected_rows(store, LATER_MS) if row["state"] == "ready"
    }
    with mock.patch.object(Snapshot, "deliveries", purge_then_read):
        rows = ask(store, "SELECT id, state FROM messages", LATER_MS)
    assert purged[0] > 8_000
    assert {(row["id"], row["state"]) for row in rows if row["state"] == "ready"} == untouched
    assert {row["id"] for row in rows} == content(store).keys()


def test_what_is_moved_after_it_was_looked_at_is_found(store: Store) -> None:
    snapshot = Snapshot(describe(store.log, store.tables, NOW_MS))
    try:
        columns = LogColumns(snapshot)
        before, segments = content(store), store.log.segments
        ids = np.arange(1, store.tables.next_id)
        assert snapshot.records(ids).is_whole.all()
        store.purge(LATER_MS)
        fill(store, 1, [b"grow-%d" % number for number in range(100)], LATER_MS * 2)
        store.log.flush()
        assert not set(segments) & set(store.log.segments), "every message that is left was moved"
        left = np.array(sorted(content(store).keys() & before.keys()))
        assert len(left) > 300
        assert snapshot.records(left).is_whole.all()
        bodies = [before[message_id][0].body for message_id in left.tolist()]
        keys = [before[message_id][0].key for message_id in left.tolist()]
        assert columns.body(left).to_pylist() == bodies
        assert columns.key(left).to_pylist() == [key.decode() for key in keys]
    finally:
        snapshot.close()


def test_what_is_moved_between_a_row_and_its_record_is_found(store: Store) -> None:
    snapshot = Snapshot(describe(store.log, store.tables, NOW_MS))
    look, purged = snapshot.log.records, []

    def purge_then_look(ids: Int64Array, rows: Array) -> object:
        if not purged:
            purged.append(store.purge(LATER_MS))
        return look(ids, rows)

    try:
        left = np.array([i for i, v in content(store).items() if v[1] == MessageState.SCHEDULED])
        with mock.patch.object(snapshot.log, "records", purge_then_look):
            found = snapshot.records(left)
        assert purged[0].moved_messages >= len(left) > 250
        assert found.is_whole.all()
        assert (found.positions == store.tables.rows["position"][left]).all()
    finally:
        snapshot.close()


def test_a_segment_that_grew_is_mapped_further_and_stays_when_it_is_deleted(tmp_path: Path) -> None:
    path, first, second = tmp_path / f"{0:020d}.log", b"a" * 4_096, b"b" * 8_192
    log, places = LogView(tmp_path, 1 << 20), np.array([70, 9_000])
    try:
        assert not log.map_more(places), "there is no file yet"
        path.write_bytes(first)
        assert log.map_more(places)
        assert log.read(4_000, 96) == b"a" * 96
        with open(path, "ab") as file:
            file.write(second)
        assert log.map_more(places)
        assert not log.map_more(places)
        path.unlink()
        assert not log.map_more(places)
        assert log.read(4_000, 8_288) == (first + second)[4_000:]
    finally:
        log.close()


def test_ids_that_are_not_there_are_not_whole(store: Store) -> None:
    snapshot = Snapshot(describe(store.log, store.tables, NOW_MS))
    try:
        store.purge(LATER_MS)
        acked = next(i for i in range(1, store.tables.next_id) if not store.tables.rows["state"][i])
        ids = np.array([0, -5, acked, store.tables.next_id + 7, 60])
        assert snapshot.records(ids).is_whole.tolist() == [False, False, False, False, True]
    finally:
        snapshot.close()


class _Ids:
    """What DuckDB hands over, as far as it is used."""

    def __init__(self, ids: Int64Array) -> None:
        self._ids = ids

    def fill_null(self, _: int) -> _Ids:
        return self

    def to_numpy(self) -> Int64Array:
        return self._ids
