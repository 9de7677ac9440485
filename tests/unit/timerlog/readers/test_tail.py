"""What has happened, in pieces: together they are what the whole log says, wherever one begins again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.damage import flip
from tests.support.stores.purging import LATER_MS, mixed
from tests.support.stores.reader import Reader
from timerlog.readers.events import EVENTS, read_events
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.readers.tail import LoggedEvent, Place, Tail, TailReader, resumed, told_in
from timerlog.store import Store

FIRST = Place(0, 0)
MANY = 1 << 30


def read(
    store: Store, place: Place, limit: int = 1_000_000, max_bytes: int = MANY, *, is_late: bool = False
) -> Tail:
    with closing(Snapshot(describe(store.log, store.tables, NOW_MS))) as snapshot:
        reader = TailReader(snapshot, place, store.log.durable_position, limit, max_bytes)
        return reader.run(lambda: is_late)


def pieces(store: Store, limit: int, max_bytes: int = MANY, *, is_late: bool = False) -> list[LoggedEvent]:
    """All there is, a piece at a time."""
    found: list[LoggedEvent] = []
    place, more = FIRST, True
    while more:
        tail = read(store, place, limit, max_bytes, is_late=is_late)
        assert len(tail.events) <= limit
        assert tail.next > place
        assert not tail.has_gap
        found += tail.events
        place, more = tail.next, tail.more
    assert place == (store.log.durable_position, 0)
    return found


@pytest.fixture
def busy(store: Store) -> Store:
    """Transactions, records of many messages, and dead letters."""
    topic_id = store.topics.open("orders", NOW_MS)
    reader, audit = Reader(store, topic_id), Reader(store, topic_id, "audit")
    store.produce.ingest(send(topic_id, [b"x"] * 30, times_ms=[NOW_MS] * 28 + [NOW_MS + 50_000] * 2), NOW_MS)
    store.change.cancel([30], NOW_MS)
    store.change.reschedule([29], NOW_MS + 60_000, NOW_MS)
    pump(store, NOW_MS + 10)
    receipts = reader.fetch(now_ms=NOW_MS + 11)
    audit.fetch(5, now_ms=NOW_MS + 12)
    reader.ack(*receipts[:10])
    reader.nack(*receipts[10:12], delay_ms=500, error="card refused", now_ms=NOW_MS + 20)
    reader.nack(*receipts[12:17], give_up=True, error="no", now_ms=NOW_MS + 20)
    store.sync()
    return store


def test_a_piece_after_the_other_is_all_of_it(busy: Store) -> None:
    whole = read(busy, FIRST).events
    with closing(Snapshot(describe(busy.log, busy.tables, NOW_MS))) as snapshot:
        expected = [
            (EVENTS[kind], position, epoch)
            for events in read_events(snapshot.log, 64, busy.log.durable_position)
            for kind, position, epoch in zip(
                events.kinds.tolist(), events.positions.tolist(), events.epochs.tolist(), strict=True
            )
        ]
    assert [(one.event, one.position, one.epoch) for one in whole] == expected
    assert {"sent", "due", "delivered", "acked", "nacked", "dead", "cancelled", "rescheduled"} <= {
        one.event for one in whole
    }
    for limit in (1, 3, 7, 29):
        assert pieces(busy, limit) == whole
    assert pieces(busy, MANY, max_bytes=600) == whole, "one at least"
    assert pieces(busy, MANY, is_late=True) == whole


def test_who_and_where(busy: Store) -> None:
    by_event: dict[str, list[LoggedEvent]] = {}
    for one in read(busy, FIRST).events:
        by_event.setdefault(one.event, []).append(one)
    assert [one.id for one in by_event["sent"]] == list(range(1, 36))
    assert {one.topic for one in by_event["sent"]} == {"orders", "orders.dead"}
    assert [(one.id, one.topic, one.group) for one in by_event["cancelled"]] == [(30, "orders", "")]
    assert {(one.topic, one.group) for one in by_event["delivered"]} == {("orders", "g"), ("orders", "audit")}
    assert [one.id for one in by_event["acked"]] == list(range(1, 11))
    assert {one.error for one in by_event["nacked"]} >= {"card refused"}
    assert [(one.id, one.next_ms) for one in by_event["rescheduled"]] == [(29, NOW_MS + 60_000)]


def test_what_happens_later_is_told_from_there(busy: Store) -> None:
    end = read(busy, FIRST).next
    assert read(busy, end) == Tail(events=[], next=end, more=False, has_gap=False)
    busy.change.cancel([29], NOW_MS)
    busy.sync()
    assert [(one.event, one.id) for one in read(busy, end).events] == [("cancelled", 29)]


def test_several_segments_and_what_was_purged(tmp_path: Path) -> None:
    store = mixed(tmp_path / "data")
    whole = pieces(store, 3_000)
    assert len(store.log.segments) > 1
    begun = read(store, FIRST, limit=5).next
    store.purge(LATER_MS)
    store.sync()
    later = read(store, begun)
    assert later.has_gap
    assert not read(store, FIRST).has_gap, "from the beginning that there is"
    assert later.events == read(store, FIRST).events
    assert {(one.event, one.position) for one in later.events[:100]} <= {
        (one.event, one.position) for one in whole
    }
    store.close()


def test_a_part_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic_id = store.topics.open("orders", NOW_MS)
    for _ in range(3):
        store.produce.ingest(send(topic_id, [b"x" * 100], times_ms=[NOW_MS + 60_000]), NOW_MS)
        store.sync()
    flip(tmp_path / "data", int(store.tables.rows["position"][2]) + 50, store.log.segment_bytes)
    found = read(store, FIRST)
    assert ([one.id for one in found.events], found.has_gap, found.more) == ([1], True, False)
    store.close()


@pytest.mark.parametrize(
    ("place", "timeline", "begins", "expected"),
    [
        (Place(800, 3), 0, 0, (Place(800, 3), False)),
        (Place(800, told_in(7, 3)), 7, 640, (Place(800, 3), False)),
        (Place(800, 3), 7, 640, (Place(640, 0), True)),
        (Place(640, 3), 7, 640, (Place(640, 3), False)),
        (Place(8_000, told_in(9, 3)), 7, 640, (Place(640, 0), True)),
        (Place(800, told_in(9, 3)), 0, 0, (Place(0, 0), True)),
        (Place(0, 0), 7, 640, (Place(0, 0), False)),
    ],
)
def test_places_of_another_timeline(
    place: Place, timeline: int, begins: int, expected: tuple[Place, bool]
) -> None:
    assert resumed(place, timeline, begins) == expected
    assert told_in(timeline, (1 << 32) - 1) < 1 << 53
