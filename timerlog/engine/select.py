"""Which messages are meant, by key or by a filter, and what is told of them. Filters are vectorised over the tables, in
parts, so that a caller can do other work between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickwheel_native import keys
from timerlog.commitlog.records import MessageView
from timerlog.engine.state import Engine
from timerlog.engine.topics import Topics
from timerlog.errors import UnknownGroup
from timerlog.layout import IN_A_CHAIN, DeliveryState, MessageState, UInt64Array
from timerlog.tables.tables import Tables, Topic

PART: Final = 65_536
_FOREVER_MS: Final = (1 << 63) - 1
_TOP_PRIORITY: Final = 255

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Filter:
    """``states``: scheduled, ready, leased, waiting, acked, dead; None: any of them. Times in epoch ms; upper bounds
    are exclusive. ``done``: when it was acked, or dead. That, ``epoch_min`` and the states after ``ready`` hold if any
    group (or ``group``) has them."""

    states: frozenset[str] | None = None
    due_from_ms: int = 0
    due_until_ms: int = _FOREVER_MS
    created_from_ms: int = 0
    created_until_ms: int = _FOREVER_MS
    done_from_ms: int = 0
    done_until_ms: int = _FOREVER_MS
    priority_min: int = 0
    priority_max: int = _TOP_PRIORITY
    epoch_min: int = 0
    group: str | None = None

    @property
    def bounds(self) -> Iterator[tuple[str, int, int]]:
        """What a row of the messages' table must have: in which column, from where on, and where that ends. Those that
        all rows have are left out."""
        for name, least, end in (
            ("deliver_at_ms", self.due_from_ms, self.due_until_ms),
            ("created_ms", self.created_from_ms, self.created_until_ms),
        ):
            if least > 0 or end < _FOREVER_MS:
                yield name, least, end
        if self.priority_min > 0 or self.priority_max < _TOP_PRIORITY:
            yield "priority", self.priority_min, self.priority_max + 1

    @property
    def is_of_delivered(self) -> bool:
        """Whether it means only messages that some group was given."""
        return self.epoch_min > 0 or self.done_from_ms > 0 or self.done_until_ms < _FOREVER_MS


class Select:
    """Looks for messages."""

    def __init__(self, engine: Engine, topics: Topics) -> None:
        self._engine, self._tables, self._topics = engine, engine.tables, topics

    def find(self, topic: str, keys: Sequence[str]) -> list[int]:
        """The ids of the messages with these keys; 0 where there is none."""
        topic_id = self._tables.topic_ids.get(topic)
        if topic_id is None:
            return [0] * len(keys)
        return [self.find_key(topic_id, key.encode()) for key in keys]

    def find_key(self, topic_id: int, key: bytes) -> int:
        """The id of the message with this key; 0: there is none."""
        if not key:
            return 0
        return keys.find(self._engine.native, topic_id, key)

    def matching(
        self, topic_id: int, wanted: Filter, now_ms: int, after_id: int = 0
    ) -> Iterator[UInt64Array]:
        """The ids that are meant, in parts (some may be empty); what changes in between counts as of its part, also
        that the topic is deleted. Raises ``UnknownGroup``."""
        if topic_id not in self._tables.topics:
            return
        topics = self._topics.shards_of(topic_id)
        if wanted.group is not None and not any(
            wanted.group in self._tables.topics[t].groups for t in topics
        ):
            raise UnknownGroup(f"the topic has no group {wanted.group!r}")
        first_id = max(after_id + 1, int(self._engine.native.first_id))
        for start, stop in self._tables.spans(first_id, self._tables.next_id, PART):
            yield self._select_part(topics, wanted, now_ms, start, stop)

    def soonest(self, ids: UInt64Array, after: tuple[int, int], limit: int) -> UInt64Array:
        """Of these the first ``limit`` in order of their times and ids, behind a time and an id."""
        due_ms = self._tables.messages.take(ids, "deliver_at_ms")
        after_ms, after_id = after
        behind = (due_ms > after_ms) | ((due_ms == after_ms) & (ids > after_id))
        ids, due_ms = ids[behind], due_ms[behind]
        chosen: UInt64Array = ids[np.lexsort((ids, due_ms))[:limit]]
        return chosen

    def _select_part(
        self, topics: Sequence[int], wanted: Filter, now_ms: int, start: int, stop: int
    ) -> UInt64Array:
        rows = self._tables.messages.between(start, stop)
        there = [topic_id for topic_id in topics if topic_id in self._tables.topics]
        # Most messages are of other topics: the rest is only asked of those that are left, and where it says something.
        of_topic = rows["topic_id"]
        found: npt.NDArray[np.intp] = np.flatnonzero(
            of_topic == there[0] if len(there) == 1 else np.isin(of_topic, there)
        )
        state = rows["state"][found]
        found = found[(state == MessageState.SCHEDULED) | (state == MessageState.READY)]
        for name, least, end in wanted.bounds:
            values = rows[name][found]
            found = found[(values >= least) & (values < end)]
        if wanted.states is not None or wanted.is_of_delivered or wanted.group is not None:
            # Whole rows by an index: `take` is many times as fast as brackets.
            found = found[self._match_deliveries(rows.take(found), wanted, now_ms)]
        ids: UInt64Array = (found + start).astype(np.uint64)
        return ids

    def _match_deliveries(self, rows: npt.NDArray[Any], wanted: Filter, now_ms: int) -> Mask:
        in_topic = rows["state"] == MessageState.READY
        states = wanted.states
        matches: Mask = ~in_topic & (states is None or "scheduled" in states) & (not wanted.is_of_delivered)
        if wanted.group is not None and states is None:
            matches[:] = False
        for topic_id in np.unique(rows["topic_id"][in_topic]).tolist():
            mine = np.flatnonzero(in_topic & (rows["topic_id"] == topic_id))
            groups = self._tables.topics[topic_id].groups
            if not groups:
                matches[mine] = (states is None or "ready" in states) and not wanted.is_of_delivered
            for name, group_id in groups.items():
                if wanted.group in (None, name):
                    matches[mine] |= self._match_group(group_id, rows["topic_seq"][mine], wanted, now_ms)
        return matches

    def _match_group(self, group_id: int, seqs: UInt64Array, wanted: Filter, now_ms: int) -> Mask:
        names, times = delivery_states(self._tables, group_id, seqs, now_ms)
        known: Mask = (times >= wanted.epoch_min) & (seqs >= self._tables.groups[group_id].record.start_seq)
        if wanted.states is not None:
            known &= np.isin(names, [STATES.index(name) for name in wanted.states if name in STATES])
        if wanted.done_from_ms > 0 or wanted.done_until_ms < _FOREVER_MS:
            known[known] &= self._were_done(group_id, seqs[known], names[known], wanted)
        return known

    def _were_done(
        self, group_id: int, seqs: UInt64Array, names: npt.NDArray[np.uint8], wanted: Filter
    ) -> Mask:
        done: Mask = np.isin(names, _DONE)
        times_ms = self._tables.groups[group_id].deliveries.take_reached(seqs, "time_ms")
        return done & (times_ms >= wanted.done_from_ms) & (times_ms < wanted.done_until_ms)

    def browse(self, ids: UInt64Array, now_ms: int, max_body_bytes: int) -> list[dict[str, Any]]:
        """Messages that were selected, with their content; bodies are cut to ``max_body_bytes``. Those that have been
        purged since are left out."""
        there = self._there(ids)
        self._want(there)
        return [self._entry(message_id, now_ms, max_body_bytes) for message_id in there.tolist()]

    def heal(self, ids: UInt64Array) -> None:
        """Messages that another process has found damaged, if they are there and it is so: as ``browse``."""
        self._want(self._there(ids[ids < self._tables.next_id]))

    def _there(self, ids: UInt64Array) -> UInt64Array:
        assert int(ids.max(initial=0)) < self._tables.next_id, "only messages that were accepted are selected"
        states = self._tables.messages.take(ids, "state")
        there: UInt64Array = ids[(states == MessageState.SCHEDULED) | (states == MessageState.READY)]
        return there

    def _want(self, ids: UInt64Array) -> None:
        """Where the log is a copy, what is damaged in it is had again."""
        if self._engine.healer is not None:
            self._engine.are_lost(self._engine.damaged(ids))

    def _entry(self, message_id: int, now_ms: int, max_body_bytes: int) -> dict[str, Any]:
        row, view = self._tables.rows[message_id], MessageView.read(self._engine.native, message_id)
        in_topic = row["state"] == MessageState.READY
        seqs = np.array([row["topic_seq"]], np.uint64)
        groups = []
        for name, group_id in self._tables.topics[view.topic_id].groups.items() if in_topic else ():
            states, times = delivery_states(self._tables, group_id, seqs, now_ms)
            is_its_own = seqs[0] >= self._tables.groups[group_id].record.start_seq
            state = STATES[states[0]] if is_its_own else _NOT_ITS_OWN
            groups.append({"group": name, "state": state, "epoch": int(times[0])})
        return {
            "id": message_id,
            "key": view.key.decode(errors="replace"),
            "order_key": view.order.decode(errors="replace"),
            "priority": view.priority,
            "state": "ready" if in_topic else "scheduled",
            "deliver_at_ms": view.deliver_at_ms,
            "created_ms": view.created_ms,
            "groups": groups,
            "headers": view.headers,
            "body": view.body[:max_body_bytes],
            "body_bytes": len(view.body),
        }

    def topic_of(self, message_id: int) -> Topic | None:
        """The topic, or the shard, of a message; None: it is not there, or not any more."""
        if not 0 < message_id < self._tables.next_id:
            return None
        row = self._tables.messages.at(message_id)
        return self._tables.topics.get(int(row["topic_id"])) if int(row["state"]) in _MESSAGE_STATES else None

    def message(self, message_id: int, now_ms: int, max_body_bytes: int) -> dict[str, Any] | None:
        """One message with how far each group is with it; None: it is not there, or not any more."""
        topic = self.topic_of(message_id)
        if topic is None:
            return None
        row = self._tables.rows[message_id]
        parent = self._tables.topics.get(topic.record.parent)
        self._want(np.array([message_id], np.uint64))
        entry = self._entry(message_id, now_ms, max_body_bytes) | {
            "topic": topic.record.name if parent is None else parent.record.name,
            "state": _MESSAGE_STATES[int(row["state"])],
        }
        for group in entry["groups"]:
            group.update(self._standing(topic.groups[group["group"]], int(row["topic_seq"])))
        return entry

    def _standing(self, group_id: int, seq: int) -> dict[str, Any]:
        """What more is told of one message in a group."""
        group = self._tables.groups[group_id]
        standing = {"group_id": group_id, "attempts": 0, "until_ms": 0, "done_ms": 0}
        if seq < group.record.start_seq:
            return standing
        if seq >= int(self._engine.native.groups[group_id].allocated):
            return standing
        row = group.deliveries.at(seq)
        standing["attempts"] = int(row["epoch"]) - int(row["base_epoch"])
        if row["state"] in (DeliveryState.LEASED, DeliveryState.WAITING):
            standing["until_ms"] = int(row["time_ms"])
        elif row["state"] in (DeliveryState.ACKED, DeliveryState.DEAD):
            standing["done_ms"] = int(row["time_ms"])
        return standing


_MESSAGE_STATES: Final[dict[int, str]] = {
    MessageState.SCHEDULED: "scheduled",
    MessageState.READY: "ready",
    MessageState.CANCELLED: "cancelled",
    MessageState.DAMAGED: "damaged",
    MessageState.EXPIRED: "expired",
}
_NOT_ITS_OWN: Final = "not_its_own"
STATES: Final = ("ready", "leased", "acked", "waiting", "dead")  # by DeliveryState
_DONE: Final = (STATES.index("acked"), STATES.index("dead"))


def delivery_states(
    tables: Tables, group_id: int, seqs: UInt64Array, now_ms: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """(index in STATES, how often they were delivered) of messages in a group; a lease that has ended counts
    as waiting."""
    rows = tables.groups[group_id].deliveries.take_reached(seqs)
    states = rows["state"].copy()
    ended = (states == DeliveryState.LEASED) & (
        (rows["time_ms"] <= now_ms) | (rows["flags"] & IN_A_CHAIN != 0)
    )
    states[ended] = DeliveryState.WAITING
    fence = np.uint32(tables.native.groups[group_id].fence)
    return states, np.where(rows["epoch"] > fence, rows["epoch"] - fence, 0).astype(np.uint32)
