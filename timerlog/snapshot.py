"""Reading a data directory's tables from another process while the broker goes on: nothing is locked, nothing written.

The broker says what there is (`describe`); the files are mapped read-only. Rows are read as they are at that moment: a
message that changes meanwhile is seen before or after its change, never torn, because each field is one aligned word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from timerlog.layout import (
    DELIVERY,
    HEADER_BYTES,
    MESSAGE_HEAD_BYTES,
    ROW,
    DeliveryState,
    MessageState,
)
from timerlog.store import Store

PART: Final = 65_536
_STATES: Final = ("", "scheduled", "ready", "cancelled", "damaged", "expired")
_GROUP_STATES: Final = ("ready", "leased", "acked", "waiting", "dead")
NO_TIME: Final = np.iinfo(np.int64).min

Array = npt.NDArray[Any]


class GroupShape(msgspec.Struct, frozen=True):
    group_id: int
    name: str
    start_seq: int
    rows: int  #: allocated ones


class TopicShape(msgspec.Struct, frozen=True):
    topic_id: int
    name: str  #: a shard has that of its topic
    groups: list[GroupShape]


class Shape(msgspec.Struct, frozen=True):
    """What there is in a directory."""

    directory: str
    segment_bytes: int
    next_id: int
    now_ms: int
    topics: list[TopicShape]


def describe(store: Store, now_ms: int) -> Shape:
    """What a reader needs to know of a store. What is staged is handed to the operating system first."""
    store.log.flush()
    tables = store.tables
    topics = []
    for topic_id, topic in tables.topics.items():
        parent = tables.topics.get(topic.record.parent)
        groups = [
            GroupShape(group_id, name, group.record.start_seq, int(tables.native.groups[group_id].allocated))
            for name, group_id in topic.groups.items()
            for group in (tables.groups[group_id],)
        ]
        if not topic.record.shards:
            topics.append(TopicShape(topic_id, (parent or topic).record.name, groups))
    return Shape(str(tables.directory), store.log.segment_bytes, tables.next_id, now_ms, topics)


@dataclass(frozen=True, slots=True)
class Part:
    """Some messages of a topic, once for each of its groups; all arrays have the same length. Times are epoch ms,
    NO_TIME for none."""

    group: str | None
    ids: Array
    rows: Array
    states: Array  # indexes of names
    state_names: tuple[str, ...]
    epochs: Array
    attempts: Array
    next_ms: Array
    acked_ms: Array


class Snapshot:
    """A directory, opened for reading."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._directory = Path(shape.directory)
        self.rows = _mapped(self._directory / "messages.table", ROW, shape.next_id)
        self._deliveries = {
            (topic.topic_id, group.group_id): _mapped(
                self._directory / f"topics/{topic.topic_id}-{group.group_id}.deliveries", DELIVERY, group.rows
            )
            for topic in shape.topics
            for group in topic.groups
        }
        self._segments: dict[int, Array] = {}

    def parts(self, topic: TopicShape) -> Iterator[Part]:
        """All messages of a topic, some at a time."""
        for start in range(1, self.shape.next_id, PART):
            rows = np.array(self.rows[start : min(start + PART, self.shape.next_id)])
            found = np.flatnonzero(
                (rows["topic_id"] == topic.topic_id) & (rows["state"] != MessageState.NONE)
            )
            if not len(found):
                continue
            ids, rows = (found + start).astype(np.int64), rows[found]
            for group in topic.groups or (None,):
                yield self._part(topic, group, ids, rows)

    def _part(self, topic: TopicShape, group: GroupShape | None, ids: Array, rows: Array) -> Part:
        state = rows["state"].astype(np.uint8)
        due_ms = rows["deliver_at_ms"]
        waits = (state == MessageState.SCHEDULED) | (state == MessageState.READY)
        next_ms = np.where(waits, due_ms, NO_TIME)
        acked_ms = np.full(len(ids), NO_TIME)
        epochs = np.zeros(len(ids), np.int64)
        attempts = np.zeros(len(ids), np.int64)
        names = (*_STATES, *_GROUP_STATES)
        if group is not None:
            seqs = rows["topic_seq"]
            known = (state != MessageState.SCHEDULED) & (seqs < group.rows) & (seqs >= group.start_seq)
            deliveries = self._deliveries[topic.topic_id, group.group_id][np.where(known, seqs, 0)]
            of_group = np.where(known, deliveries["state"], 0)
            epochs = np.where(known, deliveries["epoch"], 0).astype(np.int64)
            attempts = epochs - np.where(known, deliveries["base_epoch"], 0)
            ended = (of_group == DeliveryState.LEASED) & (
                (deliveries["time_ms"] <= self.shape.now_ms) | (deliveries["flags"] & 1 != 0)
            )
            of_group = np.where(ended, DeliveryState.WAITING, of_group)
            in_topic = state == MessageState.READY
            out = in_topic & np.isin(of_group, [DeliveryState.LEASED, DeliveryState.WAITING])
            done = in_topic & np.isin(of_group, [DeliveryState.ACKED, DeliveryState.DEAD])
            next_ms = np.where(out, deliveries["time_ms"], np.where(done, NO_TIME, next_ms))
            acked_ms = np.where(in_topic & (of_group == DeliveryState.ACKED), deliveries["time_ms"], NO_TIME)
            state = np.where(in_topic, of_group + len(_STATES), state).astype(np.uint8)
        name = None if group is None else group.name
        return Part(name, ids, rows, state, names, epochs, attempts, next_ms, acked_ms)

    def contents(self, part: Part) -> Iterator[tuple[bytes, bytes, bytes, bytes] | None]:
        """(key, headers, ordering key, body) of each message; None for one that is gone, or damaged."""
        sizes = part.rows["record_bytes"].tolist()
        positions = part.rows["position"].tolist()
        for message_id, position, size in zip(part.ids.tolist(), positions, sizes, strict=True):
            yield self._content(message_id, position, size)

    def _content(self, message_id: int, position: int, size: int) -> tuple[bytes, bytes, bytes, bytes] | None:
        base = position // self.shape.segment_bytes * self.shape.segment_bytes
        segment = self._segment(base)
        record = segment[position - base : position - base + size].tobytes()
        if len(record) < MESSAGE_HEAD_BYTES or int.from_bytes(record[16:24], "little") != message_id:
            return None
        key_end = MESSAGE_HEAD_BYTES + int.from_bytes(record[40:42], "little")
        headers_end = key_end + int.from_bytes(record[42:44], "little")
        order_end = headers_end + int.from_bytes(record[10:12], "little")
        return (
            record[MESSAGE_HEAD_BYTES:key_end],
            record[key_end:headers_end],
            record[headers_end:order_end],
            record[order_end:],
        )

    def _segment(self, base: int) -> Array:
        if base not in self._segments:
            path = self._directory / "commitlog" / f"{base:020d}.log"
            try:
                self._segments[base] = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError):
                self._segments[base] = np.empty(0, np.uint8)
        return self._segments[base]


def _mapped(path: Path, dtype: np.dtype[Any], count: int) -> Array:
    if count == 0:
        return np.zeros(1, dtype)
    return np.memmap(path, dtype, "r", HEADER_BYTES, (count,))
