"""The last deliveries to a group, and what became of each, against what was done."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from timerlog.commitlog.records import Outbound
from timerlog.readers.attempts import (
    MOST_BYTES,
    Attempt,
    AttemptReader,
    Attempts,
    Before,
    Mark,
    pack_attempts,
)
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store


def read(
    store: Store,
    *groups: int,
    limit: int = 1_000_000,
    before: Before | None = None,
    mark: Mark | None = None,
    now_ms: int = NOW_MS,
    is_late: bool = False,
    most_bytes: int = MOST_BYTES,
) -> Attempts:
    store.sync()
    with closing(Snapshot(describe(store.log, store.tables, now_ms))) as snapshot:
        end = store.log.durable_position
        reader = AttemptReader(
            snapshot=snapshot,
            groups=list(groups),
            mark=mark,
            before=before,
            end=end,
            limit=limit,
            most_bytes=most_bytes,
        )
        return reader.run(lambda: is_late)


def told(found: list[Attempt]) -> list[tuple[int, int | None, str, str]]:
    return [(one.id, one.number, one.outcome, one.error) for one in found]


def test_each_outcome_and_when(store: Store) -> None:
    topic = store.topics.create("t", {"max_attempts": 3, "ack_wait_ms": 10_000}, 0, NOW_MS).topic_id
    reader = Reader(store, topic)
    store.produce.ingest(send(topic, [b"x"] * 6, times_ms=[NOW_MS + 5] * 6), NOW_MS)
    pump(store, NOW_MS + 7)
    receipts = reader.fetch(now_ms=NOW_MS + 9)
    reader.ack(receipts[0], now_ms=NOW_MS + 11)
    reader.nack(receipts[1], delay_ms=500, error="HTTP 503", now_ms=NOW_MS + 20)
    reader.nack(receipts[2], give_up=True, error="HTTP 400", now_ms=NOW_MS + 21)
    store.settle.give_back(reader.group, [receipts[3][0]], [receipts[3][1]], NOW_MS + 22)
    store.settle.extend(reader.group, [receipts[4][0]], [receipts[4][1]], NOW_MS + 90_000)
    found = read(store, reader.group, now_ms=NOW_MS + 30)
    assert (found.next, found.missing) == (None, [])
    by_id = {one.id: one for one in found.attempts}
    assert [by_id[n].outcome for n in range(1, 7)] == [
        "acked",
        "nacked",
        "dead",
        "returned",
        "leased",
        "leased",
    ]
    assert [by_id[n].number for n in range(1, 7)] == [1, 1, 1, None, 1, 1]
    assert [by_id[n].error for n in (1, 2, 3)] == ["", "HTTP 503", "HTTP 400"]
    assert {one.time_ms for one in found.attempts} == {NOW_MS + 9}
    assert by_id[1].due_ms == NOW_MS + 5
    assert by_id[1].settled_ms == NOW_MS + 11
    assert (by_id[2].settled_ms, by_id[2].next_ms) == (None, NOW_MS + 520)
    assert by_id[3].settled_ms == NOW_MS + 21
    assert (by_id[5].next_ms, by_id[6].next_ms) == (NOW_MS + 90_000, NOW_MS + 10_009)

    pump(store, NOW_MS + 30_000)
    again = reader.fetch(now_ms=NOW_MS + 30_001)
    assert sorted(receipt[0] for receipt in again) == [2, 4, 6]
    later = read(store, reader.group, now_ms=NOW_MS + 30_002)
    newest, oldest = later.attempts[:3], later.attempts[3:]
    assert {(one.id, one.number) for one in newest} == {(2, 2), (4, 1), (6, 2)}
    assert {one.id: one.due_ms for one in newest} == {2: NOW_MS + 520, 4: NOW_MS + 5, 6: None}
    assert {one.id: one.outcome for one in oldest}[6] == "lease_ended"
    assert {one.id: one.number for one in oldest} == {1: 1, 2: 1, 3: 1, 4: None, 5: 1, 6: 1}


def live(store: Store, seed: int, turns: int) -> tuple[Reader, Reader, dict[tuple[int, int], str]]:
    """A group of a topic, another one, and what became of each delivery to the first."""
    rng, now_ms, fates = random.Random(seed), NOW_MS, dict[tuple[int, int], str]()
    topic = store.topics.create("t", {"ack_wait_ms": 60_000}, 0, NOW_MS).topic_id
    reader, other = Reader(store, topic), Reader(store, topic, "other")
    for _ in range(turns):
        now_ms += rng.randrange(1_000)
        store.produce.ingest(send(topic, [rng.randbytes(8_000)] * rng.randrange(1, 6)), now_ms)
        pump(store, now_ms)
        other.ack(*other.fetch(rng.randrange(1, 9), now_ms=now_ms), now_ms=now_ms)
        for receipt in reader.fetch(rng.randrange(1, 9), now_ms=now_ms):
            kind = rng.choice(("acked", "nacked", "dead", "returned", "leased"))
            fates[receipt] = kind
            if kind == "acked":
                reader.ack(receipt, now_ms=now_ms)
            elif kind == "returned":
                store.settle.give_back(reader.group, [receipt[0]], [receipt[1]], now_ms)
            elif kind != "leased":
                (result,) = reader.nack(
                    receipt, delay_ms=0, error=f"no {receipt}", give_up=kind == "dead", now_ms=now_ms
                )
                fates[receipt] = result
    return reader, other, fates


@pytest.mark.parametrize("seed", range(2))
def test_pages_over_segments_are_all_of_it(store: Store, seed: int) -> None:
    reader, other, fates = live(store, seed, 250)
    assert len(store.log.segments) > 1
    whole = read(store, reader.group).attempts
    assert {(one.id, one.epoch): one.outcome for one in whole} == fates
    assert [(one.position, one.place) for one in whole] == sorted(
        ((one.position, one.place) for one in whole), reverse=True
    )
    assert all(one.outcome == "acked" for one in read(store, other.group).attempts)
    numbers: dict[int, int] = {}
    for one in reversed(whole):
        if one.outcome == "returned":
            assert one.number is None
        else:
            numbers[one.id] = numbers.get(one.id, 0) + 1
            assert one.number == numbers[one.id]
    for limit in (1, 7, 100):
        pages: list[Attempt] = []
        before: Before | None = None
        for _ in range(len(whole) // limit + 2):
            page = read(store, reader.group, limit=limit, before=before)
            assert len(page.attempts) <= limit
            pages += page.attempts
            before = page.next
            if before is None:
                break
            if len(pages) > 12:
                assert told(pages) == told(whole[: len(pages)])
                break
        else:
            raise AssertionError("it has no end")
        assert told(pages) == told(whole[: len(pages)])
        assert [one.due_ms for one in pages if one.number == 1] == [
            one.due_ms for one in whole[: len(pages)] if one.number == 1
        ]


def test_without_time_it_goes_on_at_a_segment(store: Store) -> None:
    reader, _, fates = live(store, 7, 250)
    found: list[Attempt] = []
    page = read(store, reader.group, is_late=True)
    assert page.missing == ["time"]
    for _ in store.log.segments:
        found += page.attempts
        if page.next is None:
            break
        page = read(store, reader.group, is_late=True, before=page.next)
    assert page.next is None
    assert {(one.id, one.epoch) for one in found} == set(fates)
    assert found[-1].number is None, "what comes later was not read"


def test_so_much_of_the_log_is_read_and_it_goes_on_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for an endpoint that was sent nothing: what it costs does not grow with the log."""
    reader, _, fates = live(store, 7, 250)
    segments, size = len(store.log.segments), store.settings.segment_bytes
    assert segments > 1
    scanned: list[tuple[int, int]] = []
    scan = AttemptReader._mine

    def noted(one: AttemptReader, start: int, end: int, types: frozenset[int]) -> Any:
        scanned.append((start, end))
        return scan(one, start, end, types)

    monkeypatch.setattr(AttemptReader, "_mine", noted)
    idle = Reader(store, store.tables.groups[reader.group].record.topic_id, "idle")
    for group, wanted in ((reader.group, set(fates)), (idle.group, set())):
        found: list[Attempt] = []
        before: Before | None = None
        for pages in range(1, segments + 1):  # noqa: B007
            scanned.clear()
            page = read(store, group, before=before, most_bytes=1)
            assert sum(end - start for start, end in scanned) <= 2 * size, "back, and forth"
            found, before = found + page.attempts, page.next
            if before is None:
                break
            assert page.missing == ["size"]
        assert before is None
        assert pages == segments
        assert {(one.id, one.epoch) for one in found} == wanted
    assert read(store, reader.group, most_bytes=1 << 40).missing == []


def test_a_number_that_another_group_had_is_another_group(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "own", msgspec.structs.replace(SMALL, max_groups=1), NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    first = Reader(store, topic, "first")
    store.produce.ingest(send(topic, [b"x"] * 3), NOW_MS)
    pump(store, NOW_MS)
    first.ack(*first.fetch(now_ms=NOW_MS))
    store.holders.drop(first.holder)
    store.groups.delete("t", "first")
    again = Reader(store, topic, "again")
    assert again.group == first.group
    assert read(store, again.group).attempts == []
    again.fetch(2, now_ms=NOW_MS + 1)
    assert [one.id for one in read(store, again.group).attempts] == [2, 1]
    store.close()


def test_of_a_shared_group_only_what_is_marked(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    reader = Reader(store, topic)
    letters = [
        Outbound(b"x", headers=b"" if name is None else msgspec.msgpack.encode({"for": name}))
        for name in ("a", "b", None, "a")
    ]
    store.commit.write_internal(topic, [*letters, Outbound(b"x", headers=b"\xff")], [], NOW_MS)
    pump(store, NOW_MS)
    receipts = reader.fetch(now_ms=NOW_MS + 1)
    reader.nack(receipts[0], delay_ms=0, error="HTTP 500", now_ms=NOW_MS + 2)
    store.settle.give_back(reader.group, [receipts[3][0]], [receipts[3][1]], NOW_MS + 2)
    pump(store, NOW_MS + 3)
    reader.ack(*reader.fetch(now_ms=NOW_MS + 3), now_ms=NOW_MS + 4)
    mark = Mark(reader.group, "for", "a")
    found = read(store, mark=mark).attempts
    assert told(found) == [(4, 1, "acked", ""), (1, 1, "nacked", "HTTP 500")], "and no second attempt"


def test_an_answer_has_as_many_as_fit(store: Store) -> None:
    reader, _, _ = live(store, 1, 40)
    whole = read(store, reader.group)
    packed = pack_attempts(whole, 2_000)
    cut = msgspec.msgpack.decode(packed, type=Attempts)
    assert len(packed) <= 2_000
    assert cut.attempts == whole.attempts[: len(cut.attempts)]
    rest = read(store, reader.group, before=cut.next)
    assert told([*cut.attempts, *rest.attempts]) == told(whole.attempts)


def test_nothing_at_all(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    assert read(store, group) == Attempts(attempts=[], next=None, missing=[])
    assert read(store) == Attempts(attempts=[], next=None, missing=[])
