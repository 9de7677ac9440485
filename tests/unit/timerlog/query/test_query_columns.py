"""What a query sees, against the store's own tables read row by row, over random histories."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.stores.damage import flip
from tests.support.stores.queried import ask, damaged_of, expected_rows, job, send_all
from timerlog.layout import DeliveryState, MessageState
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store

COLUMNS = (
    'id, topic, "group", priority, state, epoch, attempts, time_next, time_acked, time_created, deliver_at'
)


class History:
    """A store that lives through random sends, deliveries, acks, cancels and time."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random, self.now_ms = store, random.Random(seed), NOW_MS
        self.topics = [store.topics.open(name, NOW_MS) for name in ("orders", "lone", "a.b-c")]
        self.readers = [
            (group, store.holders.acquire(group))
            for group in (
                store.groups.open(self.topics[0], "billing", NOW_MS),
                store.groups.open(self.topics[0], "audit", NOW_MS),
                store.groups.open(self.topics[2], "audit", NOW_MS),
            )
        ]
        self.sent: dict[int, tuple[bytes, bytes, bytes]] = {}

    def live(self, turns: int) -> None:
        steps = (self.send, self.deliver, self.deliver, self.cancel, self.reschedule, self.wait)
        for _ in range(turns):
            self.random.choice(steps)()
        pump(self.store, self.now_ms)

    def send(self) -> None:
        count, first = self.random.randrange(1, 30), self.store.tables.next_id
        numbers = range(first, first + count)
        keys = [b"key-%d" % n if n % 3 else b"" for n in numbers]
        headers = [msgspec.msgpack.encode({"n": n % 4}) if n % 2 else b"" for n in numbers]
        bodies = [self.random.randbytes(self.random.randrange(40)) for _ in numbers]
        times_ms = [self.now_ms + self.random.randrange(3_000) for _ in numbers]
        send_all(
            store=self.store,
            topic_id=self.random.choice(self.topics),
            bodies=bodies,
            times_ms=times_ms,
            keys=keys,
            headers=headers,
            now_ms=self.now_ms,
        )
        assert self.store.tables.next_id == first + count
        self.sent |= dict(zip(numbers, zip(keys, headers, bodies, strict=True), strict=True))

    def deliver(self) -> None:
        pump(self.store, self.now_ms)
        group, holder = self.random.choice(self.readers)
        frame = self.store.deliver.fetch(group, holder, 7, self.random.randrange(1, 20), MIB, self.now_ms)
        if not frame:
            return
        receipts = [pair for pair in zip(*delivered(frame), strict=True) if self.random.random() < 0.6]
        if receipts:
            ids, epochs = zip(*receipts, strict=True)
            self.store.deliver.ack(ack_payload(group, ids, epochs), 3, self.now_ms)

    def cancel(self) -> None:
        if self.sent:
            self.store.change.cancel(self.random.sample(sorted(self.sent), 1), self.now_ms)

    def reschedule(self) -> None:
        if self.sent:
            later_ms = self.now_ms + self.random.randrange(5_000)
            self.store.change.reschedule(self.random.sample(sorted(self.sent), 1), later_ms, self.now_ms)

    def wait(self) -> None:
        self.now_ms += self.random.randrange(1_500)


@pytest.mark.promise("V78")
@pytest.mark.parametrize("seed", range(6))
def test_messages_are_what_the_tables_say(store: Store, seed: int) -> None:
    history = History(store, seed)
    history.live(60)
    order = 'ORDER BY id, "group" NULLS FIRST'
    expected = sorted(expected_rows(store, history.now_ms), key=lambda row: (row["id"], row["group"] or ""))
    assert len({row["state"] for row in expected}) >= 4
    assert ask(store, f"SELECT {COLUMNS} FROM messages {order}", history.now_ms) == expected
    of_orders = [row for row in expected if row["topic"] == "orders"]
    assert ask(store, f"SELECT {COLUMNS} FROM orders {order}", history.now_ms) == of_orders
    deep = [row for row in of_orders if row["epoch"] > 1 and row["state"] in ("leased", "waiting")]
    where = "epoch > 1 AND state IN ('leased', 'waiting')"
    assert ask(store, f"SELECT {COLUMNS} FROM orders WHERE {where} {order}", history.now_ms) == deep


def test_key_headers_and_body_come_from_the_log(store: Store) -> None:
    history = History(store, 99)
    history.live(90)
    sql = "SELECT DISTINCT id, key, headers, body, body_bytes FROM messages ORDER BY id"
    expected = [
        {
            "id": number,
            "key": key.decode() or None,
            "headers": msgspec.json.encode(msgspec.msgpack.decode(headers)).decode() if headers else None,
            "body": body,
            "body_bytes": len(body),
        }
        for number, (key, headers, body) in sorted(history.sent.items())
    ]
    assert len(expected) > 50
    assert ask(store, sql, history.now_ms) == expected
    sql = "SELECT id FROM messages WHERE headers->>'n' = '3' GROUP BY id ORDER BY id"
    assert [row["id"] for row in ask(store, sql, history.now_ms)] == [
        number for number, (_, headers, _) in sorted(history.sent.items()) if headers and number % 4 == 3
    ]


@pytest.mark.parametrize(
    ("message", "delivery", "time_ms", "state"),
    [
        (MessageState.READY, DeliveryState.WAITING, NOW_MS + 5, "waiting"),
        (MessageState.READY, DeliveryState.LEASED, NOW_MS + 5, "leased"),
        (MessageState.READY, DeliveryState.LEASED, NOW_MS, "waiting"),
        (MessageState.READY, DeliveryState.DEAD, NOW_MS - 5, "dead"),
        (MessageState.EXPIRED, DeliveryState.UNTOUCHED, 0, "expired"),
        (MessageState.EXPIRED, DeliveryState.ACKED, NOW_MS - 5, "acked"),
        (MessageState.DAMAGED, DeliveryState.UNTOUCHED, 0, "damaged"),
        (MessageState.NONE, DeliveryState.UNTOUCHED, 0, None),
    ],
)
def test_every_state(
    store: Store, message: MessageState, delivery: DeliveryState, time_ms: int, state: str | None
) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    store.deliver.fetch(group, store.holders.acquire(group), 7, 1, MIB, NOW_MS)
    store.tables.rows[1]["state"] = message
    row = store.tables.groups[group].deliveries.items[0:1]
    row["state"], row["time_ms"], row["epoch"], row["base_epoch"] = delivery, time_ms, 7, 4
    found = ask(store, "SELECT state, time_next, time_acked, epoch, attempts FROM t", NOW_MS)
    if state is None:
        assert found == []
        return
    assert found == [
        {
            "state": state,
            "time_next": time_ms if state in ("leased", "waiting") else None,
            "time_acked": time_ms if state == "acked" else None,
            "epoch": 7,
            "attempts": 3,
        }
    ]


def test_a_record_that_is_gone_has_no_body(store: Store, tmp_path: Path) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"first", b"second"], keys=[b"k1", b"k2"]), NOW_MS)
    store.tables.rows[1]["position"] += 8  # nothing begins there
    found = ask(store, "SELECT id, key, headers, body, body_bytes FROM t ORDER BY id", NOW_MS)
    assert found == [
        {"id": 1, "key": None, "headers": None, "body": None, "body_bytes": None},
        {"id": 2, "key": "k2", "headers": None, "body": b"second", "body_bytes": 6},
    ]
    for segment in (tmp_path / "data" / "commitlog").glob("*.log"):
        segment.unlink()
    assert ask(store, "SELECT count(*) n, count(body) b FROM t", NOW_MS) == [{"n": 2, "b": 0}]


def test_a_group_that_starts_later_does_not_have_what_was_before(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"old"]), NOW_MS)
    pump(store, NOW_MS)
    group = store.groups.open(topic, "late", NOW_MS)
    record = store.tables.groups[group].record
    store.tables.groups[group].record = msgspec.structs.replace(record, start_seq=1)
    store.produce.ingest(send(topic, [b"new"]), NOW_MS)
    pump(store, NOW_MS)
    assert ask(store, 'SELECT id, "group" FROM t ORDER BY id', NOW_MS) == [
        {"id": 1, "group": None},
        {"id": 2, "group": "late"},
    ]


def test_a_torn_arrival_counts_as_not_delivered(store: Store) -> None:
    """A row gets its new state before its number in the topic: whose number is another's must not show its lease."""
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"a", b"b"]), NOW_MS)
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    store.deliver.fetch(group, store.holders.acquire(group), 7, 1, MIB, NOW_MS)
    store.tables.rows[2]["topic_seq"] = 0
    assert ask(store, "SELECT id, state FROM t ORDER BY id", NOW_MS) == [
        {"id": 1, "state": "leased"},
        {"id": 2, "state": "ready"},
    ]


def test_bytes_that_are_no_text_do_not_break_a_query(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    hostile = [b"\xc1\xff", b"\x81\x01", b"\x81\xa1k\xcb\x7f\xf8\0\0\0\0\0\0"]  # no msgpack, cut off, NaN
    send_all(
        store=store,
        topic_id=topic,
        bodies=[b"\xff"] * 3,
        times_ms=[NOW_MS] * 3,
        keys=[b"\xff\xfe", b"b", b"c"],
        headers=hostile,
        now_ms=NOW_MS,
    )
    assert ask(store, "SELECT key, headers, body FROM t ORDER BY id", NOW_MS) == [
        {"key": "\ufffd\ufffd", "headers": None, "body": b"\xff"},
        {"key": "b", "headers": None, "body": b"\xff"},
        {"key": "c", "headers": '{"k":null}', "body": b"\xff"},
    ]


def test_chunks_are_bounded_and_complete(store: Store) -> None:
    history = History(store, 5)
    history.live(40)
    snapshot = Snapshot(describe(store.log, store.tables, history.now_ms))
    try:
        chunks = list(snapshot.chunks(None, chunk_rows=7))
        assert max(len(chunk.ids) for chunk in chunks) <= 7
        found = [
            (number, group) for chunk in chunks for number, group in zip(chunk.ids, chunk.groups, strict=True)
        ]
        assert len(found) == len(set(found)) == len(expected_rows(store, history.now_ms))
    finally:
        snapshot.close()


def test_it_reads_while_the_store_goes_on(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x" * 100] * 100), NOW_MS)
    pump(store, NOW_MS)
    snapshot = Snapshot(describe(store.log, store.tables, NOW_MS))
    try:
        for _ in range(50):  # the tables grow beyond what is mapped, and so does the log
            store.produce.ingest(send(topic, [b"y" * 1_000] * 60), NOW_MS)
        group = store.groups.open(topic, "g", NOW_MS)
        pump(store, NOW_MS)
        store.deliver.fetch(group, store.holders.acquire(group), 7, 100, MIB, NOW_MS)
        assert sum(len(chunk.ids) for chunk in snapshot.chunks(topic)) == 100
        last = np.arange(91, 101)
        records = snapshot.log.records(
            snapshot.messages.take(last, "topic_seq").astype("i8") + 1, snapshot.messages.take(last)
        )
        assert records.is_whole.all()
    finally:
        snapshot.close()
        store.close(clean=False)


def test_bodies_in_several_segments_of_which_one_is_purged(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    for _ in range(250):
        store.produce.ingest(send(topic, [b"z" * 16_000] * 3), NOW_MS)
    segments = store.log.segments
    assert len(segments) == 3
    whole = ask(
        store, "SELECT count(body) AS n, count(DISTINCT body) AS d, sum(body_bytes) AS s FROM t", NOW_MS
    )
    assert whole == [{"n": 750, "d": 1, "s": 750 * 16_000}]
    (Path(store.tables.directory or "") / "commitlog" / f"{segments[1]:020d}.log").unlink()
    positions = store.tables.rows["position"][1 : store.tables.next_id]
    kept = int(((positions < segments[1]) | (positions >= segments[2])).sum())
    assert 0 < kept < 750
    assert ask(store, "SELECT count(*) AS n, count(body) AS b FROM t", NOW_MS) == [{"n": 750, "b": kept}]


@pytest.mark.parametrize("place", [4, 17, 50], ids=["length", "id", "body"])
def test_what_is_damaged_is_null_and_told(store: Store, place: int) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x" * 100] * 10, times_ms=[NOW_MS + 60_000] * 10), NOW_MS)
    store.log.flush()
    for message in (3, 7):
        flip(
            store.disk.directory, int(store.tables.rows["position"][message]) + place, store.log.segment_bytes
        )
    store.change.cancel([7], NOW_MS)
    bodies = "SELECT id, body FROM t ORDER BY id"
    rows = ask(store, bodies, NOW_MS)
    assert [row["id"] for row in rows if row["body"] is None] == [3, 7]
    assert damaged_of(job(store, bodies, NOW_MS)).tolist() == [3], "what is cancelled is not needed"
    assert damaged_of(job(store, "SELECT nothing FROM t", NOW_MS)).tolist() == []
    assert damaged_of(job(store, "SELECT count(*) FROM t", NOW_MS)).tolist() == [], "the log was not read"
    store.select.heal(np.array([0, 3, 1 << 40], np.uint64))  # where nothing can be had again
