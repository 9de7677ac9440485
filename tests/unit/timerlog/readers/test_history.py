"""The life of a message: each thing that happens to it, what follows from that, and what is missing."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.damage import flip
from tests.support.stores.purging import LATER_MS, content, mixed
from tests.support.stores.reader import Reader
from timerlog.readers.events import EVENTS, read_events
from timerlog.readers.history import History, HistoryEvent, history_of, pack_history
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store

HOUR_MS = 3_600_000


def life(
    store: Store, message_id: int, now_ms: int = NOW_MS, limit: int = 10_000, *, is_late: bool = False
) -> History:
    """What a process of the broker's would tell now."""
    found = maybe_life(store, message_id, now_ms, limit, is_late=is_late)
    assert found is not None
    return found


def maybe_life(
    store: Store, message_id: int, now_ms: int = NOW_MS, limit: int = 10_000, *, is_late: bool = False
) -> History | None:
    with closing(Snapshot(describe(store.log, store.tables, now_ms))) as snapshot:
        return history_of(snapshot, message_id, store.log.appended_position, limit, lambda: is_late)


def told(found: History) -> list[str]:
    return [f"{event.event} {event.group}".strip() for event in found.events]


def put(store: Store, topic: str, *times_ms: int, body: bytes = b"x") -> int:
    """Sends messages; the id of the first."""
    first = store.tables.next_id
    topic_id = store.topics.open(topic, NOW_MS)
    store.produce.ingest(send(topic_id, [body] * len(times_ms), times_ms=list(times_ms)), NOW_MS)
    return first


def test_a_life_with_everything(store: Store) -> None:
    first = put(store, "orders", NOW_MS, NOW_MS, NOW_MS)
    topic_id = store.topics.open("orders", NOW_MS)
    reader, audit = Reader(store, topic_id, "billing"), Reader(store, topic_id, "audit")
    pump(store, NOW_MS + 5)
    one, other = reader.fetch(2, now_ms=NOW_MS + 10)
    assert audit.fetch(1, now_ms=NOW_MS + 11) == [(first, 1)]
    assert reader.extend(one, until_ms=NOW_MS + 5_000) == ["extended"]
    assert reader.nack(one, delay_ms=500, error="card refused", now_ms=NOW_MS + 20) == ["nacked"]
    audit.ack((first, 1))
    pump(store, NOW_MS + 600)
    found = life(store, first, NOW_MS + 800)
    assert (found.id, found.topic, found.missing) == (first, "orders", [])
    assert told(found) == [
        "sent", "due", "delivered billing", "delivered audit", "extended billing", "nacked billing",
        "acked audit",
    ]  # fmt: skip
    by_name = {event.event: event for event in found.events}
    assert by_name["sent"].time_ms == by_name["sent"].next_ms == NOW_MS
    assert by_name["due"].time_ms == NOW_MS
    assert found.events[2].next_ms == NOW_MS + 1_010
    assert by_name["extended"].next_ms == NOW_MS + 5_000
    nacked = by_name["nacked"]
    assert (nacked.time_ms, nacked.after_ms, nacked.next_ms) == (None, NOW_MS + 11, NOW_MS + 520)
    assert (nacked.error, nacked.epoch) == ("card refused", 1)
    assert other[0] != first
    assert "nacked billing" not in told(life(store, other[0]))


def test_a_lease_that_ends_is_told_when_it_has_ended(store: Store) -> None:
    first = put(store, "orders", NOW_MS)
    reader = Reader(store, store.topics.open("orders", NOW_MS))
    pump(store, NOW_MS)
    reader.fetch(now_ms=NOW_MS)
    assert told(life(store, first, NOW_MS + 999)) == ["sent", "due", "delivered g"]
    ended = life(store, first, NOW_MS + 1_000).events[-1]
    assert (ended.event, ended.time_ms, ended.epoch, ended.computed) == (
        "lease_ended",
        NOW_MS + 1_000,
        1,
        True,
    )
    pump(store, NOW_MS + 4_000)
    (again,) = reader.fetch(now_ms=NOW_MS + 5_000)
    assert again == (first, 2)
    reader.ack(again)
    assert told(life(store, first, NOW_MS + HOUR_MS)) == [
        "sent", "due", "delivered g", "lease_ended g", "delivered g", "acked g",
    ]  # fmt: skip


def test_what_was_given_back_is_no_extension(store: Store) -> None:
    first = put(store, "orders", NOW_MS)
    reader = Reader(store, store.topics.open("orders", NOW_MS))
    pump(store, NOW_MS)
    reader.fetch(now_ms=NOW_MS)
    store.settle.release_holder(reader.holder, NOW_MS + 10)
    assert told(life(store, first, NOW_MS + HOUR_MS)) == ["sent", "due", "delivered g", "released g"]


@pytest.mark.parametrize("gives_up", [False, True])
def test_the_last_nack_names_no_next_try(store: Store, gives_up: bool) -> None:
    """After the last attempt, and where the subscriber gives up."""
    first = put(store, "orders", NOW_MS)
    topic_id = store.topics.open("orders", NOW_MS)
    store.topics.set("orders", {"max_attempts": 5 if gives_up else 2}, (), None, NOW_MS)
    reader = Reader(store, topic_id, "g")
    pump(store, NOW_MS)
    (receipt,) = reader.fetch(now_ms=NOW_MS + 10)
    assert reader.nack(receipt, delay_ms=500, error="no", now_ms=NOW_MS + 20) == ["nacked"]
    pump(store, NOW_MS + 600)
    (receipt,) = reader.fetch(now_ms=NOW_MS + 600)
    done = reader.nack(receipt, delay_ms=500, error="again", now_ms=NOW_MS + 700, give_up=gives_up)
    assert done == ["dead"]
    found = life(store, first, NOW_MS + 800)
    assert told(found)[-3:] == ["delivered g", "nacked g", "dead g"]
    nacks = [(event.error, event.next_ms) for event in found.events if event.event == "nacked"]
    assert nacks == [("no", NOW_MS + 520), ("again", None)]


def test_new_times_dead_letters_and_cancels(store: Store) -> None:
    moved, cancelled, dead = (put(store, "orders", NOW_MS + HOUR_MS) for _ in range(3))
    store.change.reschedule([moved], NOW_MS + 10, NOW_MS)
    assert store.change.cancel([cancelled], NOW_MS) == ["cancelled"]
    found = life(store, moved)
    assert told(found) == ["sent", "rescheduled"]
    assert (found.events[-1].next_ms, found.events[-1].after_ms) == (NOW_MS + 10, NOW_MS)
    assert told(life(store, cancelled, NOW_MS + 2 * HOUR_MS)) == ["sent", "cancelled"]
    store.topics.set("orders", {"max_attempts": 1}, (), None, NOW_MS)
    store.change.reschedule([dead], NOW_MS + 10, NOW_MS)
    reader = Reader(store, store.topics.open("orders", NOW_MS))
    pump(store, NOW_MS + 20)
    receipts = [one for one in reader.fetch(now_ms=NOW_MS + 30) if one[0] == dead]
    assert reader.nack(*receipts, error="no", now_ms=NOW_MS + 40) == ["dead"]
    names = told(life(store, dead, NOW_MS + HOUR_MS))
    assert names[:4] == ["sent", "rescheduled", "due", "delivered g"]
    assert names[-1] == "dead g"
    letter = store.tables.next_id - 1
    assert store.replay_dead.replay("orders", [letter], NOW_MS + 50) == {"replayed": 1}
    assert told(life(store, dead, NOW_MS + HOUR_MS))[-2:] == ["dead g", "redelivered g"]
    assert told(life(store, letter, NOW_MS + HOUR_MS))[-1] == "cancelled"


def test_a_message_that_has_another_number_after_it_was_rescheduled(store: Store) -> None:
    first = put(store, "orders", NOW_MS, NOW_MS)
    reader = Reader(store, store.topics.open("orders", NOW_MS))
    pump(store, NOW_MS)
    assert store.change.reschedule([first], NOW_MS + 50, NOW_MS) == ["rescheduled"]
    (other,) = reader.fetch(now_ms=NOW_MS + 1)
    reader.ack(other)
    pump(store, NOW_MS + 60)
    (receipt,) = reader.fetch(now_ms=NOW_MS + 70)
    reader.ack(receipt)
    assert told(life(store, first)) == ["sent", "due", "rescheduled", "due", "delivered g", "acked g"]
    assert told(life(store, other[0])) == ["sent", "due", "delivered g", "acked g"]


def test_moves_down_the_wheel_follow_from_its_times(store: Store) -> None:
    due = (NOW_MS >> 24) + 3 << 24  # with a block of level 1, hours from now
    first = put(store, "orders", due + 5)
    found = life(store, first, due + HOUR_MS)
    moves = [(event.level, event.time_ms) for event in found.events if event.event == "cascaded"]
    assert moves == [(1, due - 60_000), (0, due - 1_024)]
    assert all(event.computed for event in found.events[1:])
    assert told(life(store, first, due - 60_001)) == ["sent"], "not before they happen"
    store.change.reschedule([first], due + 6, NOW_MS)
    assert told(life(store, first, due + HOUR_MS)) == ["sent", "rescheduled"], "when is not in the log"


def test_groups_that_are_gone_and_those_that_got_their_numbers(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", msgspec.structs.replace(SMALL, max_groups=1), NOW_MS)
    first, elsewhere = put(store, "orders", NOW_MS), put(store, "others", NOW_MS)
    pump(store, NOW_MS)
    for topic, name in (("orders", "old"), ("orders", "new"), ("others", "theirs")):
        reader = Reader(store, store.topics.open(topic, NOW_MS), name)
        assert reader.group == 1
        (receipt,) = reader.fetch(now_ms=NOW_MS + 1)
        reader.ack(receipt)
        assert told(life(store, first))[-2:] == [f"delivered {name}", f"acked {name}"] or topic == "others"
        store.groups.delete(topic, name)
    assert told(life(store, first)) == [
        "sent", "due", "delivered old", "acked old", "delivered new", "acked new",
    ]  # fmt: skip
    assert told(life(store, elsewhere)) == ["sent", "due", "delivered theirs", "acked theirs"]
    store.close()


def test_messages_of_shards(store: Store) -> None:
    topic_id = store.topics.create("parts", {}, 2, NOW_MS).topic_id
    keys = [b"k%d" % number for number in range(8)]
    store.produce.ingest(send(topic_id, [b"x"] * 8, keys=keys, times_ms=[NOW_MS] * 8), NOW_MS)
    reader = Reader(store, topic_id, "all")
    pump(store, NOW_MS)
    parts = store.groups.parts_of(reader.group)
    receipts = [receipt for part in parts for receipt in reader.fetch(now_ms=NOW_MS + 1, part=part)]
    assert len(receipts) == 8
    reader.ack(receipts[0])
    for message_id, _ in receipts:
        found = life(store, message_id)
        more = ["acked all"] if message_id == receipts[0][0] else []
        assert (found.topic, told(found)) == ("parts", ["sent", "due", "delivered all", *more])


def events_by_id(store: Store) -> dict[int, list[tuple[Any, ...]]]:
    """All events of the log by message, read as Spark reads them."""
    found: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    with closing(Snapshot(describe(store.log, store.tables, NOW_MS))) as snapshot:
        topics = {group_id: group.record.topic_id for group_id, group in store.tables.groups.items()}
        log = snapshot.log
        start, end = min(store.log.segments) + 64, store.log.appended_position
        for events in read_events(log, start, end):
            for row in range(len(events)):
                message_id = int(events.ids[row])
                if not message_id:
                    topic_id = topics[int(events.group_ids[row])]
                    message_id = int(snapshot.ids_of(topic_id, events.seqs[row : row + 1])[0])
                kind = EVENTS[int(events.kinds[row])]
                found[message_id].append((int(events.positions[row]), kind, int(events.epochs[row])))
    return found


@pytest.mark.parametrize("purged", [False, True])
def test_as_the_whole_log_says(tmp_path: Path, purged: bool) -> None:
    """Over several segments and both topics, also after segments were purged and messages moved."""
    store = mixed(tmp_path / "data")
    if purged:
        store.purge(LATER_MS)
        store.sync()
    expected = events_by_id(store)
    there = sorted(content(store))
    checked = [*there[:70:7], *there[300:420:40], *there[-120::11]]
    missing = set()
    for message_id in checked:
        found = life(store, message_id, NOW_MS + 20)
        logged = [
            (event.position, "released" if event.event == "extended" else event.event, event.epoch)
            for event in found.events
            if not event.computed
        ]
        assert logged == expected[message_id], message_id
        assert (found.missing == []) == (logged[:1] != [] and logged[0][1] == "sent")
        missing |= set(found.missing)
    assert missing == ({"purged"} if purged else set())
    store.close()


def test_limits_are_told(store: Store) -> None:
    first = put(store, "orders", NOW_MS)
    reader = Reader(store, store.topics.open("orders", NOW_MS))
    pump(store, NOW_MS)
    for _ in range(50):
        (receipt,) = reader.fetch(now_ms=NOW_MS)
        reader.nack(receipt, delay_ms=0, error="e" * 100)
        pump(store, NOW_MS)
    whole = life(store, first)
    assert (len(whole.events), whole.missing) == (102, [])
    short = life(store, first, limit=7)
    assert (short.events, short.missing) == (whole.events[:7], ["limit"])
    assert "time" in life(store, first, is_late=True).missing
    packed = pack_history(whole, 4_096)
    assert len(packed) <= 4_096
    told_of = msgspec.msgpack.decode(packed, type=dict[str, History])["history"]
    assert (told_of.missing, told_of.events) == (["limit"], whole.events[: len(told_of.events)])
    assert len(told_of.events) > 10
    assert msgspec.msgpack.decode(pack_history(None, 100)) == {"history": None}


def test_what_cannot_be_read_is_told(store: Store, tmp_path: Path) -> None:
    first = put(store, "orders", NOW_MS + HOUR_MS)
    damaged = put(store, "orders", NOW_MS + HOUR_MS, body=b"x" * 100)
    store.change.cancel([first], NOW_MS)
    store.sync()
    flip(tmp_path / "data", int(store.tables.rows["position"][damaged]) + 50, store.log.segment_bytes)
    found = life(store, first)
    assert (told(found), found.missing) == (["sent"], ["damaged"])


def test_messages_that_are_not_there(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    first = put(store, "orders", NOW_MS + HOUR_MS)
    assert maybe_life(store, first) is not None
    for message_id in (0, -1, first + 1, 1 << 62):
        assert maybe_life(store, message_id) is None
    store.topics.delete("orders")
    assert maybe_life(store, first) is None
    store.close()


def test_events_without_a_group_are_small() -> None:
    packed = msgspec.msgpack.encode(HistoryEvent(event="cancelled", position=64))
    assert msgspec.msgpack.decode(packed) == {"event": "cancelled", "position": 64}
