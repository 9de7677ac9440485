"""``purge.c``: what may go, what is moved, and how far nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Store, UInt64s, uint64s

NEED_DISK: Final = lib.TW_STOP_NEED_DISK
_LISTED: Final = 4_096


class Plan(NamedTuple):
    """``stop``: 0, NEED_DISK with the bytes that the next message takes, -1 where there are no records."""

    stop: int
    position: int
    dead: int
    damaged: int
    moved: int
    moved_bytes: int
    need: int


def plan(
    store: Store,
    start: int,
    limit: int,
    end: int,
    now_ms: int,
    capacity: int,
    dead: UInt64s,
    damaged: UInt64s,
) -> Plan:
    """Lists the messages of a part of a segment that are dead or damaged, and stages MOVED records for the others."""
    at, found = ffi.new("uint64_t *", start), ffi.new("tw_purging *")
    lists = uint64s(dead), uint64s(damaged)
    stop = lib.tw_purge_plan(store, at, limit, end, now_ms, capacity, *lists, found)
    return Plan(
        stop=stop,
        position=int(at[0]),
        dead=found.dead,
        damaged=found.damaged,
        moved=found.moved,
        moved_bytes=found.moved_bytes,
        need=found.need,
    )


def survey(
    store: Store, from_id: int, end_id: int, now_ms: int, first: int, segment_bytes: int,
    live: UInt64s, live_bytes: UInt64s, dead: UInt64s,
) -> None:  # fmt: skip
    """Adds messages up by the segment in which their records lie."""
    sums = uint64s(live), uint64s(live_bytes), uint64s(dead)
    lib.tw_purge_survey(store, from_id, end_id, now_ms, first, segment_bytes, len(live), *sums)


def count(store: Store, ids: UInt64s, of_topics: UInt64s, of_groups: UInt64s) -> None:
    """What messages have added to the counters of their topics (messages, cancelled) and groups (acked, dead,
    deliveries)."""
    lib.tw_purge_count(store, uint64s(ids), len(ids), uint64s(of_topics), uint64s(of_groups))


def listed(store: Store, start: int, end: int) -> Iterator[UInt64s]:
    """The messages whose records still lie between two positions, some at a time."""
    at = ffi.new("uint64_t *", start)
    while at[0] < end:
        ids = np.empty(_LISTED, np.uint64)
        found = lib.tw_purge_list(store, at, end, len(ids), uint64s(ids))
        yield ids[:found]


def raise_first_seq(store: Store, topic_id: int, limit: int) -> bool:
    """Moves ``first_seq`` over what is gone; whether the limit was reached."""
    return bool(lib.tw_raise_first_seq(store, topic_id, limit))


def raise_first_id(store: Store, limit: int) -> bool:
    """Moves ``first_id`` over what is gone; whether the limit was reached."""
    return bool(lib.tw_raise_first_id(store, limit))


def lowest_arrival(store: Store, topic_id: int) -> int:
    """The lowest number of a topic that anything refers to."""
    return int(lib.tw_lowest_arrival(store, topic_id))


def lowest_delivery(store: Store, group_id: int) -> int:
    """The lowest number whose row a group may look at."""
    return int(lib.tw_lowest_delivery(store, group_id))
