"""The five services' work on one batch each; the broker runs them as five tasks (``tickwheel_broker.services``).

1. EnqueueGet: the system topic is the MessageTable in order of ids; take what is durable and new.
2. EnqueuePut: link future messages on the wheel; hand on what is due already.
3. DequeueGet: turn the wheel.
4. DequeueGetMessage: look the messages up, drop cancelled and superseded ones, verify checksums.
5. DequeuePutMessage: log and make the move into the topic, exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tickwheel_native import ffi, lib
from timerlog.commitlog.records import pack_nack
from timerlog.engine.settle import Settling
from timerlog.engine.state import RUNS_A_RECORD, in_records
from timerlog.errors import DiskFull, LogFailed
from timerlog.layout import PUT_HEAD, DeliveryState, MessageState, RecordType, Runs, UInt32Array, UInt64Array
from timerlog.wheel.timers import MESSAGE_TIMER
from timerlog.wheel.wheel import Timers, TimerWheel

DueBatch = Timers
_DUE, _DAMAGED = 1, 2
_SCAN = 65_536


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """Messages whose time has come, in order, and leases that may have ended."""

    ids: UInt64Array
    versions: UInt32Array
    damaged: (
        UInt64Array  # ids whose record no longer matches its checksum: set aside, reported, in nobody's way
    )
    leases: Timers

    def __len__(self) -> int:
        return len(self.ids) + len(self.damaged) + len(self.leases)


class TimerServices(Settling):
    #: What the last ``dequeue_put_message`` has moved into topics.
    moved_ids: UInt64Array = np.zeros(0, np.uint64)

    # -- 1, 2: onto the wheel --

    @property
    def pending_enqueue(self) -> int:
        """Messages accepted but not yet taken by EnqueueGet."""
        return self.tables.next_id - self._enqueued_id

    @property
    def has_to_enqueue(self) -> bool:
        """Whether ``enqueue_get`` would bring something."""
        return self._enqueued_id < self._durable_next_id

    def enqueue_get(self, limit: int) -> DueBatch | None:
        """The next durable messages of the system topic, at most ``limit``; None when there are none."""
        start = self._enqueued_id
        end = min(self._durable_next_id, start + limit)
        if start >= end:
            return None
        rows = self.tables.rows[start:end]
        scheduled = np.flatnonzero(rows["state"] == MessageState.SCHEDULED)
        self._enqueued_id = end
        return Timers(
            self._spread(rows["deliver_at_ms"][scheduled], (scheduled + start).astype(np.uint64)),
            (scheduled + start).astype(np.uint64),
            rows["version"][scheduled].astype(np.uint32),
            np.zeros(len(scheduled), np.uint32),
        )

    def enqueue_put(self, batch: DueBatch, now_ms: int) -> DueBatch | None:
        """Links what is due later; returns what is due already, by due time and then in the order sent. Raises
        ``DiskFull``: then nothing was linked, and the same batch may be given again."""
        late = batch.due_ms > now_ms
        if late.any():
            self.wheel.advance(now_ms)
            self.wheel.link(batch.due_ms[late], batch.ref[late], batch.epoch[late], batch.owner[late])
            if late.all():
                return None
            now = ~late
            batch = Timers(batch.due_ms[now], batch.ref[now], batch.epoch[now], batch.owner[now])
        if len(batch) > 1 and bool(np.any(batch.due_ms[1:] < batch.due_ms[:-1])):
            order = np.argsort(batch.due_ms, kind="stable")
            batch = Timers(batch.due_ms[order], batch.ref[order], batch.epoch[order], batch.owner[order])
        return batch if len(batch) else None

    # -- 3, 4, 5: off the wheel --

    def next_wakeup_ms(self) -> int | None:
        """The earliest moment at which ``dequeue_get`` has work; it may lie in the past. None: the wheel is empty."""
        return self.wheel.next_event_ms()

    def dequeue_get(self, now_ms: int, limit: int) -> DueBatch | None:
        """Turns the wheel: at most ``limit`` timers that are due, and a bounded amount of cascading. None when this
        turn brought nothing; ``next_wakeup_ms`` says whether to come back at once."""
        return self.wheel.turn(now_ms, limit)

    def dequeue_get_message(self, due: DueBatch, now_ms: int) -> ReadyBatch:
        """Looks up what became due. A record that fails its checksum is set aside, never in the way of others.
        ``now_ms`` may lie below what was due: then the clock went back since, and what was due stays so."""
        is_message = due.owner == MESSAGE_TIMER
        if is_message.all():
            messages, leases = due, due.part(0, 0)
        else:
            messages, leases = _select(due, is_message), _select(due, ~is_message)
        ids = np.ascontiguousarray(messages.ref)
        versions = np.ascontiguousarray(messages.epoch)
        verdicts = np.empty(len(ids), np.uint8)
        lib.tw_lookup(
            self._native,
            ffi.from_buffer("uint64_t[]", ids),
            ffi.from_buffer("uint32_t[]", versions),
            len(ids),
            _not_before(messages, now_ms),
            ffi.from_buffer("uint8_t[]", verdicts),
        )
        good = verdicts == _DUE
        if good.all():
            return ReadyBatch(ids, versions, ids[:0], leases)
        return ReadyBatch(ids[good], versions[good], ids[verdicts == _DAMAGED], leases)

    def dequeue_put_message(self, ready: ReadyBatch, now_ms: int) -> list[int]:
        """Moves messages into their topics and ended leases back to waiting. Returns the groups that got work.

        A message that was cancelled, rescheduled or moved since it was looked up is passed over: the state of its
        row decides, in the same step that changes it. Raises ``DiskFull``: then nothing was moved, and the same batch
        may be given again.
        """
        rows = self.tables.rows
        fresh = (rows["state"][ready.ids] == MessageState.SCHEDULED) & (
            rows["version"][ready.ids] == ready.versions
        )
        if self.tables.last_topic_id != len(self.tables.topics):  # some were deleted
            fresh &= np.isin(rows["topic_id"][ready.ids], list(self.tables.topics))
        ids = ready.ids if fresh.all() else ready.ids[fresh]
        self.moved_ids = ids[:0]
        woken = self._put(ids, now_ms) if len(ids) else []
        self.moved_ids = ids
        if len(ready.damaged):
            self._append(RecordType.DAMAGED, 0, ready.damaged.tobytes())
            self._applier.end(ready.damaged, MessageState.DAMAGED)
        if len(ready.leases):
            woken.extend(self._end_leases(ready.leases, now_ms))
        return woken

    def _put(self, ids: UInt64Array, now_ms: int) -> list[int]:
        parts = [
            (topic_id, int(self._native.topics[topic_id].count), self._runs(part).copy(), len(part))
            for topic_id, part in self._by_topic(ids)
        ]
        for topic_id, first_seq, _, count in parts:
            self.tables.ensure_arrivals(topic_id, first_seq + count)
        self.log.ensure_room(
            sum(self._room_for_runs(len(runs), PUT_HEAD.itemsize) for _, _, runs, _ in parts)
        )
        tick_ms = min(self.wheel.tick_ms, now_ms)
        for topic_id, first_seq, runs, _ in parts:
            self._append_put(topic_id, first_seq, tick_ms, runs)
        self.log.flush()
        woken: list[int] = []
        for topic_id, first_seq, runs, _ in parts:
            self._applier.put(topic_id, first_seq, tick_ms, runs)
            woken.extend(self.tables.topics[topic_id].groups.values())
        return woken

    def _by_topic(self, ids: UInt64Array) -> list[tuple[int, UInt64Array]]:
        """Splits ids by topic, keeping their order inside each."""
        topics = self.tables.rows["topic_id"][ids]
        if (topics == topics[0]).all():
            return [(int(topics[0]), ids)]
        order = np.argsort(topics, kind="stable")
        bounds = np.flatnonzero(np.diff(topics[order])) + 1
        return [(int(topics[part[0]]), ids[part]) for part in np.split(order, bounds)]

    def _append_put(self, topic_id: int, first_seq: int, tick_ms: int, runs: Runs) -> None:
        for start in range(0, len(runs), RUNS_A_RECORD):
            piece = runs[start : start + RUNS_A_RECORD]
            head = np.array([(tick_ms, first_seq, len(piece))], PUT_HEAD)
            self.log.append(RecordType.PUT, topic_id, head.tobytes() + piece.tobytes())
            first_seq += int(piece["count"].sum())

    def _end_leases(self, leases: Timers, now_ms: int) -> list[int]:
        woken = []
        for group_id in np.unique(leases.owner).tolist():
            if group_id not in self.tables.groups:
                continue
            part = _select(leases, leases.owner == group_id)
            if self._expire(group_id, part.ref, part.epoch, _not_before(part, now_ms)):
                woken.append(group_id)
        return woken

    # -- the wheel follows from the tables --

    def clock_went_back(self, now_ms: int, back_ms: int = 0) -> int:
        """Turns the wheel's time back, after the wall clock was, and by ``back_ms`` the ends of leases and backoffs
        that only a clock that was ahead can have set; returns how many. Messages in their topics stay there. Raises
        ``DiskFull``: then the wheel is turned back, and some of those ends are not; ``LogFailed``: only a start sets
        all timers again."""
        try:
            return sum(self._turn_waits_back(group_id, now_ms, back_ms) for group_id in self.tables.groups)
        finally:
            self._reset_wheel(now_ms)

    def _reset_wheel(self, now_ms: int) -> None:
        """The same wheel, so that no disk space is asked for that was there before. Raises ``LogFailed``."""
        self.wheel.reset(now_ms - 1)
        try:
            self._fill_wheel()
        except DiskFull as error:
            raise LogFailed("the timers could not be set again: the disk is full") from error

    def _turn_waits_back(self, group_id: int, now_ms: int, back_ms: int) -> int:
        group, rows = self._native.groups[group_id], self.tables.groups[group_id].deliveries.items
        longest_ms = max(int(group.ack_wait_ms), int(group.max_backoff_ms))
        first, end = int(group.floor_seq), int(group.high_seq)
        moved = 0
        for start in range(first, end if back_ms > 0 else first, _SCAN):
            part = rows[start : min(start + _SCAN, end)]
            seqs = np.flatnonzero(part["time_ms"] > now_ms + longest_ms) + start
            leased = seqs[rows["state"][seqs] == DeliveryState.LEASED]
            waits = seqs[rows["state"][seqs] == DeliveryState.WAITING]
            # Longer waits were asked for, and so was the time of what was called for with its attempts from 0 again.
            backoff = (rows["time_ms"][waits] <= now_ms + back_ms + longest_ms) & (
                rows["epoch"][waits] != rows["base_epoch"][waits]
            )
            moved += self._turn_back(group_id, leased, now_ms, back_ms, RecordType.RELEASE)
            moved += self._turn_back(group_id, waits[backoff], now_ms, back_ms, RecordType.NACK)
        return moved

    def _turn_back(
        self, group_id: int, seqs: np.ndarray, now_ms: int, back_ms: int, record: RecordType
    ) -> int:
        """The timers are set by the new wheel."""
        rows = self.tables.groups[group_id].deliveries.items
        times = np.maximum(rows["time_ms"][seqs] - back_ms, now_ms)
        runs = self.runs_of(seqs.astype(np.uint64), rows["epoch"][seqs], times)
        if not len(runs):
            return 0
        if record == RecordType.NACK:
            self._append_all(in_records(record, group_id, runs, lambda piece: pack_nack(piece, "")))
            self._applier.nack(group_id, runs, "")
        else:
            self._append_runs(record, group_id, runs)
            self._applier.release(group_id, runs)
        return len(seqs)

    def _new_wheel(self, tick_ms: int) -> None:
        """A wheel with every message that still waits, and every lease. What was due before ``tick_ms`` is due at it:
        the wheel stands one tick before, because a timer can only be linked ahead of it."""
        self.wheel = TimerWheel(self.tables.directory, tick_ms - 1, self.reserve)
        self._fill_wheel()

    def _fill_wheel(self) -> None:
        times = np.empty(_SCAN, np.int64)
        refs = np.empty(_SCAN, np.uint64)
        epochs = np.empty(_SCAN, np.uint32)
        pointers = (
            ffi.from_buffer("int64_t[]", times),
            ffi.from_buffer("uint64_t[]", refs),
            ffi.from_buffer("uint32_t[]", epochs),
        )
        at = ffi.new("uint64_t *", int(self._native.first_id))
        while at[0] < self._enqueued_id:
            count = lib.tw_scheduled(self._native, at, self._enqueued_id, _SCAN, *pointers)
            self._link_scanned(times, refs, epochs, count, MESSAGE_TIMER)
        for group_id in self.tables.groups:
            at[0] = self._native.groups[group_id].floor_seq
            while at[0] < self._native.groups[group_id].high_seq:
                count = lib.tw_leased(self._native, group_id, at, _SCAN, *pointers)
                self._link_scanned(times, refs, epochs, count, group_id)

    def _link_scanned(
        self, times: np.ndarray, refs: np.ndarray, epochs: np.ndarray, count: int, owner: int
    ) -> None:
        self.wheel.link(times[:count], refs[:count], epochs[:count], np.full(count, owner, np.uint32))


def _not_before(due: Timers, now_ms: int) -> int:
    """A time at which all of these are due. Their timers are gone from the wheel, so that what was passed over for a
    clock that went back a little would never be looked at again."""
    return max(now_ms, int(due.due_ms.max(initial=now_ms)))


def _select(timers: Timers, mask: np.ndarray) -> Timers:
    return Timers(timers.due_ms[mask], timers.ref[mask], timers.epoch[mask], timers.owner[mask])
