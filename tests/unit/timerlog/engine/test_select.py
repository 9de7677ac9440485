"""What a filter means while topics come and go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.native.driver import NOW_MS, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from timerlog.engine import select as selecting
from timerlog.engine.select import Filter
from timerlog.errors import UnknownGroup
from timerlog.store import Store


@pytest.mark.parametrize("wanted", [Filter(), Filter(states=frozenset({"leased"}), group="g")])
def test_a_topic_that_is_deleted_between_two_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch, wanted: Filter
) -> None:
    monkeypatch.setattr(selecting, "PART", 2)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 5), NOW_MS)
    pump(store, NOW_MS)
    Reader(store, topic).fetch()
    parts = store.select.matching(topic, wanted, NOW_MS)
    assert next(parts).tolist() == [1, 2]
    store.topics.delete("t")
    assert [part.tolist() for part in parts] == [[], []]


def test_a_group_that_no_part_of_the_topic_has(store: Store) -> None:
    topic = store.topics.create("t", {}, 2, NOW_MS).topic_id
    with pytest.raises(UnknownGroup):
        next(store.select.matching(topic, Filter(group="g"), NOW_MS))


def test_when_a_group_was_done_with_it(store: Store) -> None:
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    store.produce.ingest(send(topic, [b"x"] * 4, keys=[b"a", b"b", b"c", b"d"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    receipts = reader.fetch(3)
    assert receipts == [(1, 1), (2, 1), (3, 1)]
    assert reader.nack(receipts[0], now_ms=NOW_MS + 10) == ["dead"]
    assert reader.ack(receipts[1]) == (1, [])

    def found(**wanted: Any) -> list[int]:
        parts = store.select.matching(topic, Filter(**wanted), NOW_MS + 30)
        return [number for part in parts for number in part.tolist()]

    assert found() == [1, 2, 3, 4]
    assert found(done_from_ms=1) == [1, 2]
    assert found(done_from_ms=NOW_MS + 10) == [1]
    assert found(done_until_ms=NOW_MS + 10) == [2], "the upper bound is exclusive"
    assert found(done_from_ms=1, states=frozenset({"dead"})) == [1]
    assert found(done_from_ms=1, states=frozenset({"scheduled", "leased", "ready"})) == []
