"""The fifth service: into the topic."""

from __future__ import annotations

from typing import Final

import numpy as np

from tickwheel_native import delivery
from timerlog.commitlog.records import RUNS_A_RECORD, pack_put, room_for_runs
from timerlog.engine.settle import Settle
from timerlog.engine.state import Engine, LogWriter
from timerlog.layout import PUT_HEAD, MessageState, RecordType, Runs, UInt64Array
from timerlog.services.batches import ReadyBatch, not_before
from timerlog.tables.tables import by_topic
from timerlog.wheel.timers import MESSAGE_TIMER, Timers

#: After so long a record is looked at again that is being had from other machines.
HEAL_MS: Final = 100
_ALIVE: Final = (MessageState.SCHEDULED, MessageState.READY)


class DequeuePutMessage:
    """Logs and makes the move into the topic."""

    def __init__(self, engine: Engine, writer: LogWriter, settle: Settle) -> None:
        self._engine, self._writer, self._settle = engine, writer, settle
        self._tables = engine.tables

    def move(self, ready: ReadyBatch, now_ms: int) -> UInt64Array:
        """Moves messages into their topics and ended leases back to waiting, and wakes groups that got work. Returns
        the messages that it has moved.

        A message that was cancelled, rescheduled or moved since it was looked up is passed over: the state of its
        row decides, in the same step that changes it. Raises ``DiskFull``: then nothing was moved, and the same batch
        may be given again.
        """
        ids = np.empty(len(ready.ids), np.uint64)
        ids = ids[: delivery.still_scheduled(self._engine.native, ready.ids, ready.versions, ids)]
        if len(ids):
            ids = _each_once(ids)
            self._put(ids, now_ms)
        self._set_aside(ready.damaged)
        if len(ready.leases):
            self._end_leases(ready.leases, now_ms)
        if ready.healing is not None:
            self._look_up_again(ready.healing, now_ms)
        return ids

    def _set_aside(self, damaged: UInt64Array) -> None:
        """Ends damaged messages that nothing has ended since they were looked up, each once."""
        ids = np.unique(damaged)
        ids = np.ascontiguousarray(ids[np.isin(self._tables.messages.take(ids, "state"), _ALIVE)])
        if len(ids):
            self._writer.end(RecordType.DAMAGED, ids)
            states = self._tables.messages.take(ids, "state")
            assert not np.isin(states, _ALIVE).any(), "what is set aside does not come into its topic"

    def _look_up_again(self, healing: Timers, now_ms: int) -> None:
        due_ms = np.full(len(healing), now_ms + HEAL_MS, np.int64)
        self._engine.link(due_ms, healing.ref, healing.epoch, MESSAGE_TIMER)

    def _put(self, ids: UInt64Array, now_ms: int) -> None:
        assert ids.max() < self._engine.durable_next_id, "what comes into its topic is durable"
        parts = [
            (
                topic_id,
                int(self._engine.native.topics[topic_id].count),
                self._engine.runs(ids[part]).copy(),
                len(part),
            )
            for topic_id, part in by_topic(self._tables.rows["topic_id"][ids])
        ]
        assert sum(count for _, _, _, count in parts) == len(ids), "each message comes into one topic"
        for topic_id, first_seq, _, count in parts:
            self._tables.ensure_arrivals(topic_id, first_seq + count)
        room_bytes = sum(room_for_runs(len(runs), PUT_HEAD.itemsize) for _, _, runs, _ in parts)
        self._engine.log.ensure_room(room_bytes)
        tick_ms = min(self._engine.wheel.tick_ms, now_ms)
        for topic_id, first_seq, runs, _ in parts:
            self._append_put(topic_id, first_seq, tick_ms, runs)
        self._engine.log.flush()
        for topic_id, first_seq, runs, count in parts:
            topic = self._engine.native.topics[topic_id]
            scheduled, ready = int(topic.scheduled), int(topic.ready)
            self._engine.applier.put(topic_id, first_seq, tick_ms, runs)
            assert topic.count == first_seq + count, "each has a place, and its own"
            assert topic.scheduled == scheduled - count, "what has come waits for its time no more"
            assert topic.ready == ready + count, "what has come is ready"
            self._engine.changes.woken.update(self._tables.topics[topic_id].groups.values())

    def _append_put(self, topic_id: int, first_seq: int, tick_ms: int, runs: Runs) -> None:
        for start in range(0, len(runs), RUNS_A_RECORD):
            piece = runs[start : start + RUNS_A_RECORD]
            self._engine.log.append(RecordType.PUT, topic_id, pack_put(tick_ms, first_seq, piece))
            first_seq += delivery.runs_values(piece)

    def _end_leases(self, leases: Timers, now_ms: int) -> None:
        for group_id in np.unique(leases.owner).tolist():
            if group_id not in self._tables.groups:
                continue
            part = leases.where(leases.owner == group_id)
            if self._settle.lapse(group_id, part.ref, part.epoch, not_before(part, now_ms)):
                self._engine.changes.woken.add(group_id)


def _each_once(ids: UInt64Array) -> UInt64Array:
    """A message has two timers that are alike where its topic got another spread and the old one again, and where its
    version has come round."""
    if (ids[1:] > ids[:-1]).all():  # as most batches are
        return ids
    in_order = np.sort(ids)
    if (in_order[1:] != in_order[:-1]).all():
        return ids
    _, places = np.unique(ids, return_index=True)
    return ids[np.sort(places)]
