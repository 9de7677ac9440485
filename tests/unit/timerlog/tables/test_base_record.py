"""BASE says everything small that holds at a point of the log, so that what lies before is not needed for it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.stores.purging import LATER_MS, mixed
from timerlog.commitlog.records import Purged, TopicRecord
from timerlog.store import Store
from timerlog.tables.apply import Applier
from timerlog.tables.base_record import Base, capture


def filled(directory: Path) -> Store:
    store = mixed(directory)
    store.topics.set("a", {"purge_after_ms": 7}, [], None, NOW_MS)
    store.topics.delete("b")
    store.change.put_document("gone", b"x", NOW_MS)
    store.change.put_document("gone", None, NOW_MS)
    store.purge(LATER_MS)
    return store


def test_it_names_what_there_is(tmp_path: Path) -> None:
    store = filled(tmp_path)
    base = capture(store.tables, 5)
    (topic,), (group,) = base.topics, base.groups
    assert (topic.record.name, topic.record.settings.purge_after_ms) == ("a", 7)
    assert (topic.count, topic.purged_cancelled) == (4_500, 39)
    assert topic.purged_messages == 4_390 + 39
    assert (group.record.name, group.purged_acked) == ("g", 4_390)
    assert (base.next_id, base.last_topic_id, base.last_group_id) == (store.tables.next_id, 2, 2)
    assert base.first_id > 1
    assert base.tick_ms == 5
    assert base.documents == {"note": b"kept"}
    assert base.failures == store.tables.failures.dump() != []
    store.close()


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = filled(tmp_path)
    base = capture(store.tables, 5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(base), type=Base) == base
    purged = Purged(1, 2, [(1, 2, 3)], [(4, 5, 6, 7)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(purged), type=Purged) == purged
    store.close()


def test_on_tables_that_hold_it_already_it_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    state, base = store.look.state_hash(), capture(store.tables, 5)
    store.applier.base(base)
    assert store.look.state_hash() == state
    assert capture(store.tables, 5) == base
    store.close()


def test_on_empty_tables_it_makes_all_that_is_not_a_message(tmp_path: Path) -> None:
    store = filled(tmp_path / "from")
    empty = Store.open(tmp_path / "to", SMALL, NOW_MS)
    base = capture(store.tables, 5)
    Applier(empty.tables, SMALL).base(base)
    assert capture(empty.tables, 5) == base
    assert isinstance(empty.tables.topics[1].record, TopicRecord)
    assert empty.topics.open("c", NOW_MS) == 3, "the number of the deleted topic is not used again"
    store.close()
    empty.close()
