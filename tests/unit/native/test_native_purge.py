"""C and twin plan, move, count and forget the same, for any tables, and for a log with any damage."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_pair import (
    EMPTY_INDEX_BYTES,
    GROUP_TOPICS,
    LOG_START,
    NOW_MS,
    TOPICS,
    Pair,
    Sizes,
)
from tests.twins.log import END_TYPE, GROUP, MOVED_TYPE, NONSENSE, STATE, make_record
from tests.twins.store import ACKED, CANCELLED, DEAD, LEASED, READY, SCHEDULED, padded
from tests.unit.native.test_native_log import message, stored
from tests.unit.native.test_native_rebuild import any_tables

MESSAGES = 12
SIZES = Sizes(rows=MESSAGES + 1, keys_bytes=EMPTY_INDEX_BYTES + 8_192, arrivals=MESSAGES, deliveries=MESSAGES)
STATES = [SCHEDULED, READY, READY, READY, CANCELLED]
TRANSACTION, OTHER, NEED_DISK = 12, 4, 11
seeds = st.integers(0, 1 << 64)


def wrapped(record: bytes, topic_id: int, how: str) -> tuple[bytes, int]:
    """A record as it may lie in the log, and where in it the message starts."""
    if how == "transaction":
        return make_record(TRANSACTION, 0, 0, bytes(16) + stored(record)), 32
    if how == "moved":
        entry = GROUP.pack(1 if topic_id == 1 else 3, 1, 0, LEASED, 32 * (topic_id % 2), NOW_MS)
        head = STATE.pack(0, 0, READY, 0, 0, 0, 1, 0) + entry
        return make_record(MOVED_TYPE, 0, topic_id, head + record), 16 + len(head)
    return record, 0


def logged(seed: int) -> Pair:
    """Messages in the log, by themselves and in other records, in any state that the engine makes."""
    detail, pair = random.Random(seed), Pair(SIZES)
    pair.set(next_id=MESSAGES + 1)
    seqs = dict.fromkeys(TOPICS, 0)
    for message_id in range(1, MESSAGES + 1):
        topic_id, state = detail.choice(TOPICS), detail.choice(STATES)
        record = message(message_id, body=detail.randbytes(detail.randrange(60)), topic_id=topic_id)
        whole, offset = wrapped(record, topic_id, detail.choice(["alone", "alone", "transaction", "moved"]))
        position = append(pair, whole) + offset
        if detail.random() < 0.1:
            continue  # it is gone
        where = position if detail.random() < 0.9 else position + 8_192  # or it was moved away
        pair.write_row(
            message_id, position=where, deliver_at_ms=NOW_MS, created_ms=NOW_MS, topic_id=topic_id, state=state,
            record_bytes=len(record), priority=detail.randrange(256), version=detail.randrange(3),
        )  # fmt: skip
        if state == READY:
            arrive(pair, detail, message_id, topic_id, seqs[topic_id])
            seqs[topic_id] += 1
        if detail.random() < 0.2:
            append(pair, make_record(OTHER, 0, 1, detail.randbytes(detail.randrange(40))))
    for side in pair.sides:
        for topic_id in TOPICS:
            side.topics[topic_id]["count"] = seqs[topic_id]
            side.topics[topic_id]["purge_after_ms"] = 10
            side.topics[topic_id]["ready"] = seqs[topic_id]
    return pair


def append(pair: Pair, record: bytes) -> int:
    position = pair.twin.staging_position
    for side in pair.sides:
        side.log[position : position + len(record)] = np.frombuffer(record, np.uint8)
    end = position + padded(len(record))
    pair.set(staging_position=end, log_readable=end)
    return int(position)


def arrive(pair: Pair, detail: random.Random, message_id: int, topic_id: int, seq: int) -> None:
    pair.write_row(message_id, topic_seq=seq)
    for group_id in (group for group, topic in GROUP_TOPICS.items() if topic == topic_id):
        state, epoch = detail.choice([0, LEASED, ACKED, ACKED, ACKED, DEAD]), detail.randrange(4)
        time_ms, flags = NOW_MS + detail.randrange(20), detail.choice([0, 0, 0, 1, 4])
        for side in pair.sides:
            side.arrivals[topic_id][seq]["id"] = message_id
            row = side.deliveries[group_id][seq]
            row["state"], row["epoch"], row["time_ms"], row["flags"] = state, epoch, time_ms, flags


def flip(pair: Pair, detail: random.Random, times: int) -> None:
    end = pair.twin.staging_position
    for _ in range(times):
        place, bit = detail.randrange(LOG_START, end), 1 << detail.randrange(8)
        for side in pair.sides:
            side.log[place] ^= bit


@given(seeds, st.sampled_from([0, 15, 100]), st.sampled_from([0, 0, 1, 4]), st.sampled_from([1, 3, 100]))
def test_a_whole_log(seed: int, later_ms: int, flips: int, capacity: int) -> None:
    """Part by part, as the engine does, until its end or the first thing that is no record."""
    detail, pair = random.Random(seed), logged(seed)
    end, at, planned = pair.twin.staging_position, LOG_START, 0
    flip(pair, detail, flips)
    alive = int((pair.twin.rows["state"] != 0).sum())
    pair.call("purge_survey", 1, MESSAGES + 1, NOW_MS + later_ms, LOG_START, 256, 4)
    while at < end:
        limit = min(end, at + detail.choice([1, 200, 10_000]))
        plan = pair.call("purge_plan", at, limit, end, NOW_MS + later_ms, capacity)
        if plan.stop == NONSENSE:
            assert flips
            pair.set(staging_bytes=0)  # the engine gives up here
            return
        assert plan.stop == 0
        assert plan.at > at
        moved_from = pair.twin.staging_position
        pair.flush()
        while moved_from < pair.twin.staging_position:
            assert pair.call("apply_moved", moved_from) == (0, 0)
            (size,) = struct.unpack_from("<I", pair.twin.log[moved_from + 4 : moved_from + 8].tobytes())
            moved_from += padded(size)
        pair.call("purge_count", plan.dead)
        assert pair.call("apply_purged", at, plan.at) == 0
        planned += len(plan.dead) + len(plan.damaged) + plan.moved
        at = plan.at
    assert flips or planned <= alive
    for topic_id in TOPICS:
        while pair.call("raise_first_seq", topic_id, detail.choice([1, 5])):
            pass
    while pair.call("raise_first_id", detail.choice([1, 5])):
        pass


@given(seeds)
def test_nothing_of_a_part_is_left_behind(seed: int) -> None:
    """Each message that is there lies before a plan as dead or is moved; after it was applied, none is."""
    pair = logged(seed)
    end = pair.twin.staging_position
    positions = {i: int(pair.twin.rows["position"][i]) for i in range(1, MESSAGES + 1)}
    there = {i for i, place in positions.items() if pair.twin.rows["state"][i] and LOG_START <= place < end}
    plan = pair.call("purge_plan", LOG_START, end, end, NOW_MS + 15, 100)
    assert (plan.stop, plan.at, plan.damaged) == (0, end, [])
    assert len(plan.dead) + plan.moved == len(there)
    assert plan.dead == [i for i in sorted(there) if pair.call("is_dead", i, NOW_MS + 15)]
    pair.flush()
    assert pair.call("replay", end, pair.twin.staging_position)[0] == 0
    assert pair.call("apply_purged", LOG_START, end) == 0
    left = pair.twin.rows["position"][pair.twin.rows["state"] != 0]
    assert not ((left >= LOG_START) & (left < end)).any()


@given(seeds)
def test_any_tables(seed: int) -> None:
    """Rows, arrivals and deliveries that contradict each other, as derived files after a crash may."""
    detail, pair = random.Random(seed), any_tables(seed)
    now_ms = detail.choice([0, NOW_MS, 1 << 62])
    for message_id in range(1, pair.twin.next_id):
        if pair.twin.has_topic(int(pair.twin.rows["topic_id"][message_id])):
            pair.call("is_dead", message_id, now_ms)
    pair.call("purge_survey", 1, pair.twin.next_id, now_ms, 1 << 40, 1 << 58, 8)
    pair.call("purge_count", [detail.randrange(1, pair.twin.next_id) for _ in range(9)])
    pair.call("raise_first_id", 10)


@pytest.mark.parametrize("room", [0, 64, 200])
def test_without_room_it_stops_before_the_message_and_says_how_much_it_needs(room: int) -> None:
    pair = Pair(SIZES)
    pair.set(next_id=3)
    for message_id in (1, 2):
        record = message(message_id, body=bytes(100))
        pair.write_row(
            message_id, position=append(pair, record), topic_id=1, state=SCHEDULED, record_bytes=len(record)
        )
    end = pair.twin.staging_position
    pair.set(message_limit=end + room)
    plan = pair.call("purge_plan", LOG_START, end, end, NOW_MS, 10)
    assert plan.stop == NEED_DISK
    assert plan.need == padded(16 + 28 + 48 + 100)
    assert plan.moved == (1 if room == 200 else 0)
    assert plan.at == int(pair.twin.rows["position"][1 + plan.moved])


def test_an_end_record_ends_the_segment() -> None:
    pair = Pair(SIZES)
    append(pair, make_record(END_TYPE, 0, 0, b""))
    end = append(pair, b"\xff" * 64) + 64
    plan = pair.call("purge_plan", LOG_START, end, end, NOW_MS, 10)
    assert (plan.stop, plan.at) == (0, end)


def test_what_is_no_record_is_refused() -> None:
    pair = Pair(SIZES)
    end = append(pair, b"\xff" * 64) + 64
    assert pair.call("purge_plan", LOG_START, end, end, NOW_MS, 10).stop == NONSENSE
    assert pair.call("apply_purged", LOG_START, end) == NONSENSE


@given(st.binary(max_size=120), st.integers(0, 255), st.integers(0, 4))
def test_a_moved_record_of_any_bytes_is_refused_or_applied_alike(
    tail: bytes, state: int, groups: int
) -> None:
    pair = Pair(SIZES)
    pair.set(next_id=MESSAGES + 1)
    entries = GROUP.pack(1, 2, 0, LEASED, 0xFF, NOW_MS) * groups
    payload = (
        STATE.pack(3, 1, state, 0, 0, 0, groups, 0) + entries + (tail or message(5, key=b"k", body=b"b"))
    )
    position = append(pair, make_record(MOVED_TYPE, 0, 1, payload))
    pair.call("apply_moved", position)


def test_damage_before_a_record_in_whose_middle_a_part_ends() -> None:
    """The plan saw all of the record that follows, so it passed over the damage; applying sees half of that record."""
    pair = Pair(SIZES)
    pair.set(next_id=3)
    damaged = message(1, body=b"damaged")
    pair.write_row(1, position=append(pair, damaged), topic_id=1, state=CANCELLED, record_bytes=len(damaged))
    for side in pair.sides:
        side.log[pair.twin.staging_position - 8] ^= 1
    start = append(pair, wrapped(message(2, body=b"x"), 1, "transaction")[0])
    pair.write_row(2, position=start + 32, topic_id=1, state=SCHEDULED, record_bytes=48 + 16 + 1)
    end = pair.twin.staging_position
    plan = pair.call("purge_plan", LOG_START, start + 1, end, NOW_MS, 1)
    assert (plan.stop, plan.dead) == (0, [1])
    plan = pair.call("purge_plan", plan.at, start + 1, end, NOW_MS, 1)
    assert (plan.stop, plan.at) == (0, start + 32)
    assert pair.call("apply_purged", LOG_START, plan.at) == 0
    assert not pair.twin.rows["state"][1]
