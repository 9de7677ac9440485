"""Looking: counters, topics, the wheel's picture, the state hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import store as native_store
from timerlog.commitlog.records import TopicRecord
from timerlog.engine.groups import Groups
from timerlog.engine.state import Engine
from timerlog.engine.topics import Topics
from timerlog.layout import ROW, Int64Array, MessageState, UInt64Array
from timerlog.names import shard_name
from timerlog.settings import effective_settings
from timerlog.tables.lateness import LatenessOf
from timerlog.tables.tables import by_topic
from timerlog.wheel.forecast import WheelPicture

_HASH_ROWS: Final = 262_144
#: What groups were always, before they could be otherwise: hashes of then still hold.
_AS_BEFORE: Final = ", ignores_order=False"
_OF_TOPICS: Final = ("messages", "scheduled", "ready", "cancelled")
_OF_GROUPS: Final = {
    "delivered": "deliveries",
    "acked": "acked",
    "leased": "leased",
    "dead": "dead",
    "backlog": "pending",
}
_IN_STATS: Final = (*_OF_TOPICS, "delivered", "acked", "leased")


class Look:
    """Tells of everything, and changes nothing."""

    def __init__(self, engine: Engine, topics: Topics, groups: Groups) -> None:
        self._engine, self._topics, self._groups = engine, topics, groups
        self._tables, self._native = engine.tables, engine.native
        self._topic_fields = native_store.topic_columns(engine.tables.native, ("exists", *_OF_TOPICS))
        self._group_fields = native_store.group_columns(
            engine.tables.native, ("exists", *_OF_GROUPS.values())
        )

    def stats(self, now_ms: int, disk_bytes: int | None = None) -> dict[str, int]:
        """Counts over everything; see docs/protocol.md, STATS_OK. ``disk_bytes``: if it was counted before."""
        totals = self.totals()
        return {
            "now_ms": now_ms,
            "tick_ms": self._engine.wheel.tick_ms,
            **{name: totals[name] for name in _IN_STATS},
            "topics": len(self._tables.topics),
            "groups": len(self._tables.groups),
            "appended_bytes": self._engine.log.appended_position,
            "durable_bytes": self._engine.log.durable_position,
            "disk_bytes": sum(self.disk_sizes()) if disk_bytes is None else disk_bytes,
            "syncs": self._engine.log.syncs,
        }

    def totals(self) -> dict[str, int]:
        """Counts of all topics and groups together, at once for all of them; see ``tickwheel.stats.FigureTotals``."""
        tables = self._tables
        topics, groups = slice(tables.last_topic_id + 1), slice(tables.last_group_id + 1)
        are_topics, are_groups = (
            self._topic_fields["exists"][topics] > 0,
            self._group_fields["exists"][groups] > 0,
        )
        return (
            {name: int(self._topic_fields[name][topics][are_topics].sum()) for name in _OF_TOPICS}
            | {
                name: int(self._group_fields[field][groups][are_groups].sum())
                for name, field in _OF_GROUPS.items()
            }
            | {"redelivered": self._groups.redelivered.total()}
        )

    def disk_sizes(self) -> Iterator[int]:
        """What all files occupy, one number after the other: there may be thousands."""
        yield self._engine.spare.size_bytes + self._engine.reserve.size_bytes
        yield self._engine.log.disk_bytes()
        yield self._engine.wheel.disk_bytes()
        yield from self._tables.disk_sizes()

    def topics(self) -> list[dict[str, Any]]:
        """One entry a topic; see docs/protocol.md, TOPICS_OK."""
        return [self.topic_entry(topic_id) for topic_id in self._tables.topics]

    def purged_messages(self, topic_id: int) -> int:
        """How many messages of a topic, its shards included, were purged."""
        return sum(
            int(self._native.topics[part].purged_messages) for part in self._topics.shards_of(topic_id)
        )

    def groups_of(self, topic: str) -> list[int]:
        """The groups of a topic and of its shards. Raises ``UnknownTopic``."""
        topic_id = self._topics.record(topic).topic_id
        parts = {topic_id, *self._topics.shards_of(topic_id)}
        return [group_id for part in parts for group_id in self._tables.topics[part].groups.values()]

    def describe_topic(self, topic: str) -> dict[str, Any]:
        """A topic's settings, its own and those that hold, and its shards; docs/protocol.md, GET_TOPIC_OK. Raises
        ``UnknownTopic``."""
        return self.describe(self._topics.record(topic))

    def describe(self, record: TopicRecord) -> dict[str, Any]:
        """The same for what a topic will be as soon as its record is written."""
        known = record.topic_id in self._tables.topics
        counts = (
            [self._native.topics[part] for part in self._topics.shards_of(record.topic_id)] if known else []
        )
        return {
            "name": record.name,
            "topic_id": record.topic_id,
            "created_ms": record.created_ms,
            "paused": record.paused,
            "shards": [shard_name(i, record.shards) for i in range(record.shards)],
            "settings": msgspec.to_builtins(record.settings),
            "effective": effective_settings(record.settings, self._engine.settings),
            "messages": sum(int(count.messages) for count in counts),
            "scheduled": sum(int(count.scheduled) for count in counts),
            "ready": sum(int(count.ready) for count in counts),
        }

    def topic_entry(self, topic_id: int) -> dict[str, Any]:
        """A topic with its groups."""
        groups = self._tables.topics[topic_id].groups.values()
        return self.topic_counts(topic_id) | {"groups": [self._groups.describe(one) for one in groups]}

    def topic_counts(self, topic_id: int) -> dict[str, Any]:
        """A topic with shards counts what they hold together; each of them has an entry of its own as well."""
        topic = self._tables.topics[topic_id]
        counts = [self._native.topics[part] for part in self._topics.shards_of(topic_id)]
        parent = self._tables.topics.get(topic.record.parent)
        return {
            "name": topic.record.name,
            "topic_id": topic_id,
            "shard_of": parent.record.name if parent is not None else "",
            "paused": topic.record.paused,
            "messages": sum(int(count.messages) for count in counts),
            "scheduled": sum(int(count.scheduled) for count in counts),
            "ready": sum(int(count.ready) for count in counts),
            "cancelled": sum(int(count.cancelled) for count in counts),
        }

    def lateness_ms(self, ids: UInt64Array, now_ms: int) -> Int64Array:
        """By how much it is past the time of messages; one sent with a time in the past was due when it came."""
        messages = self._tables.messages
        due_ms = self._engine.spread(messages.take(ids, "deliver_at_ms"), ids)
        late_ms: Int64Array = now_ms - np.maximum(due_ms, messages.take(ids, "created_ms"))
        return np.maximum(late_ms, 0)

    def lateness_of_topics(self) -> LatenessOf:
        """An empty histogram of each."""
        return LatenessOf(self._tables.topics)

    def count_lateness(self, into: LatenessOf, ids: UInt64Array, now_ms: int) -> None:
        """Adds to the histograms of their topics by how much it is past the time of messages."""
        if not len(ids):
            return
        parts = by_topic(self._tables.messages.take(ids, "topic_id"))
        for topic_id, part in parts:
            of_topic = ids if len(parts) == 1 else ids[part]
            into.take_of(topic_id, self._native, 0, np.ascontiguousarray(of_topic), None, now_ms)

    def shards_of(self, topic_id: int) -> list[int]:
        """The topics that hold the messages of one: its shards, or itself."""
        return list(self._topics.shards_of(topic_id))

    def wheel_picture(self, now_ms: int, horizons_ms: Sequence[int] | None = None) -> WheelPicture:
        """Occupied slots by level and what is due when; see docs/protocol.md, WHEEL_OK. It is begun, and counts while
        it is stepped."""
        return WheelPicture(self._native, self._engine.wheel, now_ms, horizons_ms)

    def state_hash(self) -> str:
        """A SHA-256 over everything that the log determines: a replay of the log gives the same."""
        digest = hashlib.sha256()
        digest.update(msgspec.msgpack.encode(self._tables.answers.dump()))
        for start, stop in self._tables.spans(int(self._native.first_id), self._tables.next_id, _HASH_ROWS):
            rows = self._tables.rows[start:stop]
            there = np.flatnonzero(rows["state"])
            digest.update((there + start).data)
            for field in ROW.names or ():
                digest.update(np.ascontiguousarray(rows[field][there]).data)
        for name, content in sorted(self._tables.documents.items()):
            digest.update(name.encode() + b"\0" + content)
        for topic_id in sorted(self._tables.topics):
            topic, counts = self._tables.topics[topic_id], self._native.topics[topic_id]
            record = str(topic.record).replace(", maker=''", "")  # as it was before there were makers
            digest.update(f"{record} {counts.count} {counts.messages} {counts.cancelled}".encode())
            first, end = int(counts.first_seq), int(counts.count)
            seqs, ids = self._arrivals(topic_id, topic.arrivals.items["id"][first:end], first)
            digest.update(seqs.data)
            digest.update(ids.data)
        for group_id in sorted(self._tables.groups):
            self._hash_group(digest, group_id)
        digest.update(repr(list(self._tables.free_groups.items())).encode())
        digest.update(repr(self._tables.name_fences.dump()).encode())
        if self._tables.topics_made:
            digest.update(repr(sorted(self._tables.topics_made.items())).encode())
        if self._tables.timeline:
            digest.update(repr((self._tables.timeline, self._tables.epoch_floor)).encode())
        return digest.hexdigest()

    def _arrivals(
        self, topic_id: int, ids: npt.NDArray[np.uint64], first_seq: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Number and id of what is in a topic: not of what was purged, or given another time and comes again."""
        rows = self._tables.messages.take(ids)
        seqs = np.arange(first_seq, first_seq + len(ids), dtype=np.uint64)
        there = (
            (rows["state"] == MessageState.READY)
            & (rows["topic_seq"] == seqs)
            & (rows["topic_id"] == topic_id)
        )
        return seqs[there], ids[there]

    def _hash_group(self, digest: Any, group_id: int) -> None:
        group, counts = self._tables.groups[group_id], self._native.groups[group_id]
        record = str(group.record).replace(_AS_BEFORE, "")
        digest.update(f"{record} {counts.deliveries} {counts.acked}".encode())
        first = int(self._native.topics[group.record.topic_id].first_seq)
        rows = group.deliveries.items[first : min(counts.high_seq, group.deliveries.capacity)]
        touched = np.flatnonzero(rows["state"])
        digest.update((touched + first).data)
        for field in ("time_ms", "epoch", "base_epoch", "state"):
            digest.update(np.ascontiguousarray(rows[field][touched]).data)
