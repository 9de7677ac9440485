"""What is due until when, against a plain count over all messages and leases."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, pump
from tests.support.native.frames import ack_payload, send
from timerlog.layout import DeliveryState, MessageState
from timerlog.store import Store
from timerlog.wheel import forecast
from timerlog.wheel.forecast import label_of
from timerlog.wheel.wheel import TimerWheel

_IN_A_CHAIN, _POSTPONED = 1 | 4, 16
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def picture_of(store: Store, now_ms: int, horizons: Sequence[int]) -> list[tuple[int, int]]:
    """(messages, leases) due within each horizon."""
    body = store.look.wheel_picture(now_ms, horizons).whole()
    for part in body["forecast"]:
        assert part["timers"] == part["messages"] + part["leases"]
    everything = store.look.wheel_picture(now_ms).whole()
    on_levels = sum(level["timers"] for level in everything["levels"])
    crowded = sum(len(timers) for timers in store.wheel.crowded())
    cascading = store.wheel.pending - on_levels - crowded
    assert everything["forecast"][-1]["timers"] + everything["gone"] == on_levels + cascading + crowded
    return [(part["messages"], part["leases"]) for part in body["forecast"]]


def counted_one_by_one(store: Store, now_ms: int, horizons: Sequence[int]) -> list[tuple[int, int]]:
    """The same from the tables, without the wheel."""
    rows = store.tables.rows[1 : store.tables.next_id]
    there = (rows["state"] == MessageState.SCHEDULED) & np.isin(rows["topic_id"], list(store.tables.topics))
    ids = (np.flatnonzero(there) + 1).astype(np.uint64)
    due_ms = store._engine.spread(rows["deliver_at_ms"][there], ids)
    ends: list[int] = []
    for group_id, group in store.tables.groups.items():
        topic_id = group.record.topic_id
        for seq in range(int(store.tables.native.groups[group_id].high_seq)):
            row = group.deliveries.items[seq]
            message = store.tables.rows[store.tables.topics[topic_id].arrivals.items[seq]["id"]]
            is_here = message["state"] == MessageState.READY and message["topic_seq"] == seq
            can_be_had = row["flags"] & _IN_A_CHAIN and not row["flags"] & _POSTPONED
            if is_here and not can_be_had and row["state"] in (DeliveryState.LEASED, DeliveryState.WAITING):
                ends.append(int(row["time_ms"]))
    moments = [now_ms + horizon for horizon in horizons]
    return [(int((due_ms <= one).sum()), sum(end <= one for end in ends)) for one in moments]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "STEP", 7)


def test_a_slot_that_the_horizon_cuts_is_counted_to_the_millisecond(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    times = [NOW_MS + DAY_MS + number * 120 - MINUTE_MS for number in range(1_000)]
    store.produce.ingest(send(topic, [b"x"] * 1_000, times_ms=times), NOW_MS)
    pump(store, NOW_MS)
    horizons = [DAY_MS - MINUTE_MS - 1, DAY_MS - MINUTE_MS, DAY_MS, DAY_MS + 1, DAY_MS + MINUTE_MS]
    assert [messages for messages, _ in picture_of(store, NOW_MS, horizons)] == [0, 1, 501, 501, 1_000]


def test_what_is_gone_is_not_counted(store: Store) -> None:
    topic, other = store.topics.open("t", NOW_MS), store.topics.open("u", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 10, times_ms=[NOW_MS + HOUR_MS] * 10), NOW_MS)
    store.produce.ingest(send(other, [b"x"] * 3, times_ms=[NOW_MS + HOUR_MS] * 3), NOW_MS)
    store.produce.ingest(send(other, [b"x"] * 4), NOW_MS)
    pump(store, NOW_MS)
    group = store.groups.open(other, "g", NOW_MS)
    store.deliver.fetch(group, store.holders.acquire(group), 1, 4, MIB, NOW_MS)
    assert picture_of(store, NOW_MS, [HOUR_MS]) == [(13, 4)]
    store.change.cancel([1, 2], NOW_MS)
    store.change.reschedule([3, 4, 5], NOW_MS + DAY_MS, NOW_MS)
    store.change.reschedule([5], NOW_MS + MINUTE_MS, NOW_MS)
    store.deliver.ack(ack_payload(group, [14, 15], [1, 1]), 1, NOW_MS)
    assert picture_of(store, NOW_MS, [MINUTE_MS, HOUR_MS, DAY_MS])[1:] == [(9, 2), (11, 2)]
    assert store.look.wheel_picture(NOW_MS).whole()["gone"] == 2 + 3 + 1 + 2
    store.topics.delete("u")
    assert picture_of(store, NOW_MS, [HOUR_MS]) == [(6, 0)]


def test_another_spread_counts_each_message_once(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 40, times_ms=[NOW_MS + HOUR_MS] * 40), NOW_MS)
    pump(store, NOW_MS)
    horizons = [HOUR_MS, HOUR_MS + 10 * MINUTE_MS, DAY_MS]
    for spread_ms in (20 * MINUTE_MS, 5 * MINUTE_MS, 0):
        store.topics.set("t", {"spread_ms": spread_ms}, [], None, NOW_MS)
        found = picture_of(store, NOW_MS, horizons)
        assert found == counted_one_by_one(store, NOW_MS, horizons)
        assert found[-1] == (40, 0)


@pytest.mark.parametrize("seed", range(6))
def test_after_anything_it_counts_what_the_tables_hold(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(TimerWheel, "crowd_limit", 5)
    topics = [store.topics.open(name, NOW_MS) for name in "ab"]
    groups = [store.groups.open(topic, "g", NOW_MS) for topic in topics]
    holders = [store.holders.acquire(group) for group in groups]
    now_ms = NOW_MS
    for _ in range(40):
        what = rng.randrange(6)
        last_id = store.tables.next_id - 1
        some = rng.sample(range(1, last_id + 1), min(last_id, 6))
        ahead = rng.choice([0, 5, 900, 5_000, HOUR_MS, 6 * HOUR_MS, 40 * DAY_MS, 3_000 * DAY_MS])
        if what <= 1 or not some:
            times = [now_ms + ahead + rng.choice([0, 0, 0, rng.randrange(5_000)]) for _ in range(20)]
            store.produce.ingest(send(rng.choice(topics), [b"x"] * 20, times_ms=times), now_ms)
        elif what == 2:
            store.change.cancel(some, now_ms)
        elif what == 3:
            store.change.reschedule(some, now_ms + ahead, now_ms)
        elif what == 4:
            which = rng.randrange(2)
            given = store.deliver.fetch(groups[which], holders[which], 1, 8, MIB, now_ms)
            if given and rng.random() < 0.7:
                rows = store.tables.groups[groups[which]].deliveries.items
                high = int(store.tables.native.groups[groups[which]].high_seq)
                seqs = [seq for seq in range(high) if rows[seq]["state"] == DeliveryState.LEASED][:3]
                arrivals = store.tables.topics[topics[which]].arrivals.items
                ids = [int(arrivals[seq]["id"]) for seq in seqs]
                if ids:
                    epochs = [int(rows[seq]["epoch"]) for seq in seqs]
                    if rng.random() < 0.5:
                        store.deliver.ack(ack_payload(groups[which], ids, epochs), 1, now_ms)
                    else:
                        store.settle.extend(groups[which], ids, epochs, now_ms + ahead + 1)
        else:
            now_ms += rng.choice([1, 700, 3_000, HOUR_MS])
        pump(store, now_ms)
        horizons = [0, 1, 1_000, rng.randrange(10_000), HOUR_MS, DAY_MS, 50 * DAY_MS, 9_000 * DAY_MS]
        assert picture_of(store, now_ms, horizons) == counted_one_by_one(store, now_ms, horizons)


def test_a_crowd_that_is_being_drained_counts_until_it_is_handed_out(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.wheel.crowd_limit, store.wheel.walk_limit = 10, 4
    store.produce.ingest(send(topic, [b"x"] * 50, times_ms=[NOW_MS + 2_000] * 50), NOW_MS)
    pump(store, NOW_MS)
    left, now_ms = 50, NOW_MS + 2_000
    while left:
        assert picture_of(store, now_ms, [0]) == [(left, 0)]
        due = store.dequeue_get.turn(now_ms, 8)
        left -= 0 if due is None else len(due)
        if due is not None:
            store.dequeue_put_message.move(store.dequeue_get_message.look_up(due, now_ms), now_ms)


def test_a_clock_that_is_set_back_begins_the_count_anew(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 30, times_ms=[NOW_MS + HOUR_MS] * 30), NOW_MS)
    pump(store, NOW_MS)
    picture = store.look.wheel_picture(NOW_MS, [DAY_MS])
    assert picture.step()
    assert picture.step()
    store.fill_wheel.clock_went_back(NOW_MS - MINUTE_MS)
    assert picture.whole()["forecast"][0]["messages"] == 30


def test_labels() -> None:
    durations = (0, 1, 90_000, 3_600_000, 2 * DAY_MS, DAY_MS + 1_000)
    assert [label_of(one) for one in durations] == ["0 ms", "1 ms", "90 s", "1 h", "2 d", "86401 s"]
