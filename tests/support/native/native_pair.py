"""One small store twice: C works on one, the plain-Python twins on the other, and both must stay the same.

A function without a twin works on the first alone, and the other takes over what it left.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tests.support.native.invariants import broken_invariant
from tests.support.native.native_store import HOLDERS, NativeStore
from tests.twins import bulk, delivery, forecast, ingest, keys, log
from tests.twins.key_index import PARTITIONS, KeyIndex
from tests.twins.store import ARRIVAL, DELIVERY, GROUP, ROW, TOPIC, Array, TwinStore, padded
from tickwheel_native import ffi
from tickwheel_native import ingest as ingest_binding

NOW_MS: Final = 1_700_000_000_000
LOG_START: Final = 64
TOPICS: Final = (1, 2)
GROUP_TOPICS: Final = {1: 1, 2: 1, 3: 2}
REPLIES_BYTES: Final = 65_536
EMPTY_INDEX_BYTES: Final = KeyIndex().end

_TWINS: Final = {
    name: getattr(module, name)
    for module, names in (
        (ingest, "ingest send_check unsend"),
        (log, "log_append replay apply_moved"),
        (keys, "find remove bytes_to_grow grow bytes_to_resize resize fitting count"),
        (delivery, "lookup damaged due_times count_lateness deliver_frame"),
        (bulk, "check adopt"),
        (forecast, "forecast"),
    )
    for name in names.split()
}
_STORE_NUMBERS: Final = (
    "log_readable", "staging_bytes", "staging_position", "segment_end", "message_limit", "next_id", "first_id",
    "max_body_bytes", "max_frame_bytes",
)  # fmt: skip
_STORE_ARRAYS: Final = ("log", "staging", "rows", "outstanding")


@dataclass(frozen=True)
class Sizes:
    rows: int = 64
    log_bytes: int = 32_768
    staging_bytes: int = 16_384
    keys_bytes: int = EMPTY_INDEX_BYTES + 8_192
    arrivals: int = 64
    deliveries: int = 64
    topics: int = 4
    groups: int = 5
    max_body_bytes: int = 400
    max_frame_bytes: int = 8_192
    message_limit: int | None = None


class Pair:
    """``call`` makes the same call on both sides and compares what it returned and what it left in memory."""

    def __init__(self, sizes: Sizes | None = None, *, start_seq: int = 0) -> None:
        sizes = sizes or Sizes()
        self.sizes = sizes
        self._compared_index: object = None
        self.native = NativeStore(sizes)
        self.twin = TwinStore(
            log=np.zeros(sizes.log_bytes, np.uint8),
            staging=np.zeros(sizes.staging_bytes, np.uint8),
            rows=np.zeros(sizes.rows, ROW),
            topics=np.zeros(sizes.topics, TOPIC),
            groups=np.zeros(sizes.groups, GROUP),
            outstanding=np.zeros(HOLDERS, np.uint32),
            keys_allocated=sizes.keys_bytes,
        )
        for topic_id in TOPICS:
            self._add_topic(topic_id)
        for group_id, topic_id in GROUP_TOPICS.items():
            self._add_group(group_id, topic_id, start_seq)
        self.set(
            next_id=1,
            first_id=1,
            max_body_bytes=sizes.max_body_bytes,
            max_frame_bytes=sizes.max_frame_bytes,
            staging_position=LOG_START,
            log_readable=LOG_START,
            segment_end=sizes.log_bytes,
            message_limit=sizes.log_bytes if sizes.message_limit is None else sizes.message_limit,
        )
        self.compare()

    def _add_topic(self, topic_id: int) -> None:
        self.native.add_topic(topic_id, self.sizes.arrivals)
        self.twin.arrivals[topic_id] = np.zeros(self.sizes.arrivals, ARRIVAL)
        for side in self.sides:
            side.topics[topic_id]["exists"] = 1
            side.topics[topic_id]["allocated"] = self.sizes.arrivals
            side.topics[topic_id]["default_priority"] = 50

    def _add_group(self, group_id: int, topic_id: int, start_seq: int) -> None:
        self.native.add_group(group_id, self.sizes.deliveries)
        self.twin.deliveries[group_id] = np.zeros(self.sizes.deliveries, DELIVERY)
        for side in self.sides:
            group = side.groups[group_id]
            group["exists"], group["topic_id"], group["allocated"] = 1, topic_id, self.sizes.deliveries
            group["start_seq"] = group["floor_seq"] = group["high_seq"] = group["rows_from"] = start_seq
            group["ack_wait_ms"], group["min_backoff_ms"], group["max_backoff_ms"] = 1_000, 700, 60_000
            topic = side.topics[topic_id]
            group["next_group"], topic["first_group"] = topic["first_group"], group_id

    @property
    def sides(self) -> tuple[Any, Any]:
        return self.native, self.twin

    def set(self, **numbers: int) -> None:
        """Sets fields of the store on both sides."""
        for name, value in numbers.items():
            setattr(self.native.store, name, value)
            setattr(self.twin, name, value)

    def allow_sends(self, topics: set[int]) -> None:
        """Only to these topics from now on."""
        self._may_send = np.zeros(len(self.native.topics), np.uint8)
        self._may_send[list(topics)] = 1
        self.native.store.may_send = ffi.cast("uint8_t *", self._may_send.ctypes.data)
        self.twin.may_send = frozenset(topics)

    def leave(self, ids: set[int]) -> None:
        """These are as good as cancelled from now on."""
        self._leaving = np.array(sorted(ids), np.uint64)
        ingest_binding.without(self.native.store, self._leaving)
        self.twin.leaving = frozenset(ids)

    def call(self, name: str, *arguments: Any) -> Any:
        """Returns what both sides returned."""
        index = self.native.keys.tobytes()
        found = getattr(self.native, name)(*arguments)
        if name in _TWINS:
            assert found == _TWINS[name](self.twin, *arguments)
        else:
            self._take_over(index)
        self.compare()
        return found

    def _take_over(self, index_before: bytes) -> None:
        native, twin = self.native, self.twin
        for name in _STORE_NUMBERS:
            setattr(twin, name, getattr(native.store, name))
        for name in _STORE_ARRAYS:
            getattr(twin, name)[:] = getattr(native, name)
        for own, taken in ((twin.arrivals, native.arrivals), (twin.deliveries, native.deliveries)):
            for number, array in own.items():
                array[:] = taken[number]
        twin.topics.view(np.uint8)[:] = _without(native.topics, "arrivals").view(np.uint8)
        twin.groups.view(np.uint8)[:] = _without(native.groups, "rows", "orders").view(np.uint8)
        if native.keys.tobytes() != index_before:
            twin.keys = read_index(native.keys, native.rows)

    def check_invariants(self, *, check_log: bool) -> None:
        """Fails when something does not hold of the whole store: see ``fuzz/invariants.c``."""
        assert broken_invariant(self.native.store, check_log=check_log) == ""

    def ingest(self, data: bytes, now_ms: int = NOW_MS, replies: int = REPLIES_BYTES) -> ingest.Ingested:
        found: ingest.Ingested = self.call("ingest", data, now_ms, replies)
        return found

    def flush(self) -> None:
        """Moves what is staged into the log, as the engine does."""
        for side in self.sides:
            count, start = self.twin.staging_bytes, self.twin.staging_position
            side.log[start : start + count] = side.staging[:count]
        position = self.twin.appended_position()
        self.set(staging_position=position, log_readable=position, staging_bytes=0)
        self.compare()

    def grow_orders(self, group_id: int) -> None:
        """Makes room for more busy ordering keys."""
        capacity = max(8, 2 * int(self.twin.groups[group_id]["orders_capacity"]))
        self.native.move_orders(group_id, capacity)
        self.twin.groups[group_id]["orders_capacity"] = capacity
        self.compare()

    def orders_clear(self, group_id: int) -> None:
        """No ordering key is busy."""
        self.native.orders_clear(group_id)
        self.twin.groups[group_id]["orders_count"] = 0

    def allow(self, table: str, number: int, items: int) -> None:
        """Lets so many arrivals of one of the ``topics``, or deliveries of one of the ``groups``, be touched."""
        for side in self.sides:
            getattr(side, table)[number]["allocated"] = items

    def write_row(self, message_id: int, **fields: int) -> None:
        for side in self.sides:
            for name, value in fields.items():
                side.rows[message_id][name] = value

    def clear_keys(self) -> None:
        self.native.keys_init()
        self.twin.keys = KeyIndex()
        self.compare()

    def compare(self) -> None:
        """Fails when the two sides differ, or when C wrote where nobody may."""
        native, twin = self.native, self.twin
        for name in _STORE_NUMBERS:
            assert getattr(native.store, name) == getattr(twin, name), name
        for name in _STORE_ARRAYS:
            assert _same(getattr(native, name), getattr(twin, name)), name
        for topic_id, arrivals in twin.arrivals.items():
            assert _same(native.arrivals[topic_id], arrivals), f"arrivals of topic {topic_id}"
        for group_id, rows in twin.deliveries.items():
            assert _same(native.deliveries[group_id], rows), f"deliveries of group {group_id}"
        assert _same(_without(native.topics, "arrivals"), twin.topics), "topics"
        assert _same(_without(native.groups, "rows", "orders"), twin.groups), "groups"
        assert not native.key_counts.any(), "key_counts are zero between calls"
        self._compare_index()
        native.memory.check()

    def _compare_index(self) -> None:
        """Reading the whole index takes long, so it is read only after a change."""
        ids = [message_id for part in self.twin.keys.partitions for message_id in part.entries]
        state = (self.native.keys.tobytes(), self.twin.keys.end, len(ids), sum(ids))
        if state != self._compared_index:
            assert_index_holds(self.native.keys, self.twin.keys)
            self._compared_index = state


def _same(one: Array, other: Array) -> bool:
    return bool((one.view(np.uint8) == other.view(np.uint8)).all())


def _without(array: Array, *names: str) -> Array:
    """A copy whose pointers are zero."""
    copied = array.view(np.uint8).copy().view(array.dtype)  # a plain copy leaves the padding as it comes
    for name in names:
        copied[name] = 0
    return copied


_PARTITION: Final = np.dtype([("offset", "<u8"), ("capacity", "<u4"), ("count", "<u4")])


def read_index(data: Array, rows: Array) -> KeyIndex:
    """What an index's bytes say, with the hashes that the rows know."""
    index = KeyIndex()
    index.end = int.from_bytes(data[16:24].tobytes(), "little")
    headers = data[64 : 64 + 16 * PARTITIONS].view(_PARTITION).tolist()
    for part, (offset, capacity, count) in zip(index.partitions, headers, strict=True):
        part.offset, part.capacity, part.entries = offset, capacity, {}
        if count:
            table = data[offset : offset + 8 * capacity].view(np.uint64)
            part.entries = {i: int(rows["key_hash"][i]) for i in (table[table != 0] >> 24).tolist()}
    return index


def assert_index_holds(data: Array, expected: KeyIndex) -> None:
    """Reads the index's bytes as docs/file-formats.md describes them."""
    magic, version, partitions, end = struct.unpack_from("<8sIIQ", data.tobytes()[:24])
    assert (magic, version, partitions, end) == (b"TWKEYS01", 1, PARTITIONS, expected.end)
    for found, part in zip(
        data[64 : 64 + 16 * PARTITIONS].view(_PARTITION).tolist(), expected.partitions, strict=True
    ):
        assert found == (part.offset, part.capacity, len(part.entries))
        table = data[part.offset : part.offset + 8 * part.capacity].view(np.uint64)
        if part.entries or table.any():
            _assert_table_holds(table.tolist(), part.entries)


def _assert_table_holds(table: list[int], entries: dict[int, int]) -> None:
    """All entries and no others, each to be found from its home without crossing an empty place."""
    assert sorted(filter(None, table)) == sorted(i << 24 | h >> 4 & 0xFFFFFF for i, h in entries.items())
    mask = len(table) - 1
    for place, entry in enumerate(table):
        if entry:
            home = entries[entry >> 24] & mask
            path = [(home + step) & mask for step in range((place - home) & mask)]
            assert all(table[step] for step in path)


def append_record(pair: Pair, record: bytes) -> None:
    """Puts any bytes into the log of both sides, behind what is there."""
    position = pair.twin.staging_position
    end = position + padded(len(record))
    for side in pair.sides:
        side.log[position : position + len(record)] = np.frombuffer(record, np.uint8)
    pair.set(staging_position=end, log_readable=end)
