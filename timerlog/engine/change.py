"""Changing messages after they were sent: cancel, reschedule, redeliver, drop; and documents.

A dropped message is done and kept elsewhere, and does not wait until its topic's ``purge_after`` is over. It is gone
at once: its key is free and it cannot be found. Its disk space comes back as that of all others that are not needed:
the purge sees that it is dead. There is a record of it, so a start drops it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import delivery, lib
from timerlog.commitlog.records import (
    AS_IT_IS,
    Control,
    DocumentRecord,
    in_records,
    pack_redeliver,
    reschedule_aux,
)
from timerlog.engine.changed import Revoked
from timerlog.engine.commit import Commit
from timerlog.engine.groups import Groups
from timerlog.engine.produce import JudgedSend
from timerlog.engine.settle import Settle
from timerlog.engine.state import INTERNAL, Engine, LogWriter, check_time
from timerlog.errors import OtherLog
from timerlog.layout import (
    CALLED,
    IN_RETRY,
    MAX_TIME_MS,
    ORDERED,
    POSTPONED,
    RESET_ATTEMPTS,
    RUN,
    WERE_DONE,
    DeliveryState,
    MessageState,
    RecordType,
    Runs,
    UInt32Array,
    UInt64Array,
)
from timerlog.life import ENDS, MESSAGES
from timerlog.wheel.timers import MESSAGE_TIMER

#: How a message stands.
UNKNOWN: Final = lib.TW_IS_UNKNOWN
SCHEDULED: Final = lib.TW_IS_SCHEDULED
READY: Final = lib.TW_IS_READY
DELIVERED: Final = lib.TW_IS_DELIVERED
DONE: Final = lib.TW_IS_DONE
CANCELLED: Final = lib.TW_IS_CANCELLED
EXPIRED: Final = lib.TW_IS_EXPIRED
#: Why a message that stands so cannot be changed; empty: it can be.
_ANSWERS: Final = (
    "not_found", "", "", "already_delivered", "already_acked", "already_cancelled", "expired"
)  # fmt: skip
assert len(_ANSWERS) == EXPIRED + 1, "each verdict has its answer"
#: By record, and by the state of a message: whether the record may move it.
_MAY_MOVE: Final = {
    record: np.isin(np.arange(len(MessageState)), move.before)
    for move in MESSAGES
    for record in move.records
    if record in ENDS or record == RecordType.RESCHEDULE
}
_CHUNK: Final = 65_536

Verdicts = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Call:
    """Messages of a group that are called for again: runs, and how they are redelivered."""

    group_id: int
    seqs: UInt64Array
    epochs: UInt32Array
    time_ms: int
    parts: list[tuple[Runs, int]]
    revoked: list[Revoked]

    def records(self) -> list[Control]:
        """What the log is to say."""
        return [
            record
            for runs, how in self.parts
            for record in in_records(
                RecordType.REDELIVER, self.group_id, runs, partial(pack_redeliver, how=how)
            )
        ]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of messages that should be dropped: how many went now, how many were gone, and which stay because
    some group is not done with them, or was done too late."""

    dropped: int
    gone: int
    kept: UInt64Array


class Change:
    """Changes messages, wherever they are: on the wheel, in a lane, parked or leased."""

    def __init__(
        self,
        *,
        engine: Engine,
        writer: LogWriter,
        groups: Groups,
        commit: Commit,
        settle: Settle,
    ) -> None:
        self._engine, self._writer, self._groups = engine, writer, groups
        self._commit, self._settle, self._tables = commit, settle, engine.tables

    # -- which messages --

    def judge(self, ids: UInt64Array) -> Verdicts:
        """How each message stands: UNKNOWN to EXPIRED."""
        verdicts = np.empty(len(ids), np.uint8)
        delivery.judge_all(self._engine.native, ids, verdicts)
        return verdicts

    def _change(
        self,
        ids: Sequence[int] | UInt64Array,
        done: Mapping[int, str],
        act: Callable[[UInt64Array], None],
        again: str,
    ) -> list[str]:
        """Judges all ids, acts on those with a verdict that ``done`` has a word for, and gives an answer for each."""
        wanted = _as_ids(ids)
        verdicts = self.judge(wanted)
        can = np.zeros(len(_ANSWERS), bool)
        can[list(done)] = True
        chosen = can[verdicts]
        is_first = np.ones(len(wanted), bool)
        if len(wanted) > 1:
            _, first = np.unique(wanted, return_index=True)
            is_first[:] = False
            is_first[first] = True
        results = [_ANSWERS[verdict] or again for verdict in verdicts.tolist()]
        for index in np.flatnonzero(chosen).tolist():
            results[index] = done[int(verdicts[index])] if is_first[index] else again
        changed = np.ascontiguousarray(wanted[chosen & is_first])
        starts = range(0, len(changed), _CHUNK)
        for start in starts:
            if start == starts[-1]:  # only what is changed last makes all of the answer true
                self._writer.decided(results)
            act(changed[start : start + _CHUNK])
        return results

    # -- cancelling --

    def cancel(self, ids: Sequence[int] | UInt64Array, now_ms: int, *, stop: bool = False) -> list[str]:
        """Cancels messages that no subscriber was given yet. An answer for each: ``cancelled``, ``already_delivered``,
        ``already_acked``, ``already_cancelled``, ``expired`` or ``not_found``. With ``stop`` also those that were
        delivered and not acked by every group are never delivered again: ``stopped``. A cancelled message frees its
        key. Raises ``DiskFull``."""
        done = {SCHEDULED: "cancelled", READY: "cancelled"}
        if stop:
            return self._change(ids, {**done, DELIVERED: "stopped"}, self.stop, "already_cancelled")
        return self._change(ids, done, self._cancel, "already_cancelled")

    def _cancel(self, ids: UInt64Array) -> None:
        self.end(RecordType.CANCEL, ids)

    def stop(self, ids: UInt64Array) -> None:
        """Cancels messages also where they are delivered; a subscription that holds one loses it."""
        with self._groups.revoking(ids):
            self._cancel(ids)

    def expire(self, ids: UInt64Array, due_until_ms: int) -> int:
        """Ends messages that were kept for as long as their topic keeps what is not acked, and returns how many. Those
        that are not in their topic any more, were due at ``due_until_ms`` or later, or that every group is done with
        are passed over: this may have changed since they were selected. Raises ``DiskFull``: then those before the
        full disk have ended."""
        verdicts = self.judge(ids)
        unacked = (verdicts == READY) | (verdicts == DELIVERED)
        old = self._tables.messages.take(ids, "deliver_at_ms") < due_until_ms
        ids = np.ascontiguousarray(ids[unacked & old])
        for start in range(0, len(ids), _CHUNK):
            part = ids[start : start + _CHUNK]
            with self._groups.revoking(part):
                self.end(RecordType.EXPIRED, part)
        return len(ids)

    def end(self, record: RecordType, ids: UInt64Array) -> None:
        """Ends messages that are scheduled or ready. Raises ``DiskFull``: then nothing was changed."""
        assert _MAY_MOVE[record][self._tables.rows["state"][ids]].all(), "what is ended has not ended yet"
        self._writer.end(record, ids)
        states = self._tables.rows["state"][ids]
        assert (states == ENDS[record]).all(), "only what is scheduled or ready is ended"
        self._wake_ordered(ids)

    def _wake_ordered(self, ids: UInt64Array) -> None:
        """The next message of an ordering key may go."""
        ordered = ids[self._tables.rows["flags"][ids] & ORDERED != 0]
        for topic_id in np.unique(self._tables.rows["topic_id"][ordered]).tolist():
            self._engine.changes.woken.update(self._tables.topics[topic_id].groups.values())

    # -- another time --

    def reschedule(
        self,
        ids: Sequence[int] | UInt64Array,
        deliver_at_ms: int | None,
        now_ms: int,
        *,
        priority: int | None = None,
    ) -> list[str]:
        """Gives messages that no subscriber was given yet another time, another priority, or both. An answer for each:
        ``rescheduled``, or as ``cancel`` gives. Raises ``BadTime``, ``DiskFull``."""
        if deliver_at_ms is not None:
            check_time(deliver_at_ms)

        def act(chosen: UInt64Array) -> None:
            self._reschedule(chosen, deliver_at_ms, AS_IT_IS if priority is None else priority, now_ms)

        done = {SCHEDULED: "rescheduled", READY: "rescheduled"}
        return self._change(ids, done, act, "rescheduled")

    def _reschedule(self, ids: UInt64Array, deliver_at_ms: int | None, priority: int, now_ms: int) -> None:
        assert 0 <= priority <= AS_IT_IS, "a priority is a byte, or stays"
        runs = self.prepare_reschedule(ids, deliver_at_ms, now_ms)
        self._writer.append_runs(RecordType.RESCHEDULE, reschedule_aux(priority), runs)
        self._engine.applier.reschedule(runs, priority)
        rows = self._tables.rows
        assert (rows["state"][ids] == MessageState.SCHEDULED).all(), "what has another time waits for it"
        assert (rows["version"][ids] == runs["epoch"]).all(), "of its timers the newest one counts"

    def prepare_reschedule(self, ids: UInt64Array, deliver_at_ms: int | None, now_ms: int) -> Runs:
        """Sets the new timers and returns the runs to be logged. A timer whose reschedule never happens is passed over
        when it fires. Raises ``DiskFull``."""
        rows = self._tables.rows
        assert deliver_at_ms is None or 0 <= deliver_at_ms <= MAX_TIME_MS, "who calls has checked the time"
        assert _MAY_MOVE[RecordType.RESCHEDULE][rows["state"][ids]].all(), "what ended has no other time"
        runs = np.zeros(len(ids), RUN)
        runs["first"], runs["count"] = ids, 1
        runs["time_ms"] = rows["deliver_at_ms"][ids] if deliver_at_ms is None else deliver_at_ms
        # Versions wrap at 16 bits: a timer would have to be 65,536 reschedules old to be taken for the newest one.
        runs["epoch"] = (rows["version"][ids] + np.uint16(1)).astype(np.uint16)
        linked = (
            ids < self._engine.enqueued_id
        )  # the others get on the wheel by EnqueuePut, with their new time
        self._engine.wheel.advance(now_ms)
        self._engine.link(
            self._engine.spread(runs["time_ms"][linked], ids[linked]),
            ids[linked],
            runs["epoch"][linked],
            MESSAGE_TIMER,
        )
        return runs

    def verdicts(self, ids: Sequence[int]) -> list[int]:
        """How each message stands: UNKNOWN to EXPIRED."""
        verdicts: list[int] = self.judge(_as_ids(ids)).tolist()
        return verdicts

    def answer_for(self, verdict: int) -> str:
        """Why a message that stands so cannot be changed."""
        return _ANSWERS[verdict]

    # -- again --

    def redeliver(
        self,
        ids: Sequence[int] | UInt64Array,
        group: str | None,
        at_ms: int | None,
        now_ms: int,
        *,
        acked: bool = False,
        postpone: bool = False,
        reset_attempts: bool = True,
    ) -> list[str]:
        """Delivers messages again, now or at a time, to one group or to all of their topic that are not done with
        them; ``acked``: also to those that are; ``postpone``: what could be delivered again by now waits for a later
        time as well. An answer for each: ``redelivered``, ``waiting`` (it is to be delivered
        anyway), ``already_acked``, ``already_cancelled``, ``expired`` or ``not_found``. A subscription that holds one
        loses it. Raises ``BadTime``, ``UnknownGroup``, ``DiskFull``: then nothing was changed."""
        if at_ms is not None:
            check_time(at_ms)
        time_ms = now_ms if at_ms is None else at_ms
        wanted = _as_ids(ids)
        verdicts = self.judge(wanted)
        results = [_ANSWERS[verdict] or "waiting" for verdict in verdicts.tolist()]
        in_topic = (verdicts == DELIVERED) | (verdicts == DONE) | (verdicts == READY)
        redelivered: set[int] = set()
        waiting: set[int] = set()
        calls: list[_Call] = []
        for group_id, seqs, members in self._groups.of_messages(wanted[in_topic], group):
            again, idle = self._judge_redelivery(group_id, seqs, acked, postpone and time_ms > now_ms)
            if again.any():
                chosen = np.ascontiguousarray(seqs[again])
                calls.append(self._prepare_call(group_id, chosen, time_ms, now_ms, reset_attempts))
            redelivered.update(members[again].tolist())
            waiting.update(members[idle].tolist())
        for index in np.flatnonzero(in_topic).tolist():
            message_id = int(wanted[index])
            if message_id in redelivered:
                results[index] = "redelivered"
            else:
                results[index] = "waiting" if message_id in waiting else "already_acked"
        if calls:
            self._writer.decided(results)
            self._writer.append_all([record for call in calls for record in call.records()])
        for call in calls:
            self._call_again(call, now_ms)
        return results

    def _judge_redelivery(
        self, group_id: int, seqs: UInt64Array, acked: bool, postpone: bool
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which messages of a group can be redelivered, and which wait for their delivery anyway."""
        group = self._tables.groups[group_id]
        rows = group.deliveries.take_reached(seqs)
        is_acked, is_dead = rows["state"] == DeliveryState.ACKED, rows["state"] == DeliveryState.DEAD
        # What was acked while it stood in the chain of redeliveries stands there still, and is passed over there.
        waits = (rows["flags"] & (IN_RETRY | POSTPONED) == IN_RETRY) & ~is_acked & ~is_dead & (not postpone)
        untouched = rows["state"] == DeliveryState.UNTOUCHED
        is_its_own = (
            seqs >= group.record.start_seq
        )  # what lies before, it may have been given before it was moved
        again = ~untouched & ~waits & (acked | ~is_acked) & is_its_own
        idle = (untouched | waits) & is_its_own
        return again, idle

    def _prepare_call(
        self, group_id: int, seqs: UInt64Array, time_ms: int, now_ms: int, reset_attempts: bool
    ) -> _Call:
        """What is to be written so that messages of a group wait for ``time_ms``, whatever became of them, whose
        timers it sets. Raises ``DiskFull``."""
        rows = self._tables.groups[group_id].deliveries.take(seqs)
        assert (rows["state"] != DeliveryState.UNTOUCHED).all(), "what comes again was there before"
        epochs = rows["epoch"].copy()
        times = np.full(len(seqs), time_ms, np.int64)
        revoked = self._groups.held_by(group_id, seqs)
        if time_ms > now_ms:
            self._engine.link(times, seqs, epochs, group_id)
        done = np.isin(rows["state"], (DeliveryState.ACKED, DeliveryState.DEAD)) | (
            rows["flags"] & CALLED != 0
        )
        reset = RESET_ATTEMPTS if reset_attempts else 0
        parts = [
            (self._engine.runs_of(seqs[which], epochs[which], times[which]), reset | how)
            for which, how in ((~done, 0), (done, WERE_DONE))
            if which.any()
        ]
        return _Call(group_id, seqs, epochs, time_ms, parts, revoked)

    def _call_again(self, call: _Call, now_ms: int) -> None:
        """Makes it so: it is in the log."""
        for runs, how in call.parts:
            self._engine.applier.redeliver(call.group_id, runs, how)
        states = self._tables.deliveries_of(call.group_id)["state"][call.seqs]
        assert (states == DeliveryState.WAITING).all(), "nobody holds what is called for"
        self._engine.changes.revoked.extend(call.revoked)
        self._engine.changes.woken.add(call.group_id)
        if call.time_ms <= now_ms:
            self._settle.end_leases(call.group_id, call.seqs, call.epochs, now_ms)

    # -- dropping --

    def check_log(self, log_id: int) -> None:
        """Raises ``OtherLog`` when ids of another log are meant."""
        if log_id != self._engine.log.log_id:
            raise OtherLog(
                f"these messages are of the log {log_id:016x}, and this one is {self._engine.log.log_id:016x}"
            )

    def drop(self, ids: UInt64Array, done_before_ms: int) -> Dropped:
        """Drops messages that every group was done with before ``done_before_ms``. Ids that are not known any more
        count as gone. It may be relied on once the log is durable. Raises ``DiskFull``: then nothing was dropped."""
        ids = np.unique(ids)
        verdicts = self.judge(ids)
        is_unknown = verdicts == UNKNOWN
        ready = np.flatnonzero(verdicts == DONE)
        ready = ready[self._last_done_ms(ids[ready]) < done_before_ms]
        chosen = np.ascontiguousarray(ids[ready])
        stays = ~is_unknown
        stays[ready] = False
        done = Dropped(len(chosen), int(is_unknown.sum()), ids[stays])
        assert done.dropped + done.gone + len(done.kept) == len(ids), "each message goes, is gone, or stays"
        if len(chosen):
            self._writer.decided(done)
            self.end(RecordType.DROPPED, chosen)
        return done

    def _last_done_ms(self, ids: UInt64Array) -> npt.NDArray[np.int64]:
        """When the last of its groups was done with each message; ``ids`` are in order."""
        assert (ids[1:] > ids[:-1]).all(), "messages that are looked for in order are there once"
        last_ms = np.zeros(len(ids), np.int64)
        for group_id, seqs, members in self._groups.of_messages(ids, None):
            counts = seqs >= self._tables.groups[group_id].record.start_seq
            times = self._tables.groups[group_id].deliveries.take(seqs[counts], "time_ms")
            places = np.searchsorted(ids, members[counts])
            last_ms[places] = np.maximum(last_ms[places], times)
        return last_ms

    # -- documents --

    def put_document(
        self,
        name: str,
        content: bytes | None,
        now_ms: int,
        *,
        send: JudgedSend | None = None,
        cancel: Sequence[int] = (),
        controls: Sequence[Control] = (),
        result: Any = None,
    ) -> None:
        """Keeps a document under a name, or deletes it (``None``), together with a message that is stored, others that
        are cancelled, if no subscriber was given them yet, and further records: all of it or nothing, also after a
        crash. It may be relied on once the log is durable. ``result``: what a request is answered. Raises
        ``DiskFull``, ``TransactionTooLarge``."""
        ids = np.unique(_as_ids(cancel))
        ids = np.ascontiguousarray(ids[_is_undelivered(self.judge(ids))])
        document = msgspec.msgpack.encode(DocumentRecord(name, content))
        records: list[Control] = [(RecordType.DOCUMENT, 0, document), *controls]
        if len(ids):
            records.append((RecordType.CANCEL, 0, ids.tobytes()))
        if result is not None:
            self._writer.decided(result)
        self._commit.write(INTERNAL, [send] if send is not None else [], records, now_ms)
        states = self._tables.rows["state"][ids]
        assert (states == MessageState.CANCELLED).all(), "what was judged as undelivered is cancelled"
        self._wake_ordered(ids)


def _is_undelivered(verdicts: Verdicts) -> npt.NDArray[np.bool_]:
    undelivered: npt.NDArray[np.bool_] = (verdicts == SCHEDULED) | (verdicts == READY)
    return undelivered


def _as_ids(ids: Sequence[int] | UInt64Array) -> UInt64Array:
    """Ids as an array; a number that no message can have becomes 0."""
    if isinstance(ids, np.ndarray):
        return ids
    return np.fromiter((i if 0 <= i < 1 << 63 else 0 for i in ids), np.uint64, len(ids))
