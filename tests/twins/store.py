"""What the twins work on: the structures of ``native/store.h`` as numpy types, and the store that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.twins.key_index import KeyIndex
from tickwheel_native import ffi

Array: TypeAlias = npt.NDArray[Any]

_NUMBERS: Final = {
    "uint8_t": "u1",
    "uint16_t": "<u2",
    "uint32_t": "<u4",
    "uint64_t": "<u8",
    "int32_t": "<i4",
    "int64_t": "<i8",
}


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type with exactly the fields of a C structure; a pointer is a 64-bit number."""
    names, formats, offsets = [], [], []
    for field_name, described in ffi.typeof(name).fields:
        kind = described.type
        length = kind.length if kind.kind == "array" else None
        item = kind.item if kind.kind == "array" else kind
        number = "<u8" if item.kind == "pointer" else _NUMBERS[item.cname]
        names.append(field_name)
        formats.append((number, (length,)) if length else number)
        offsets.append(described.offset)
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(name)}
    dtype: np.dtype[Any] = np.dtype(layout)
    return dtype


ROW: Final = dtype_of("tw_row")
RUN: Final = dtype_of("tw_run")
ARRIVAL: Final = dtype_of("tw_arrival")
DELIVERY: Final = dtype_of("tw_delivery")
TOPIC: Final = dtype_of("tw_topic")
GROUP: Final = dtype_of("tw_group")

MESSAGE_HEAD_BYTES: Final = 48
FRAME_HEAD_BYTES: Final = 16
MAX_BATCH: Final = 65_536

NONE, SCHEDULED, READY, CANCELLED, DAMAGED, EXPIRED, DROPPED = range(7)
UNTOUCHED, LEASED, ACKED, WAITING, DEAD = range(5)
IN_RETRY, ACKING, PARKED, TAKEN, POSTPONED, CALLED = 1, 2, 4, 8, 16, 32
RESET_ATTEMPTS, WERE_DONE = 1, 2
ALREADY_ACKED, STALE_RECEIPT, NOT_FOUND, NEVER_DELIVERED, WAS_CANCELLED = range(1, 6)
IS_UNKNOWN, IS_SCHEDULED, IS_READY, IS_DELIVERED, IS_DONE, IS_CANCELLED, IS_EXPIRED = range(7)
ORDERED: Final = 1
TOPIC_PRIORITY: Final = 256
ORDERED_PRIORITY: Final = 50
RESERVED_SHARE: Final = 8
LAST: Final = (1 << 64) - 1


def padded(size: int) -> int:
    """Records start at multiples of 8."""
    return -(-size // 8) * 8


@dataclass
class TwinStore:
    """The fields of ``tw_store``. ``topics`` and ``groups`` are arrays of TOPIC and GROUP, whose pointers are not
    used: ``arrivals`` and ``deliveries`` hold what they point to, by topic and by group number; of these arrays only
    the first ``allocated`` items may be touched."""

    log: Array
    staging: Array
    rows: Array
    topics: Array
    groups: Array
    outstanding: Array
    arrivals: dict[int, Array] = field(default_factory=dict)
    deliveries: dict[int, Array] = field(default_factory=dict)
    keys: KeyIndex = field(default_factory=KeyIndex)
    keys_allocated: int = 0
    log_readable: int = 0
    staging_bytes: int = 0
    staging_position: int = 0
    segment_end: int = 0
    message_limit: int = 0
    next_id: int = 1
    first_id: int = 1
    max_body_bytes: int = 0
    max_frame_bytes: int = 0
    may_send: frozenset[int] | None = None  # topics; None: all
    leaving: frozenset[int] = frozenset()  # messages whose keys are free for what is judged or stored now

    def appended_position(self) -> int:
        return self.staging_position + self.staging_bytes

    def record(self, row: Any) -> bytes:
        """The bytes of a message's record, written or still staged."""
        position, size = int(row["position"]), int(row["record_bytes"])
        if position >= self.staging_position:
            start = position - self.staging_position
            return self.staging[start : start + size].tobytes()
        return self.log[position : position + size].tobytes()

    def stage(self, record: bytes) -> int:
        """Puts a record behind those staged already; returns its position."""
        position = self.appended_position()
        end = self.staging_bytes + padded(len(record))
        self.staging[self.staging_bytes : end] = np.frombuffer(
            record.ljust(padded(len(record)), b"\0"), np.uint8
        )
        self.staging_bytes = end
        return position

    def groups_of(self, topic_id: int) -> Iterator[int]:
        """The numbers of a topic's groups."""
        group_id = int(self.topics[topic_id]["first_group"])
        while group_id:
            yield group_id
            group_id = int(self.groups[group_id]["next_group"])

    def key_topic(self, topic_id: int) -> int:
        """The topic whose keys those of a topic's messages are: a shard's are its parent's."""
        return int(self.topics[topic_id]["parent"]) or topic_id

    def message_of(self, group_id: int, seq: int) -> Any:
        """The row of a message by its number in the group's topic."""
        return self.rows[self.arrivals[int(self.groups[group_id]["topic_id"])][seq]["id"]]

    def times_delivered(self, group: Any, row: Any) -> int:
        """How often a group was given the message of a row."""
        return max(0, int(row["epoch"]) - int(group["fence"]))

    def is_gone(self, group_id: int, seq: int) -> bool:
        """Whether nothing is known of a number of the group's topic: what was there was purged."""
        topic_id = int(self.groups[group_id]["topic_id"])
        in_table = seq < self.topics[topic_id]["allocated"] and self.arrivals[topic_id][seq]["id"]
        return not in_table or bool(self.message_of(group_id, seq)["state"] == NONE)

    def is_in_topic(self, group_id: int, seq: int) -> bool:
        """Whether the message is in its topic under this number now."""
        row = self.message_of(group_id, seq)
        same_topic = row["topic_id"] == self.groups[group_id]["topic_id"]
        return bool(row["state"] == READY and row["topic_seq"] == seq and same_topic)

    def is_open(self, group_id: int, seq: int) -> bool:
        """Whether, besides, the group is not done with it."""
        done = self.deliveries[group_id][seq]["state"] in (ACKED, DEAD)
        return not done and self.is_in_topic(group_id, seq)

    def is_open_topic(self, topic_id: int) -> bool:
        """Whether messages can be sent to it: a shard gets them through its parent."""
        return self.has_topic(topic_id) and not self.topics[topic_id]["parent"]

    def has_topic(self, topic_id: int) -> bool:
        return topic_id < len(self.topics) and bool(self.topics[topic_id]["exists"])
