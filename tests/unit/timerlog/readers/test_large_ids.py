"""Messages whose ids are beyond 2^32, to all that read a store: the same as those of a store that begins with id 1."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.far import begin_with_large_ids
from tests.support.stores.purging import LATER_MS, content, mixed
from tests.support.stores.queried import ask
from tests.support.stores.reader import Reader
from timerlog.engine.produce import Stop
from timerlog.maintenance.backup import back_up, restore
from timerlog.maintenance.inspect import inspect_directory
from timerlog.readers.attempts import MOST_BYTES, AttemptReader
from timerlog.readers.history import history_of
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.readers.tail import Place, TailReader
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

SQL = 'select id, topic, "group", key, state, attempts, body, time_next from messages order by id, "group"'


def told(store: Store, first_id: int) -> object:
    """What readers say of a store, with ids counted from 1."""
    rows = [{**row, "id": row["id"] - first_id + 1} for row in ask(store, SQL, NOW_MS)]
    assert len(rows) > 9_000
    end = store.log.durable_position
    with closing(Snapshot(describe(store.log, store.tables, NOW_MS))) as snapshot:
        tail = TailReader(snapshot, Place(0, 0), end, 1 << 20, 1 << 30).run(lambda: False)
        groups = [group.group_id for group in snapshot.description.groups]
        tried = AttemptReader(
            snapshot=snapshot,
            groups=groups,
            mark=None,
            before=None,
            end=end,
            limit=10_000,
            most_bytes=MOST_BYTES,
        ).run(lambda: False)
        lives = [
            history_of(snapshot, first_id + number, end, 10_000, lambda: False) for number in range(0, 400, 7)
        ]
    events = [
        (one.event, None if one.id is None else one.id - first_id + 1, one.topic, one.time_ms)
        for one in tail.events
    ]
    attempts = [(one.id - first_id + 1, one.number, one.outcome) for one in tried.attempts]
    names = [[event.event for event in life.events] if life else None for life in lives]
    assert None not in names
    return rows, events, attempts, names


def contents(store: Store, first_id: int) -> dict[int, Any]:
    """By ids counted from 1: what was sent, and how it stands."""
    return {
        number - first_id + 1: (view.key, view.body, view.deliver_at_ms, state, version)
        for number, (view, state, version, _) in content(store).items()
    }


@pytest.fixture(scope="module")
def first_id(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("ids") / "large"
    return begin_with_large_ids(folder), folder


def test_every_reader_finds_them(tmp_path: Path, first_id: tuple[int, Path]) -> None:
    first, directory = first_id
    near, large = mixed(tmp_path / "near"), mixed(directory)
    assert large.tables.next_id - first == near.tables.next_id - 1
    assert told(large, first) == told(near, 1)
    expected = contents(near, 1)
    assert contents(large, first) == expected
    large.purge(LATER_MS)
    near.purge(LATER_MS)
    expected = contents(near, 1)
    assert contents(large, first) == expected
    near.close()
    large.close()
    remove_derived_files(directory)  # so that all of the log is read
    again = Store.open(directory, SMALL, NOW_MS)
    assert contents(again, first) == expected
    again.close()
    assert inspect_directory(directory).ok
    back_up(directory, tmp_path / "copy", NOW_MS)
    restore(tmp_path / "copy", tmp_path / "restored", 9)
    restored = Store.open(tmp_path / "restored", SMALL, NOW_MS)
    assert contents(restored, first) == expected
    restored.close()


def test_they_are_delivered_acked_and_changed(tmp_path: Path) -> None:
    first = begin_with_large_ids(tmp_path / "data")
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    reader = Reader(store, topic)
    keys = [b"key-%d" % number for number in range(20)]
    times = [NOW_MS] * 10 + [LATER_MS] * 10
    taken = store.produce.ingest(send(topic, [b"x"] * 20, keys=keys, times_ms=times), NOW_MS)
    assert taken.stop is Stop.NEED_MORE
    assert store.select.find("t", ["key-0", "key-19"]) == [first, first + 19]
    pump(store, NOW_MS + 1)
    receipts = reader.fetch(10, now_ms=NOW_MS + 2)
    assert [number for number, _ in receipts] == list(range(first, first + 10))
    reader.ack(*receipts)
    assert store.change.cancel([first + 10, first - 1], NOW_MS) == ["cancelled", "not_found"]
    assert store.change.reschedule([first + 11], LATER_MS + 9, NOW_MS) == ["rescheduled"]
    pump(store, LATER_MS + 10)
    rest = reader.fetch(20, now_ms=LATER_MS + 11)
    assert [number for number, _ in rest] == [*range(first + 12, first + 20), first + 11]
    store.close()
