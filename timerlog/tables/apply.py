"""What each control record does to the tables.

Used twice: by the store, right after it has handed the record to the log, and by recovery, when it reads the record
back. So a running store and a replayed one cannot differ. Everything is set to absolute values: applying a record
again, on tables that already hold it, changes nothing in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import Buffer, apply, delivery, rebuild
from tickwheel_native import store as native_store
from timerlog.commitlog.records import (
    GROUP_ORDER,
    GROUP_SEEN,
    AdoptedRecord,
    AnsweredRecord,
    DocumentRecord,
    GroupRecord,
    Purged,
    TimelineRecord,
    TopicRecord,
    reschedule_priority,
    unpack_lease,
    unpack_nack,
    unpack_numbered,
)
from timerlog.errors import BadSettings, StoreError, UnsupportedFormat
from timerlog.layout import HOLDERS, PUT_HEAD, RUN, RecordType, Runs
from timerlog.life import ENDS
from timerlog.settings import StoreSettings
from timerlog.tables.base_record import Base
from timerlog.tables.histories import Failure
from timerlog.tables.tables import Tables


def _check(result: int, what: str) -> None:
    if result < 0:
        raise StoreError(f"a {what} record names messages that do not exist")


@dataclass(slots=True)
class Applier:
    """Applies control records to ``tables``; ``tick_ms`` is the last tick that the log knows."""

    tables: Tables
    settings: StoreSettings
    tick_ms: int = 0
    transaction_id: bytes = b""  #: of the transaction whose records are being applied
    first_position: int = 0  #: what lay before it in the log is gone
    trimmed: int = 0  #: what lies before it in a replicated log may go
    before_purge: Callable[[int, int], None] | None = None  #: called with the part whose messages go

    def apply(self, record: int, aux: int, payload: Buffer) -> None:
        """One record as read from the log. MARK and END change nothing."""
        if record != RecordType.END:
            self._note_newest(record)
        match record:
            case RecordType.PUT:
                head = np.frombuffer(payload, PUT_HEAD, 1)[0]
                runs = np.frombuffer(payload, RUN, int(head["runs"]), PUT_HEAD.itemsize)
                self.put(aux, int(head["first_seq"]), int(head["tick_ms"]), runs)
            case RecordType.LEASE:
                self.lease(aux, 0, unpack_lease(payload)[0])
            case RecordType.ACK:
                self.ack(aux, np.frombuffer(payload, RUN))
            case RecordType.RELEASE:
                self.release(aux, np.frombuffer(payload, RUN))
            case RecordType.RETURNED:
                self.returned(aux, *unpack_numbered(payload))
            case RecordType.NACK:
                runs, error = unpack_nack(payload)
                self.nack(aux, runs, error)
            case RecordType.REDELIVER:
                self.redeliver(aux, *unpack_numbered(payload))
            case RecordType.DEAD:
                self.dead(aux, np.frombuffer(payload, RUN))
            case RecordType.CANCEL | RecordType.EXPIRED | RecordType.DROPPED | RecordType.DAMAGED:
                self.end(RecordType(record), np.frombuffer(payload, np.uint64))
            case RecordType.RESCHEDULE:
                self.reschedule(np.frombuffer(payload, RUN), reschedule_priority(aux))
            case RecordType.TOPIC:
                self.topic(msgspec.msgpack.decode(payload, type=TopicRecord))
            case RecordType.GROUP:
                self.group(msgspec.msgpack.decode(payload, type=GroupRecord))
            case RecordType.GROUP_CHANGED:
                self.group_changed(msgspec.msgpack.decode(payload, type=GroupRecord))
            case RecordType.GROUP_SEEN:
                self.group_seen(aux, *GROUP_SEEN.unpack(payload))
            case RecordType.GROUP_ORDER:
                self.group_order(aux, *GROUP_ORDER.unpack(payload))
            case RecordType.DOCUMENT:
                self.document(msgspec.msgpack.decode(payload, type=DocumentRecord))
            case RecordType.STORED:
                sends = np.frombuffer(payload, np.uint64).reshape(-1, 2).tolist()
                self.stored([(first, count) for first, count in sends])
            case RecordType.ANSWERED:
                self.answered(msgspec.msgpack.decode(payload, type=AnsweredRecord))
            case RecordType.BASE:
                self.base(msgspec.msgpack.decode(payload, type=Base))
            case RecordType.PURGED:
                self.purged(msgspec.msgpack.decode(payload, type=Purged))
            case RecordType.RESERVED:
                self.reserved(int.from_bytes(payload, "little"))
            case RecordType.ADOPTED:
                self.adopted(msgspec.msgpack.decode(payload, type=AdoptedRecord))
            case RecordType.TRIM:
                self.trim(int.from_bytes(payload, "little"))
            case RecordType.TIMELINE:
                self.timeline(msgspec.msgpack.decode(payload, type=TimelineRecord))
            case RecordType.MARK | RecordType.END | RecordType.FILL:
                pass
            case _:
                raise UnsupportedFormat(
                    f"the log has a record of type {record}, which this version does not know"
                )

    def _note_newest(self, record: int) -> None:
        native = self.tables.native
        native.newest_record = max(int(native.newest_record), record)

    def put(self, topic_id: int, first_seq: int, tick_ms: int, runs: Runs) -> None:
        end_seq = first_seq + delivery.runs_values(runs)
        self.tables.ensure_arrivals(topic_id, end_seq, first_seq)
        _check(apply.put(self.tables.native, topic_id, first_seq, runs), "PUT")
        topic = self.tables.native.topics[topic_id]
        assert topic.count >= end_seq, "what was put is in its topic"
        assert topic.count <= topic.allocated, "what is in a topic has a place there"
        self.tick_ms = max(self.tick_ms, tick_ms)

    def lease(self, group_id: int, holder: int, runs: Runs) -> None:
        assert 0 <= holder < HOLDERS, "who holds messages has a number"
        end_seq = delivery.runs_end(runs)
        self.tables.ensure_deliveries(group_id, end_seq)
        _check(apply.lease(self.tables.native, group_id, holder, runs), "LEASE")
        assert self.tables.native.groups[group_id].high_seq >= end_seq, (
            "what was given out lies below high_seq"
        )

    def ack(self, group_id: int, runs: Runs) -> None:
        self.tables.ensure_deliveries(group_id, delivery.runs_end(runs))
        group = self.tables.native.groups[group_id]
        done, pending = group.acked + group.dead, group.pending
        _check(apply.ack(self.tables.native, group_id, runs), "ACK")
        assert group.acked + group.dead >= done, "an ack takes no other back"
        assert group.pending <= pending, "an ack leaves no more to be done"
        self._forget_failures(group_id, runs)

    def returned(self, group_id: int, runs: Runs, time_ms: int) -> None:
        """The runs' times are the rows' ``base_epoch`` from now on."""
        self.tables.ensure_deliveries(group_id, delivery.runs_end(runs))
        _check(apply.returned(self.tables.native, group_id, runs, time_ms), "RETURNED")
        for first, count in runs[["first", "count"]].tolist():
            self.tables.failures.shift(group_id, first, count)

    def reserved(self, next_id: int) -> None:
        """Messages of others may have numbers below ``next_id``."""
        native = self.tables.native
        self.tables.ensure_rows(next_id)
        native.next_id = max(int(native.next_id), next_id)
        assert native.next_id <= native.rows_allocated, "each number that is given has a row"

    def timeline(self, record: TimelineRecord) -> None:
        """What was given out before and is lost is not given out again."""
        self.tables.leave_gap(record.gap_start, record.next_id)
        self.tables.begin_timeline(record)

    def adopted(self, record: AdoptedRecord) -> None:
        """The messages themselves lie in the segments that follow."""
        self.tables.transactions.add(record.job, [(record.messages, record.rejected)])

    def release(self, group_id: int, runs: Runs) -> None:
        self.tables.ensure_deliveries(group_id, delivery.runs_end(runs))
        _check(apply.release(self.tables.native, group_id, runs), "RELEASE")

    def nack(self, group_id: int, runs: Runs, error: str) -> None:
        self.tables.ensure_deliveries(group_id, delivery.runs_end(runs))
        group = self.tables.native.groups[group_id]
        leased = group.leased
        _check(apply.nack(self.tables.native, group_id, runs), "NACK")
        assert group.leased <= leased, "what is given back is leased no more"
        if error:
            self._remember(group_id, runs, error)

    def _remember(self, group_id: int, runs: Runs, error: str) -> None:
        group = self.tables.groups[group_id]
        arrivals = self.tables.topics[group.record.topic_id].arrivals
        for first, count, epoch, at_ms in runs.tolist():
            for seq in range(max(first, arrivals.start), min(first + count, arrivals.capacity)):
                if arrivals.items["id"][seq]:  # else it was purged
                    self.tables.failures.add(group_id, seq, Failure(epoch, at_ms, error))

    def redeliver(self, group_id: int, runs: Runs, how: int) -> None:
        """``how``: RESET_ATTEMPTS, WERE_DONE."""
        self.tables.ensure_deliveries(group_id, delivery.runs_end(runs))
        group = self.tables.native.groups[group_id]
        pending = group.pending
        _check(apply.redeliver(self.tables.native, group_id, runs, how), "REDELIVER")
        assert group.pending >= pending, "what is called for again is to be done"

    def dead(self, group_id: int, runs: Runs) -> None:
        self.tables.ensure_deliveries(group_id, delivery.runs_end(runs))
        group = self.tables.native.groups[group_id]
        done = group.acked + group.dead
        _check(apply.dead(self.tables.native, group_id, runs), "DEAD")
        assert group.acked + group.dead >= done, "what is given up stays done"
        self._forget_failures(group_id, runs)

    def _forget_failures(self, group_id: int, runs: Runs) -> None:
        failures = self.tables.failures
        if len(failures):
            for first, count in zip(runs["first"].tolist(), runs["count"].tolist(), strict=True):
                failures.done_range(group_id, first, count)

    def end(self, record: RecordType, ids: npt.NDArray[np.uint64]) -> None:
        """The state of ``ENDS`` for messages that are scheduled or ready; others stay as they are."""
        _check(apply.end(self.tables.native, ids, ENDS[record]), record.name)

    def reschedule(self, runs: Runs, priority: int) -> None:
        """``priority`` AS_IT_IS: no other one."""
        _check(apply.reschedule(self.tables.native, runs, priority), "RESCHEDULE")

    def topic(self, record: TopicRecord, first_seq: int = 0) -> None:
        if not 0 < record.topic_id < self.tables.native.topics_capacity:
            raise BadSettings(f"topic {record.name!r} has number {record.topic_id}: raise max_topics")
        if record.deleted:
            self.tables.remove_topic(record.topic_id)
        else:
            self.tables.add_topic(record, first_seq)

    def stored(self, sends: list[tuple[int, int]]) -> None:
        if any(self.transaction_id):
            self.tables.transactions.add(self.transaction_id, sends)

    def answered(self, record: AnsweredRecord) -> None:
        self.tables.answers.add(record)

    def document(self, record: DocumentRecord) -> None:
        if record.content is None:
            self.tables.documents.pop(record.name, None)
        else:
            self.tables.documents[record.name] = record.content

    def base(self, base: Base) -> None:
        """Everything small, as it is at this point. On tables that hold what came before, it changes nothing."""
        base.check()
        tables = self.tables
        self._note_newest(base.known_newest)
        tables.start_rows(base.first_id, base.next_id, base.gaps)
        tables.timeline, tables.timeline_position = base.timeline, base.timeline_position
        tables.epoch_floor = base.epoch_floor
        for topic in base.topics:
            self.topic(topic.record, topic.first_seq)
            counts = tables.native.topics[topic.record.topic_id]
            tables.ensure_arrivals(topic.record.topic_id, topic.count)
            counts.count = max(int(counts.count), topic.count)
            counts.purged_messages, counts.purged_cancelled = topic.purged_messages, topic.purged_cancelled
        for group in base.groups:
            self.group(group.record)
            sums = tables.native.groups[group.record.group_id]
            sums.purged_acked, sums.purged_dead = group.purged_acked, group.purged_dead
            sums.purged_deliveries = group.purged_deliveries
            self.group_seen(group.record.group_id, group.seen_ms, group.has_readers)
        tables.documents = dict(base.documents)
        tables.failures.load(base.failures)
        tables.transactions.load(base.transactions)
        tables.answers.load(base.answers)
        tables.last_topic_id = max(tables.last_topic_id, base.last_topic_id)
        tables.last_group_id = max(tables.last_group_id, base.last_group_id)
        tables.load_free_groups(base.free_groups)
        tables.topics_made = dict(base.topics_made)
        tables.name_fences.load(base.name_fences)
        self.tick_ms = max(self.tick_ms, base.tick_ms)

    def purged(self, purged: Purged) -> None:
        """Forgets what lay in a part of the log, if that is still there, and sets the counters that keep its sums."""
        native = self.tables.native
        if purged.start >= self.first_position:
            if self.before_purge is not None:
                self.before_purge(purged.start, purged.end)
            if apply.purged(native, purged.start, purged.end):
                raise StoreError("a PURGED record names a part of the log that holds no records")
        for topic_id, messages, cancelled in purged.topics:
            topic = native.topics[topic_id]
            topic.purged_messages, topic.purged_cancelled = messages, cancelled
        for group_id, acked, dead, deliveries in purged.groups:
            group = native.groups[group_id]
            group.purged_acked, group.purged_dead, group.purged_deliveries = acked, dead, deliveries

    def trim(self, end: int) -> None:
        """Each replica deletes the segments before ``end`` by itself."""
        self.trimmed = max(self.trimmed, end)

    def group(self, record: GroupRecord) -> None:
        if not 0 < record.group_id < self.tables.native.groups_capacity:
            raise BadSettings(f"group {record.name!r} has number {record.group_id}: raise max_groups")
        if record.ignores_order:  # which programs that do not know GROUP_ORDER would not see
            self._note_newest(RecordType.GROUP_ORDER)
        is_new = record.group_id not in self.tables.groups
        self.tables.add_group(record)
        if is_new:
            self._start_group(record)

    def group_changed(self, record: GroupRecord) -> None:
        """It is gone, or begins anew at another message."""
        if record.deleted:
            self.tables.remove_group(record.group_id, record.fence)
        else:
            self.tables.move_group(record)

    def group_seen(self, group_id: int, seen_ms: int, has_readers: bool) -> None:
        group = self.tables.groups.get(group_id)
        if group is not None:
            group.seen_ms, group.has_readers = seen_ms, has_readers

    def group_order(self, group_id: int, ignores_order: bool) -> None:
        """A group that is gone has no order."""
        if group_id in self.tables.groups:
            self.tables.ignore_order(group_id, ignores_order=ignores_order)

    def _start_group(self, record: GroupRecord) -> None:
        """Where a group starts to read, and how much it has before it; without a look at each message if possible."""
        group = self.tables.native.groups[record.group_id]
        topic = self.tables.native.topics[record.topic_id]
        if record.start_seq == 0:
            group.pending = topic.ready
        elif record.start_seq >= topic.count:
            native_store.skip_to_end(self.tables.native, record.group_id)
        else:
            rebuild.group(self.tables.native, record.group_id)
