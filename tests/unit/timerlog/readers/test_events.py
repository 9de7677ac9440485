"""Events of a log: what each operation leaves, against a plain reading record by record, and cut at any position."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, pump
from tests.support.native.frames import send
from tests.support.stores.queried import send_all
from tests.support.stores.reader import Reader
from tickwheel_native import crc32c
from timerlog.commitlog.view import LogView
from timerlog.errors import DamagedLog
from timerlog.layout import RECORD_HEAD_BYTES, RECORD_HEAD_STRUCT, RecordType
from timerlog.readers.describe import describe_directory
from timerlog.readers.events import EVENTS, Events, event_types, position_after_rows, read_events
from timerlog.store import Store

ALL = frozenset(EVENTS)
Row = tuple[Any, ...]


def rows_of(events: Events) -> list[Row]:
    """(position, place, event, time, next, topic, group, id, seq, epoch)."""
    columns = (
        events.positions, events.places, events.kinds, events.times_ms, events.next_ms, events.topic_ids,
        events.group_ids, events.ids, events.seqs, events.epochs,
    )  # fmt: skip
    return [
        (position, place, EVENTS[kind], *rest)
        for position, place, kind, *rest in zip(*(column.tolist() for column in columns), strict=True)
    ]


def plainly(data: bytes, position: int, end: int) -> Iterator[Row]:
    """The same rows, read one record after the other."""
    while end - position >= 16:
        _, size, kind, _, _, aux = struct.unpack_from("<IIBBHI", data, position)
        if size == 0:
            return
        payload = data[position + 16 : position + size]
        for place, row in enumerate(_record(kind, aux, payload)):
            yield (position, place, EVENTS[kind], *row)
        if kind == 12:
            yield from plainly(data, position + 32, position + size)
        position += (size + 7) // 8 * 8


def _record(kind: int, aux: int, payload: bytes) -> Iterator[Row]:
    if kind == 1:
        message_id, due, created = struct.unpack_from("<Qqq", payload)
        yield created, due, aux, 0, message_id, -1, 0
    elif kind == 2:
        tick, seq, _ = struct.unpack_from("<qQQ", payload)
        for number, (value, _, _) in enumerate(_values(payload[24:])):
            yield tick, -1, aux, 0, value, seq + number, 0
    elif kind in (6, 8, 19, 26):
        for (message_id,) in struct.iter_unpack("<Q", payload):
            yield -1, -1, 0, 0, message_id, -1, 0
    elif kind == 7:
        for value, _, time in _values(payload):
            yield -1, time, 0, 0, value, -1, 0
    elif kind == 22:
        (time,) = struct.unpack_from("<q", payload)
        for value, epoch, _ in _values(payload[8:]):
            yield time, -1, 0, aux, 0, value, epoch
    elif kind in (3, 4, 5, 9, 15, 18):
        given = struct.unpack_from("<q", payload, len(payload) - 8)[0] if kind == 3 else -1
        count = struct.unpack_from("<Q", payload)[0] if kind == 9 else (len(payload) - 8 * (kind == 15)) // 24
        start = 8 if kind in (9, 15) else 0
        for value, epoch, time in _values(payload[start : start + 24 * count]):
            yield (
                (time if kind in (4, 18) else given),
                (-1 if kind in (4, 18) else time),
                0,
                aux,
                0,
                value,
                epoch,
            )


def _values(payload: bytes) -> Iterator[tuple[int, int, int]]:
    for first, count, epoch, time in struct.iter_unpack("<QIIq", payload):
        for value in range(first, first + count):
            yield value, epoch, time


class Log:
    """The committed part of a store's log."""

    def __init__(self, store: Store) -> None:
        directory = store.tables.directory
        assert directory is not None
        self.found = describe_directory(directory, NOW_MS)
        self.view = LogView(directory / "commitlog", self.found.description.segment_bytes)
        self.start, self.end = self.found.first_position, self.found.end_position
        self.data = (directory / "commitlog" / f"{0:020d}.log").read_bytes()

    def rows(self, start: int | None = None, end: int | None = None, **options: Any) -> list[Row]:
        parts = read_events(self.view, start or self.start, end or self.end, **options)
        return [row for part in parts for row in rows_of(part)]


@pytest.fixture
def busy(store: Store) -> Store:
    """A store with every kind of event but damage."""
    topic_id = store.topics.open("orders", NOW_MS)
    reader, other = Reader(store, topic_id), Reader(store, topic_id, "audit")
    none = [b""] * 40
    send_all(
        store=store,
        topic_id=topic_id,
        bodies=[b"x"] * 40,
        times_ms=[NOW_MS + n // 10 for n in range(40)],
        keys=none,
        headers=none,
        now_ms=NOW_MS,
    )
    assert store.change.cancel([40], NOW_MS) == ["cancelled"]
    store.change.reschedule([39], NOW_MS + 50_000, NOW_MS)
    pump(store, NOW_MS + 10)
    receipts = reader.fetch(now_ms=NOW_MS + 11)
    assert len(receipts) == 38
    other.fetch(5, now_ms=NOW_MS + 12)
    reader.ack(*receipts[:20], *receipts[30:])
    reader.nack(*receipts[20:22], delay_ms=500, error="card refused", now_ms=NOW_MS + 20)
    reader.nack(receipts[22], delay_ms=0, now_ms=NOW_MS + 21)
    reader.extend(receipts[23], until_ms=NOW_MS + 9_999)
    store.change.redeliver([1, 2], "g", NOW_MS + 700, NOW_MS + 30, acked=True)
    store.topics.set("orders", {"max_attempts": 1}, (), None, NOW_MS)
    reader.nack(receipts[24], delay_ms=None, error="last straw", now_ms=NOW_MS + 40)
    assert store.change.expire(np.array([receipts[26][0]], np.uint64), NOW_MS + 60_000) == 1
    store.settle.return_unseen(reader.group, reader.holder, [receipts[25][0]], [receipts[25][1]], NOW_MS + 50)
    other.store.settle.release_holder(other.holder, NOW_MS + 60)
    assert store.change.drop(np.array([3], np.uint64), NOW_MS + 60_000).dropped == 1
    store.sync()
    return store


@pytest.fixture
def log(busy: Store) -> Iterator[Log]:
    opened = Log(busy)
    yield opened
    opened.view.close()


def test_every_kind_of_event_is_as_the_bytes_say(log: Log) -> None:
    rows = log.rows()
    assert rows == list(plainly(log.data, log.start, log.end))
    assert {row[2] for row in rows} == set(EVENTS.values()) - {"damaged"}
    assert [row[:2] for row in rows] == sorted({row[:2] for row in rows})
    counts = {name: sum(row[2] == name for row in rows) for name in EVENTS.values()}
    assert counts["sent"] == 40 + 6  # and the dead letters: one nacked, five whose only lease was given back
    assert (counts["delivered"], counts["acked"], counts["due"], counts["dead"]) == (43, 28, 38, 6)


def test_what_the_columns_say(log: Log) -> None:
    events = next(read_events(log.view, log.start, log.end))
    rows = rows_of(events)
    delivered = [row for row in rows if row[2] == "delivered"]
    assert {row[3] for row in delivered} == {NOW_MS + 11, NOW_MS + 12}
    assert {row[4] for row in delivered} == {NOW_MS + 1_011, NOW_MS + 1_012}  # the lease's end
    assert {row[3] for row in rows if row[2] == "due"} == {NOW_MS + 10}
    assert [row[7] for row in rows if row[2] == "cancelled"] == [40]
    assert [row[3] for row in rows if row[2] == "returned"] == [NOW_MS + 50]
    assert [row[4] for row in rows if row[2] == "rescheduled"] == [NOW_MS + 50_000]
    assert sorted(events.errors.values()) == ["card refused", "last straw"]
    assert {rows[i][2] for i in np.flatnonzero(np.isin(events.positions, list(events.errors)))} == {"nacked"}


@pytest.mark.parametrize("chunk_rows", [1, 7, 100_000])
def test_parts_make_the_whole(log: Log, chunk_rows: int) -> None:
    whole = log.rows()
    assert log.rows(chunk_rows=chunk_rows) == whole
    boundaries = [log.start, *sorted({row[0] for row in whole if _is_top(log, row[0])}), log.end]
    middle = random.Random(chunk_rows).choice(boundaries)
    assert log.rows(end=middle) + log.rows(start=middle) == whole


def _is_top(log: Log, position: int) -> bool:
    at = log.start
    while at < position:
        at += (struct.unpack_from("<I", log.data, at + 4)[0] + 7) // 8 * 8
    return at == position


def test_only_some_events(log: Log) -> None:
    wanted = event_types(["acked", "sent"])
    assert log.rows(wanted=wanted) == [row for row in log.rows() if row[2] in ("acked", "sent")]
    with pytest.raises(KeyError):
        event_types(["acknowledged"])


@pytest.mark.parametrize("limit", [1, 3, 41, 60, 10_000])
@pytest.mark.parametrize("names", [list(EVENTS.values()), ["acked", "sent"], ["dead"]])
def test_batches_of_a_limited_size(log: Log, limit: int, names: list[str]) -> None:
    wanted = event_types(names)
    at, batches = log.start, []
    while at < log.end:
        stop = position_after_rows(log.view, at, log.end, wanted, limit)
        assert at < stop <= log.end
        batches.append(log.rows(at, stop, wanted=wanted))
        at = stop
    assert [row for batch in batches for row in batch] == log.rows(wanted=wanted)
    for batch in batches:
        tops = {row[0] for row in batch if _is_top(log, row[0])}
        assert len(batch) <= limit or len(tops) <= 1


def test_damage_is_not_passed_over(busy: Store, log: Log) -> None:
    directory = busy.tables.directory
    assert directory is not None
    rows = log.rows()
    place = next(row[0] for row in rows if row[2] == "acked")
    with (directory / "commitlog" / f"{0:020d}.log").open("r+b") as file:
        file.seek(place + 20)
        file.write(b"\xff")
    assert log.rows(end=place) == [row for row in rows if row[0] < place]
    with pytest.raises(DamagedLog, match=str(place)):
        log.rows()


def test_a_part_that_was_purged_meanwhile(log: Log) -> None:
    segment_bytes = log.found.description.segment_bytes
    with pytest.raises(DamagedLog, match="cannot be read"):
        log.rows(start=segment_bytes, end=segment_bytes + 4096)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RecordType.NACK, struct.pack("<qQ", 1 << 40, 1 << 40)),
        (RecordType.NACK, struct.pack("<qq", 1, -1)),
        (RecordType.PUT, struct.pack("<qQQ", 1, 1, 1 << 50)),
        (RecordType.REDELIVER, b""),
    ],
)
def test_a_position_inside_of_a_message_is_no_position(
    store: Store, kind: RecordType, payload: bytes
) -> None:
    """Whoever may send and query may write a record into a body, and name its position."""
    tail = RECORD_HEAD_STRUCT.pack(0, RECORD_HEAD_BYTES + len(payload), kind, 0, 1, 0)[4:] + payload
    forged = struct.pack("<I", crc32c(tail)) + tail
    topic = store.topics.open("orders", NOW_MS)
    store.produce.ingest(send(topic, [bytes(shift) + forged for shift in range(8)]), NOW_MS)
    store.sync()
    opened = Log(store)
    places = [at for at in range(0, opened.end, 8) if opened.data[at : at + len(forged)] == forged]
    assert places
    for place in places:
        with pytest.raises(DamagedLog):
            opened.rows(place, place + len(forged))
    opened.view.close()
