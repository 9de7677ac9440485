"""The life of one message: what the CommitLog says of it, and what follows from that.

The log is read from the segment in which the message was sent; records about other messages are passed over where they
lie. Two kinds of events are no records: a lease that ended, and a move down the wheel, which follows from when the
message was sent and due. An extended lease is in the log as one that was given back for later. Some records do not say
when they were written: of these it is known that they are later than the last record before them that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tickwheel_native.wheel import BLOCK_BITS, LEADS_MS
from timerlog.commitlog.reader import END_RECORD
from timerlog.commitlog.view import LogView
from timerlog.files.disk import FileDisk
from timerlog.layout import (
    PUT_HEAD,
    Int64Array,
    MessageState,
    RecordType,
)
from timerlog.readers.events import EVENTS, NO_TIME, Events, events_of, flat, records_about
from timerlog.readers.known_groups import GROUP_TYPES, KnownGroups, base_of
from timerlog.readers.snapshot import Snapshot

PURGED: Final = "purged"
LIMIT: Final = "limit"
TIME: Final = "time"
DAMAGED: Final = "damaged"

_READ: Final = frozenset(EVENTS) | GROUP_TYPES
_TIMED: Final = (RecordType.MESSAGE, RecordType.PUT, RecordType.LEASE)
_SETTLED: Final = frozenset({"acked", "nacked", "returned", "redelivered", "dead", "released"})
_ENDED: Final = frozenset({"cancelled", "expired", "damaged", "dropped"})


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a message. Times in epoch ms."""

    event: str
    position: int  #: of the record in the log
    time_ms: int | None = None  #: None: the log does not say
    after_ms: int | None = None  #: then: it was later than this
    next_ms: int | None = None  #: when it is due, its lease ends, or it goes on
    group: str = ""
    epoch: int = 0
    error: str = ""
    level: int | None = None  #: of the wheel, to which it came
    computed: bool = False  #: it follows from other events


class History(msgspec.Struct, frozen=True, kw_only=True):
    """``missing``: why there may have been more, empty if this is all: ``purged`` (the log begins later), ``limit``,
    ``time``, ``damaged`` (a part of the log cannot be read)."""

    id: int
    topic: str
    events: list[HistoryEvent]
    missing: list[str]


def history_of(
    snapshot: Snapshot, message_id: int, end: int, limit: int, is_late: Callable[[], bool]
) -> History | None:
    """The events of a message up to a position of the log, at most ``limit`` records of them, as far as they are found
    before ``is_late``. None: there is no such message, or none any more."""
    if not 0 < message_id < len(snapshot.messages):
        return None
    row = snapshot.messages.at(message_id)
    topics = {topic.topic_id: topic for topic in snapshot.description.topics}
    topic = topics.get(int(row["topic_id"]))
    if topic is None or row["state"] in (MessageState.NONE, MessageState.DROPPED):
        return None
    seq = int(row["topic_seq"])
    has_seq = int(snapshot.ids_of(topic.topic_id, np.array([seq]))[0]) == message_id
    seqs = {seq} if has_seq else set()
    search = _Search(snapshot.log, message_id, topic.topic_id, seqs, snapshot.description.segment_bytes)
    bases = FileDisk(Path(snapshot.description.directory)).segments()
    logged = search.run(bases, int(row["position"]), end, limit, is_late)
    return History(
        id=message_id,
        topic=topics.get(topic.parent, topic).name,
        events=_with_computed(logged, snapshot.description.now_ms),
        missing=sorted(search.missing),
    )


def pack_history(found: History | None, max_bytes: int) -> bytes:
    """``{history: …}``, with the last events left out that do not fit."""
    packed = msgspec.msgpack.encode({"history": found})
    while found is not None and len(packed) > max_bytes:
        assert found.events, "an answer without events fits"
        kept = found.events[: len(found.events) * max_bytes // len(packed) * 9 // 10]
        missing = sorted({*found.missing, LIMIT})
        found = msgspec.structs.replace(found, events=kept, missing=missing)
        packed = msgspec.msgpack.encode({"history": found})
    return packed


@dataclass(slots=True)
class _Search:
    """Reads the log for one message."""

    log: LogView
    message_id: int
    topic_id: int
    seqs: set[int]
    """The numbers that it had in its topic: another one after each time that it was rescheduled there."""
    segment_bytes: int
    last_time_ms: int | None = None
    """The latest time that was read in the log."""
    missing: set[str] = field(default_factory=set)

    def run(
        self, bases: list[int], position: int, end: int, limit: int, is_late: Callable[[], bool]
    ) -> list[HistoryEvent]:
        """What the log says. ``position``: where the message lies."""
        events: list[HistoryEvent] = []
        bases = [base for base in self._from_where_it_was_sent(bases, position) if base < end]
        groups = KnownGroups(self.log, bases[0]) if bases else None
        for base in bases:
            assert groups is not None
            for event in self._segment(base, min(base + self.segment_bytes, end), groups, is_late):
                if len(events) == limit:
                    self.missing.add(LIMIT)
                    return events
                assert not events or events[-1].position <= event.position, "they come in the log's order"
                events.append(event)
            if TIME in self.missing:
                break
        if not any(event.event == "sent" for event in events) and not self.missing:
            self.missing.add(PURGED)
        return events

    def _from_where_it_was_sent(self, bases: list[int], position: int) -> list[int]:
        """The segments from the one that had it first. Purging has written it again if its segment began with a higher
        id, and what is left of its earlier life may lie in any segment."""
        home = position // self.segment_bytes * self.segment_bytes
        base = base_of(self.log, home)
        if base is None or base.next_id <= self.message_id:
            return [one for one in bases if one >= home]
        return bases

    def _segment(
        self, base: int, end: int, groups: KnownGroups, is_late: Callable[[], bool]
    ) -> Iterator[HistoryEvent]:
        stop, reason = base, None
        for part in self.log.scan(base, end, _READ | {RecordType.TRANSACTION}):
            yield from self._part(flat(self.log, part.positions, _READ), groups)
            stop, reason = part.stop, part.reason
            if is_late():
                self.missing.add(TIME)
                return
        if reason != END_RECORD and stop < end:
            is_gone = self.log.first_record(base) is None
            self.missing.add(PURGED if is_gone else DAMAGED)

    def _part(self, positions: Int64Array, groups: KnownGroups) -> Iterator[HistoryEvent]:
        if not len(positions):
            return
        kinds = self.log.heads(positions)["type"]
        is_group = np.isin(kinds, list(GROUP_TYPES))
        groups.note(positions[is_group])
        positions, kinds = positions[~is_group], kinds[~is_group]
        timed = positions[np.isin(kinds, _TIMED)]
        by_id = records_about(self.log, positions[kinds == RecordType.PUT], self.message_id, (), ())
        for events in events_of(self.log, by_id):
            self.seqs.update(events.seqs[events.ids == self.message_id].tolist())
        numbers = groups.numbers_of(self.topic_id)
        about = records_about(self.log, positions, self.message_id, self.seqs, numbers)
        for events in events_of(self.log, about):
            yield from self._rows(events, timed, groups)
        if len(timed):
            self.last_time_ms = self._time_of(int(timed[-1]))

    def _rows(self, events: Events, timed: Int64Array, groups: KnownGroups) -> Iterator[HistoryEvent]:
        is_mine = events.ids == self.message_id
        numbers = list(groups.numbers_of(self.topic_id))
        is_mine |= np.isin(events.seqs, list(self.seqs)) & np.isin(events.group_ids, numbers)
        for row in np.flatnonzero(is_mine).tolist():
            position, name = int(events.positions[row]), ""
            if group_id := int(events.group_ids[row]):
                group = groups.at(group_id, position)
                if group is None or group.topic_id != self.topic_id:
                    continue
                name = group.name
            time_ms, next_ms = int(events.times_ms[row]), int(events.next_ms[row])
            yield HistoryEvent(
                event=EVENTS[int(events.kinds[row])],
                position=position,
                time_ms=None if time_ms == NO_TIME else time_ms,
                after_ms=self._time_before(position, timed) if time_ms == NO_TIME else None,
                next_ms=None if next_ms == NO_TIME else next_ms,
                group=name,
                epoch=int(events.epochs[row]),
                error=events.errors.get(position, ""),
            )

    def _time_before(self, position: int, timed: Int64Array) -> int | None:
        """What the last record before a position says that says a time."""
        before = int(np.searchsorted(timed, position))
        return self._time_of(int(timed[before - 1])) if before else self.last_time_ms

    def _time_of(self, position: int) -> int | None:
        here = np.array([position])
        kind = int(self.log.heads(here)["type"][0])
        if kind == RecordType.MESSAGE:
            return int(self.log.messages(here)["created_ms"][0])
        if kind == RecordType.PUT:
            return int(np.frombuffer(self.log.payload(position), PUT_HEAD, 1)["tick_ms"][0])
        for events in events_of(self.log, here):
            return int(events.times_ms[0]) if events.times_ms[0] != NO_TIME else self.last_time_ms
        return self.last_time_ms


def _with_computed(logged: list[HistoryEvent], now_ms: int) -> list[HistoryEvent]:
    """These events, in order, with those that follow from them."""
    events: list[HistoryEvent] = []
    #: By group: the last delivery or extension, unless something has ended it.
    leases: dict[str, HistoryEvent] = {}
    #: By group: where the nack is that nothing has followed.
    nacked: dict[str, int] = {}
    due_ms = 0

    def end_lease(group: str, by_ms: int) -> None:
        lease = leases.pop(group, None)
        if lease is not None and lease.next_ms is not None and lease.next_ms <= by_ms:
            events.append(
                HistoryEvent(
                    event="lease_ended",
                    position=lease.position,
                    time_ms=lease.next_ms,
                    group=group,
                    epoch=lease.epoch,
                    computed=True,
                )
            )

    for event in logged:
        lease = leases.get(event.group)
        if event.event in ("sent", "rescheduled"):
            due_ms = max(event.time_ms or 0, event.next_ms or 0)
        elif event.event == "due":
            # The record says how far the wheel had turned, which may have been less when it was due at once.
            event = msgspec.structs.replace(event, time_ms=max(event.time_ms or 0, due_ms))
            events += _moves(logged, event.time_ms or now_ms)
        elif event.event == "delivered":
            end_lease(event.group, event.time_ms or 0)
            leases[event.group] = event
        elif event.event == "released" and _is_extension(event, lease):
            event = msgspec.structs.replace(event, event="extended")
            leases[event.group] = event
        elif event.event in _SETTLED:
            if event.event == "dead":
                end_lease(event.group, event.time_ms or 0)
                place = nacked.get(event.group)
                if place is not None:  # it was the last one: no try came behind it
                    events[place] = msgspec.structs.replace(events[place], next_ms=None)
            leases.pop(event.group, None)
        elif event.event in _ENDED:
            leases.clear()
        nacked.pop(event.group, None)
        if event.event == "nacked":
            nacked[event.group] = len(events)
        events.append(event)
    if not any(event.event == "due" or event.event in _ENDED for event in logged):
        events += _moves(logged, now_ms)
    for group in list(leases):
        end_lease(group, now_ms)
    return events


def _is_extension(event: HistoryEvent, lease: HistoryEvent | None) -> bool:
    """A lease that was given back is free at once, one that was extended not before it would have ended."""
    return lease is not None and lease.epoch == event.epoch and (event.next_ms or 0) >= (lease.next_ms or 0)


def _moves(logged: list[HistoryEvent], until_ms: int) -> Iterator[HistoryEvent]:
    """The moves down the wheel of a message that was never rescheduled; of others it is not known when they got their
    time, so neither is the level to which they came first."""
    sent = next((event for event in logged if event.event == "sent"), None)
    if sent is None or any(event.event == "rescheduled" for event in logged):
        return
    assert sent.time_ms is not None
    assert sent.next_ms is not None
    for level in reversed(range(len(LEADS_MS))):
        shift = BLOCK_BITS * (level + 1)
        opened_ms = (sent.next_ms >> shift << shift) - LEADS_MS[level]
        if sent.time_ms < opened_ms <= until_ms:
            yield HistoryEvent(
                event="cascaded", position=sent.position, time_ms=opened_ms, level=level, computed=True
            )
