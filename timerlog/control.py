"""Cancelling, rescheduling, finding and looking."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from native import ffi, lib
from timerlog.core import MESSAGE_TIMER
from timerlog.delivering import Delivering
from timerlog.errors import BadTime
from timerlog.layout import MAX_TIME_MS, ROW, RUN, DocumentRecord, MessageState, RecordType

_SECOND_MS: Final = 1_000
FORECAST: Final = (
    ("second", _SECOND_MS),
    ("minute", 60 * _SECOND_MS),
    ("hour", 3_600 * _SECOND_MS),
    ("day", 86_400 * _SECOND_MS),
    ("week", 7 * 86_400 * _SECOND_MS),
    ("month", 30 * 86_400 * _SECOND_MS),
    ("later", MAX_TIME_MS),
)
_HASH_ROWS: Final = 262_144


class Control(Delivering):
    # -- changing --

    def find(self, topic: str, keys: Sequence[str]) -> list[int]:
        """The ids of the messages with these keys; 0 where there is none."""
        topic_id = self.tables.topic_ids.get(topic)
        if topic_id is None:
            return [0] * len(keys)
        return [self._find(topic_id, key.encode()) for key in keys]

    def _find(self, topic_id: int, key: bytes) -> int:
        return (
            int(lib.tw_keys_find(self._native, topic_id, ffi.from_buffer("uint8_t[]", key), len(key)))
            if key
            else 0
        )

    def _refusal(self, message_id: int) -> str | None:
        """Why a message can no longer be changed; None when it can."""
        if not 0 < message_id < self.tables.next_id:
            return "not_found"
        match int(self.tables.rows["state"][message_id]):
            case MessageState.SCHEDULED | MessageState.READY:
                return None if self.is_untouched(message_id) else "already_delivered"
            case MessageState.CANCELLED:
                return "already_cancelled"
            case _:
                return "not_found"

    def cancel(self, ids: Sequence[int], now_ms: int) -> list[str]:
        """Cancels messages that no subscriber was given yet. An answer for each: ``cancelled``,
        ``already_delivered``, ``already_cancelled`` or ``not_found``. A cancelled message frees its key."""
        results = []
        chosen: dict[int, None] = {}
        for message_id in ids:
            refusal = "already_cancelled" if message_id in chosen else self._refusal(message_id)
            results.append(refusal or "cancelled")
            if refusal is None:
                chosen[message_id] = None
        if chosen:
            self._cancel(np.fromiter(chosen, np.uint64, len(chosen)))
        return results

    def _cancel(self, ids: np.ndarray) -> None:
        self._append(RecordType.CANCEL, 0, ids.tobytes())
        rows = self.tables.rows
        for message_id in ids.tolist():
            topic = self._native.topics[int(rows["topic_id"][message_id])]
            topic.cancelled += 1
            if rows["state"][message_id] == MessageState.READY:
                topic.ready -= 1
            else:
                topic.scheduled -= 1
            if rows["key_hash"][message_id]:
                lib.tw_keys_remove(self._native, message_id)
        self._applier.set_state(ids, MessageState.CANCELLED)

    def reschedule(self, ids: Sequence[int], deliver_at_ms: int, now_ms: int) -> list[str]:
        """Gives messages that have not reached their topic another time. An answer for each: ``rescheduled``,
        ``already_delivered``, ``already_cancelled`` or ``not_found``. Raises ``BadTime``, ``DiskFull``."""
        if not 0 <= deliver_at_ms <= MAX_TIME_MS:
            raise BadTime(f"{deliver_at_ms} is not between 0 and {MAX_TIME_MS}")
        rows = self.tables.rows
        results = []
        chosen: dict[int, None] = {}
        for message_id in ids:
            refusal = self._refusal(message_id)
            if refusal is None and rows["state"][message_id] == MessageState.READY:
                refusal = "already_delivered"
            results.append(refusal or "rescheduled")
            if refusal is None:
                chosen[message_id] = None
        if chosen:
            self._reschedule(np.fromiter(chosen, np.uint64, len(chosen)), deliver_at_ms, now_ms)
        return results

    def _reschedule(self, ids: np.ndarray, deliver_at_ms: int, now_ms: int) -> None:
        runs = np.zeros(len(ids), RUN)
        runs["first"], runs["count"], runs["time_ms"] = ids, 1, deliver_at_ms
        # Versions wrap at 16 bits: a timer would have to be 65,536 reschedules old to be taken for the newest one.
        runs["epoch"] = (self.tables.rows["version"][ids] + np.uint16(1)).astype(np.uint16)
        linked = ids < self._enqueued_id  # the others get on the wheel by EnqueuePut, with their new time
        self.wheel.advance(now_ms)
        self.wheel.link(
            runs["time_ms"][linked], ids[linked], runs["epoch"][linked],
            np.full(int(linked.sum()), MESSAGE_TIMER, np.uint32),
        )  # fmt: skip
        self._append_runs(RecordType.RESCHEDULE, 0, runs)
        self._applier.reschedule(runs)

    def put_document(self, name: str, content: bytes | None) -> None:
        """Keeps a small document under a name, or deletes it (``None``). It may be relied on once the log is durable.
        Raises ``DiskFull``."""
        record = DocumentRecord(name, content)
        self._append(RecordType.DOCUMENT, 0, msgspec.msgpack.encode(record))
        self._applier.document(record)

    # -- looking --

    def stats(self, now_ms: int) -> dict[str, int]:
        """Counts over everything; see docs/protocol.md, STATS_OK."""
        topics = [self._native.topics[topic_id] for topic_id in self.tables.topics]
        groups = [self._native.groups[group_id] for group_id in self.tables.groups]
        return {
            "now_ms": now_ms,
            "tick_ms": self.wheel.tick_ms,
            "messages": sum(t.messages for t in topics),
            "scheduled": sum(t.scheduled for t in topics),
            "ready": sum(t.ready for t in topics),
            "cancelled": sum(t.cancelled for t in topics),
            "delivered": sum(g.deliveries for g in groups),
            "acked": sum(g.acked for g in groups),
            "leased": sum(g.leased for g in groups),
            "topics": len(topics),
            "groups": len(groups),
            "appended_bytes": self.log.appended_position,
            "durable_bytes": self.log.durable_position,
            "disk_bytes": self.disk_bytes(),
            "syncs": self.log.syncs,
        }

    def disk_bytes(self) -> int:
        return self.log.disk_bytes() + self.tables.disk_bytes() + self.wheel.disk_bytes()

    def topics(self) -> list[dict[str, Any]]:
        """One entry a topic; see docs/protocol.md, TOPICS_OK."""
        return [self._topic_entry(topic_id) for topic_id in self.tables.topics]

    def _topic_entry(self, topic_id: int) -> dict[str, Any]:
        topic, counts = self.tables.topics[topic_id], self._native.topics[topic_id]
        in_topic = int(counts.ready)
        return {
            "name": topic.record.name,
            "topic_id": topic_id,
            "messages": int(counts.messages),
            "scheduled": int(counts.scheduled),
            "ready": in_topic,
            "groups": [
                self._group_entry(name, group_id, in_topic) for name, group_id in topic.groups.items()
            ],
        }

    def _group_entry(self, name: str, group_id: int, in_topic: int) -> dict[str, Any]:
        group = self._native.groups[group_id]
        return {
            "name": name,
            "group_id": group_id,
            "delivered": int(group.deliveries),
            "acked": int(group.acked),
            "leased": int(group.leased),
            "backlog": max(0, in_topic - int(group.acked)),
        }

    def wheel_picture(self, now_ms: int) -> dict[str, Any]:
        """Occupied slots by level and what is due when; see docs/protocol.md, WHEEL_OK."""
        horizons = [horizon for _, horizon in FORECAST]
        counts = self.wheel.forecast(now_ms, [min(horizon, MAX_TIME_MS - now_ms) for horizon in horizons])
        forecast = [
            {"label": label, "until_ms": min(now_ms + horizon, MAX_TIME_MS), "timers": timers}
            for (label, horizon), timers in zip(FORECAST, counts, strict=True)
        ]
        return {
            "tick_ms": self.wheel.tick_ms,
            "now_ms": now_ms,
            "levels": self.wheel.picture(),
            "forecast": forecast,
        }

    def state_hash(self) -> str:
        """A SHA-256 over everything that the log determines: a replay of the log gives the same."""
        digest = hashlib.sha256()
        for start in range(1, self.tables.next_id, _HASH_ROWS):
            rows = self.tables.rows[start : min(start + _HASH_ROWS, self.tables.next_id)]
            for field in ROW.names or ():
                digest.update(np.ascontiguousarray(rows[field]).data)
        for name, content in sorted(self.tables.documents.items()):
            digest.update(name.encode() + b"\0" + content)
        for topic_id in sorted(self.tables.topics):
            topic, counts = self.tables.topics[topic_id], self._native.topics[topic_id]
            digest.update(f"{topic.record} {counts.count} {counts.messages} {counts.cancelled}".encode())
            digest.update(np.ascontiguousarray(topic.arrivals.items["id"][: counts.count]).data)
        for group_id in sorted(self.tables.groups):
            self._hash_group(digest, group_id)
        return digest.hexdigest()

    def _hash_group(self, digest: Any, group_id: int) -> None:
        group, counts = self.tables.groups[group_id], self._native.groups[group_id]
        digest.update(f"{group.record} {counts.deliveries} {counts.acked}".encode())
        rows = group.deliveries.items[: counts.high_seq]
        for field in ("time_ms", "epoch", "state"):
            digest.update(np.ascontiguousarray(rows[field]).data)
