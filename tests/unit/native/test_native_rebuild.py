"""What C derives from the tables at a start is what they say, whatever they hold."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_pair import EMPTY_INDEX_BYTES, GROUP_TOPICS, TOPICS, Pair, Sizes
from tests.twins.store import (
    ACKED,
    CANCELLED,
    DEAD,
    LEASED,
    NONE,
    READY,
    SCHEDULED,
    UNTOUCHED,
    WAITING,
    Array,
)

MESSAGES = 40
SIZES = Sizes(rows=MESSAGES + 1, keys_bytes=EMPTY_INDEX_BYTES + 4_096)


def random_items(like: Array, detail: random.Random, values: dict[str, list[int]]) -> Array:
    """Random bytes, and a random choice of the values of each named field."""
    items = np.frombuffer(bytearray(detail.randbytes(like.nbytes)), like.dtype)
    for name, choices in values.items():
        items[name] = detail.choices(choices, k=len(items))
    return items


def any_tables(seed: int) -> Pair:
    """Tables as they may be after a crash: what is derived holds anything."""
    detail, pair = random.Random(seed), Pair(SIZES)
    hashes = [0, 0, 1, 5, 1 << 22, (1 << 32) - 1]
    values = {"topic_id": [0, 1, 1, 2, 2, 3, 4, 99], "state": [0, 1, 2, 2, 2, 3, 4, 5], "key_hash": hashes}
    values["flags"] = [0, 0, 1]
    rows = random_items(pair.twin.rows, detail, values)
    pair.set(next_id=MESSAGES + 1)
    for side in pair.sides:
        side.rows[:] = rows
    for topic_id in TOPICS:
        arrivals = random_items(pair.twin.arrivals[topic_id], detail, {"id": list(range(1, MESSAGES + 1))})
        count = detail.randint(0, MESSAGES)
        for side in pair.sides:
            side.arrivals[topic_id][:] = arrivals
            for name in ("lane_first", "lane_last", "lanes", "messages", "cancelled", "scheduled", "ready"):
                side.topics[topic_id][name] = 77
            side.topics[topic_id]["count"] = count
    for group_id in GROUP_TOPICS:
        values = {"state": [UNTOUCHED, LEASED, ACKED, WAITING, DEAD], "epoch": [1, 2, 3]}
        deliveries = random_items(pair.twin.deliveries[group_id], detail, values)
        for side in pair.sides:
            side.deliveries[group_id][:] = deliveries
        pair.allow("groups", group_id, detail.choice([0, 3, 64]))
    pair.compare()
    return pair


seeds = st.integers(0, 1 << 64)


@given(seeds)
def test_topics_and_groups(seed: int) -> None:
    pair = any_tables(seed)
    assert pair.call("rebuild_topics") == 0
    for topic_id in TOPICS:
        check_topic(pair, topic_id)
    for group_id in GROUP_TOPICS:
        pair.call("rebuild_group", group_id)
        timers, at = pair.call("leased", group_id, 0, 100)
        assert len(timers) >= pair.twin.groups[group_id]["leased"]
        assert at == pair.twin.groups[group_id]["high_seq"]
        check_group(pair, group_id, timers)


def check_topic(pair: Pair, topic_id: int) -> None:
    """Counters are those of the rows; each number with a message is in the lane of the message's priority, in order."""
    topic, rows = pair.twin.topics[topic_id], pair.twin.rows[1 : pair.twin.next_id]
    states = rows["state"][rows["topic_id"] == topic_id]
    assert topic["messages"] == topic["purged_messages"] + (states != NONE).sum()
    assert topic["cancelled"] == topic["purged_cancelled"] + (states == CANCELLED).sum()
    assert topic["scheduled"] == (states == SCHEDULED).sum()
    assert topic["ready"] == (states == READY).sum()
    arrivals = pair.twin.arrivals[topic_id]
    messages = pair.twin.rows[arrivals["id"][: int(topic["count"])]]
    for priority in range(256):
        lane, at = [], int(topic["lane_first"][priority])
        while at:
            lane.append(at - 1)
            at = int(arrivals["next"][at - 1])
        expected = np.flatnonzero((messages["state"] != NONE) & (messages["priority"] == priority)).tolist()
        assert lane == expected
        assert topic["lane_last"][priority] == (lane[-1] + 1 if lane else 0)
        assert bool(int(topic["lanes"][priority // 64]) >> priority % 64 & 1) == bool(lane)


def check_group(pair: Pair, group_id: int, timers: list[tuple[int, int, int]]) -> None:
    group, topic_id = pair.twin.groups[group_id], GROUP_TOPICS[group_id]
    count, allocated = int(pair.twin.topics[topic_id]["count"]), int(group["allocated"])
    rows = pair.twin.deliveries[group_id][: min(count, allocated)]
    messages = pair.twin.rows[pair.twin.arrivals[topic_id]["id"][:count]]
    seqs = np.arange(count)
    in_topic = (
        (messages["state"] == READY) & (messages["topic_seq"] == seqs) & (messages["topic_id"] == topic_id)
    )
    done = np.isin(rows["state"], (ACKED, DEAD))
    for name, state in (("acked", ACKED), ("dead", DEAD), ("leased", LEASED)):
        assert group[name] == (rows["state"] == state).sum()
    assert group["touched"] == (rows["state"] != UNTOUCHED).sum()
    assert group["deliveries"] == rows["epoch"].sum()
    assert group["pending"] == in_topic.sum() - (in_topic[: len(rows)] & done).sum()
    waits = np.isin(rows["state"], (LEASED, WAITING)) & in_topic[: len(rows)]
    assert timers == [
        (int(rows["time_ms"][seq]), int(seq), int(rows["epoch"][seq])) for seq in np.flatnonzero(waits)
    ]
    assert not any(rows[name].any() for name in ("holder", "retry_next", "order_hash"))
    assert not any(group[name].any() for name in ("retry_first", "retry_last", "retry_lanes"))


def priorities(pair: Pair, *of_messages: int) -> None:
    for message_id, priority in enumerate(of_messages, 1):
        pair.write_row(message_id, topic_id=1, state=READY, priority=priority, topic_seq=message_id - 1)
        for side in pair.sides:
            side.arrivals[1]["id"][message_id - 1] = message_id
    for side in pair.sides:
        side.topics[1]["count"] = len(of_messages)
    pair.set(next_id=len(of_messages) + 1)


def touched(pair: Pair, seq: int, **fields: int) -> None:
    for side in pair.sides:
        for name, value in fields.items():
            side.deliveries[1][seq][name] = value


def test_what_was_given_up_without_a_delivery_does_not_move_the_cursor() -> None:
    pair = Pair()
    priorities(pair, 5, 5, 5)
    touched(pair, 0, state=ACKED, epoch=1)
    touched(pair, 2, state=DEAD, epoch=0)
    pair.call("rebuild_topics")
    pair.call("rebuild_group", 1)
    assert pair.twin.groups[1]["cursor"][5] == 1, "message 2 was never delivered"


def test_what_left_the_topic_does_not_move_the_cursor_of_the_lane_it_has_now() -> None:
    pair = Pair()
    priorities(pair, 9, 9, 5)
    touched(pair, 2, state=WAITING, epoch=1)
    pair.write_row(3, state=SCHEDULED, priority=9)
    pair.call("rebuild_topics")
    pair.call("rebuild_group", 1)
    assert pair.twin.groups[1]["cursor"][9] == 0, "messages 1 and 2 were never delivered"


def test_nobody_holds_a_message_that_has_left_its_topic() -> None:
    pair = Pair()
    priorities(pair, 5)
    touched(pair, 0, state=LEASED, epoch=1)
    pair.write_row(1, state=CANCELLED)
    pair.call("rebuild_topics")
    pair.call("rebuild_group", 1)
    assert pair.twin.deliveries[1][0]["state"] == WAITING
    assert pair.twin.groups[1]["leased"] == 0


def test_a_start_in_the_middle_follows_the_lanes_as_they_are() -> None:
    pair = Pair()
    priorities(pair, 9, 5, 9, 9)
    pair.call("rebuild_topics")
    pair.write_row(2, state=SCHEDULED, priority=9)
    for side in pair.sides:
        side.groups[1]["start_seq"] = 2
    pair.call("skip_to_start", 1)
    assert pair.twin.groups[1]["cursor"][9] == 1
    assert pair.twin.groups[1]["cursor"][5] == 2


@given(seeds, st.sampled_from([MESSAGES + 1, 1 << 40, (1 << 64) - 1]))
def test_an_arrival_of_no_message_is_refused(seed: int, message_id: int) -> None:
    pair = any_tables(seed)
    for side in pair.sides:
        side.arrivals[1]["id"][0] = message_id
        side.topics[1]["count"] = 1
    assert pair.call("rebuild_topics") == -1


@given(seeds, st.integers(1, MESSAGES + 1), st.integers(0, MESSAGES + 1), st.integers(0, MESSAGES))
def test_keys_and_timers(seed: int, start: int, end: int, capacity: int) -> None:
    pair = any_tables(seed)
    rows, ids = pair.twin.rows, np.arange(start, max(start, end))
    exists = np.isin(rows["topic_id"][ids], TOPICS)
    keyed = exists & (rows["key_hash"][ids] != 0) & np.isin(rows["state"][ids], (SCHEDULED, READY))
    assert pair.call("rebuild_keys", start, end) == (0, max(start, end), 0)
    assert sorted(indexed(pair)) == ids[keyed].tolist()
    found = ids[exists & (rows["state"][ids] == SCHEDULED)].tolist()
    timers, at = pair.call("scheduled", start, end, capacity)
    due = pair.call("due_times", found[:capacity])
    versions = [int(rows["version"][i]) for i in found[:capacity]]
    assert timers == list(zip(due, found[:capacity], versions, strict=True))
    assert at == max(start, end) if len(found) < capacity else at > max(found[:capacity], default=start - 1)


def indexed(pair: Pair) -> list[int]:
    return [message_id for part in pair.twin.keys.partitions for message_id in part.entries]


def test_a_full_partition_grows_and_it_goes_on() -> None:
    pair = Pair(Sizes(rows=61, keys_bytes=EMPTY_INDEX_BYTES + 1_024))
    for message_id in range(1, 61):
        pair.write_row(message_id, topic_id=1, state=2, key_hash=message_id)
    pair.set(next_id=61)
    assert pair.call("rebuild_keys", 1, 61) == (13, 49, 0)
    assert pair.call("grow", 0)[0] == 0
    assert pair.call("rebuild_keys", 49, 61) == (0, 61, 0)
    assert pair.call("count") == 60
