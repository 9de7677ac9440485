"""The last deliveries to some groups, newest first, and what became of each: what the CommitLog says of them.

Leases are looked for from the end of the log to its beginning, a segment at a time; then all of the log behind the
oldest one that is wanted is read for what became of them. Records of other groups are passed over where they lie. A
group's own leases are known by their epochs: those of groups that had its number before are lower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from timerlog.commitlog.records import GroupRecord
from timerlog.errors import DECODE_ERRORS
from timerlog.files.disk import FileDisk
from timerlog.layout import Int64Array, RecordType
from timerlog.readers.events import NO_TIME, Events, events_of, flat
from timerlog.readers.snapshot import Snapshot

TIME: Final = "time"
SIZE: Final = "size"
MOST_BYTES: Final = 1 << 30
"""So much of the log is read on the way back, in whole segments, and as much on the way forth: no index knows which
part of it is about a group."""
_LEASE: Final = frozenset({RecordType.LEASE})
_AFTER: Final = frozenset(
    {
        RecordType.LEASE,
        RecordType.ACK,
        RecordType.NACK,
        RecordType.RELEASE,
        RecordType.RETURNED,
        RecordType.REDELIVER,
        RecordType.DEAD,
    }
)
_BLOCK: Final = 256
"""So many records are decoded at once on the way back."""


class Before(NamedTuple):
    """Only what lies before it in the log: the position of a record, and which of its messages."""

    position: int
    place: int


class Attempt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A delivery. Times in epoch ms."""

    group_id: int
    epoch: int
    position: int  #: of the record in the log
    place: int  #: which of the record's messages
    seq: int  #: the message's number in its topic
    id: int = 0  #: 0: it has been purged since
    number: int | None = None  #: which attempt it was, from 1; None: none, or it is not known
    time_ms: int | None = None
    due_ms: int | None = None  #: when it should have been
    outcome: str = "leased"  #: acked, nacked, dead, returned, lease_ended
    settled_ms: int | None = None
    next_ms: int | None = None  #: the end of its lease, or when it was to go on
    error: str = ""
    is_test: bool = False  #: the one attempt at a message of the mark's group


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """``next``: before which there may be more; ``missing``: why something is not known: ``time``, ``size``."""

    attempts: list[Attempt]
    next: Before | None
    missing: list[str]


class Mark(msgspec.Struct, frozen=True):
    """Of this group only messages that have a header of this value are meant, and the one attempt at each."""

    group_id: int
    header: str
    value: str


@dataclass(slots=True)
class AttemptReader:
    """Reads back from ``before`` (None: from ``end``): at most ``limit`` deliveries to groups of these numbers."""

    snapshot: Snapshot
    groups: list[int]
    mark: Mark | None
    before: Before | None
    end: int
    limit: int
    most_bytes: int = MOST_BYTES
    missing: list[str] = field(default_factory=list, init=False)
    _known: dict[int, GroupRecord] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        assert self.limit > 0, "a page has attempts, or the next one would be the same"
        wanted = {*self.groups, *([] if self.mark is None else [self.mark.group_id])}
        groups = self.snapshot.description.groups
        self._known = {group.group_id: group for group in groups if group.group_id in wanted}

    def run(self, is_late: Callable[[], bool]) -> Attempts:
        """As far as it comes before ``is_late``."""
        size = self.snapshot.description.segment_bytes
        bases = FileDisk(Path(self.snapshot.description.directory)).segments()
        found, following = self._newest(bases, size, is_late)
        before = self.before or Before(self.end, 0)
        assert following is None or following < before, "the next page lies before this one"
        self._outcomes(found, bases, size, is_late)
        marked = 0 if self.mark is None else self.mark.group_id
        attempts = [one for one in found if one.group_id != marked or _is_the_one(one)]
        return Attempts(attempts=attempts, next=following, missing=self.missing)

    # -- which --

    def _newest(
        self, bases: list[int], size: int, is_late: Callable[[], bool]
    ) -> tuple[list[Attempt], Before | None]:
        found: list[Attempt] = []
        before = self.before or Before(self.end, 0)
        for base in reversed([base for base in bases if base < before.position]):
            for attempt in self._back(base, min(base + size, self.end), before):
                if len(found) == self.limit:
                    return found, Before(found[-1].position, found[-1].place)
                found.append(attempt)
            if base != bases[0] and (reason := self._ends(before.position - base, is_late)):
                self.missing = [reason]
                return found, Before(base, 0)
        return found, None

    def _ends(self, read_bytes: int, is_late: Callable[[], bool]) -> str:
        """Why no more is to be read; empty: it may be."""
        if is_late():
            return TIME
        return SIZE if read_bytes >= self.most_bytes else ""

    def _back(self, base: int, end: int, before: Before) -> Iterator[Attempt]:
        """Those of a segment, from its end on."""
        log = self.snapshot.log
        positions = self._mine(base, end, _LEASE)
        positions = positions[positions <= before.position]
        for stop in range(len(positions), 0, -_BLOCK):
            for events in reversed(list(events_of(log, positions[max(0, stop - _BLOCK) : stop]))):
                rows = [self._attempt(events, row) for row in range(len(events) - 1, -1, -1)]
                yield from self._wanted(
                    [one for one in rows if one is not None and (one.position, one.place) < before]
                )

    def _mine(self, start: int, end: int, types: frozenset[int]) -> Int64Array:
        """The records of these types about the groups."""
        log, found = self.snapshot.log, [np.zeros(0, np.int64)]
        numbers = list(self._known)
        for part in log.scan(start, end, types | {RecordType.TRANSACTION}):
            positions = flat(log, part.positions, types)
            if len(positions):
                found.append(positions[np.isin(log.heads(positions)["aux"], numbers)])
        return np.concatenate(found)

    def _attempt(self, events: Events, row: int) -> Attempt | None:
        """None: another group had the number then."""
        group = self._known[int(events.group_ids[row])]
        epoch, seq = int(events.epochs[row]), int(events.seqs[row])
        if epoch <= (group.fence or 0):
            return None
        time_ms, next_ms = int(events.times_ms[row]), int(events.next_ms[row])
        return Attempt(
            group_id=group.group_id,
            epoch=epoch,
            position=int(events.positions[row]),
            place=int(events.places[row]),
            seq=seq,
            id=int(self.snapshot.ids_of(group.topic_id, np.array([seq]))[0]),
            time_ms=None if time_ms == NO_TIME else time_ms,
            next_ms=next_ms,
        )

    def _wanted(self, attempts: list[Attempt]) -> Iterator[Attempt]:
        mark = self.mark
        for attempt in attempts:
            if mark is None or attempt.group_id != mark.group_id or self._has(attempt.id, mark):
                yield attempt

    def _has(self, message_id: int, mark: Mark) -> bool:
        ids = np.array([message_id], np.int64)
        records = self.snapshot.records(ids)
        if not message_id or not records.is_whole[0]:
            return False
        starts, sizes = records.headers()
        try:
            packed = self.snapshot.log.read(int(starts[0]), int(sizes[0]))
            headers = msgspec.msgpack.decode(packed, type=dict[str, object])
        except DECODE_ERRORS:
            return False
        return headers.get(mark.header) == mark.value

    # -- what became of them --

    def _outcomes(
        self, found: list[Attempt], bases: list[int], size: int, is_late: Callable[[], bool]
    ) -> None:
        """As far as all of the log was read that may say it."""
        if not found:
            return
        assert found[-1].position <= found[0].position, "the newest comes first"
        fates = _Fates(found)
        first = found[-1].position // size * size
        for base in [base for base in bases if base >= first]:
            positions = self._mine(base, min(base + size, self.end), _AFTER)
            for events in events_of(self.snapshot.log, positions):
                fates.note(events)
            is_whole = base == bases[-1]
            if not is_whole and (reason := self._ends(base + size - first, is_late)):
                self.missing = [reason]
                break
        for group_id, group in self._known.items():
            mine = [one for one in found if one.group_id == group_id]
            seqs = np.array([one.seq for one in mine], np.int64)
            rows = self.snapshot.deliveries(group, seqs)
            numbers = zip(rows["epoch"].tolist(), rows["base_epoch"].tolist(), strict=True)
            for attempt, (last_epoch, base_epoch) in zip(mine, numbers, strict=True):
                if last_epoch and is_whole:
                    fates.count(attempt, base_epoch)
        for attempt in found:
            self._end(attempt, fates)
            if self.mark is not None and attempt.group_id == self.mark.group_id:
                attempt.is_test = True
                if attempt.outcome != "leased":
                    attempt.next_ms = None  # it is given back for what was answered, and not tried again

    def _end(self, attempt: Attempt, fates: _Fates) -> None:
        now_ms = self.snapshot.description.now_ms
        if attempt.outcome == "leased" and attempt.next_ms is not None and attempt.next_ms <= now_ms:
            attempt.outcome, attempt.settled_ms = "lease_ended", attempt.next_ms
            attempt.next_ms = None
        if attempt.number == 1 and attempt.id:
            row = self.snapshot.messages.at(attempt.id)
            attempt.due_ms = max(int(row["deliver_at_ms"]), int(row["created_ms"]))
        elif attempt.number is not None:
            attempt.due_ms = fates.again_ms.get((attempt.group_id, attempt.seq, attempt.epoch - 1))


def _is_the_one(attempt: Attempt) -> bool:
    return attempt.outcome != "returned" and attempt.number in (1, None)


class _Fates:
    """What is said of some deliveries, and of their messages."""

    def __init__(self, attempts: list[Attempt]) -> None:
        self._attempts = {(one.group_id, one.seq, one.epoch): one for one in attempts}
        self._last_epoch: dict[tuple[int, int], int] = {}
        """Of the last delivery that was noted: a letter does not say after which it died."""
        self._seqs = np.array(sorted({one.seq for one in attempts}), np.int64)
        self.again_ms: dict[tuple[int, int, int], int] = {}
        """When a message was to come again after a delivery."""
        self._returned: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._called: dict[tuple[int, int], int] = {}
        """Where in the log it was called for again."""

    def note(self, events: Events) -> None:
        """In the order of the log."""
        for row in np.flatnonzero(np.isin(events.seqs, self._seqs)).tolist():
            kind, position = int(events.kinds[row]), int(events.positions[row])
            group_id, seq, epoch = int(events.group_ids[row]), int(events.seqs[row]), int(events.epochs[row])
            time_ms, next_ms = int(events.times_ms[row]), int(events.next_ms[row])
            if kind == RecordType.REDELIVER:
                self._called[group_id, seq] = position
                continue
            if kind == RecordType.LEASE:
                self._last_epoch[group_id, seq] = epoch
                continue
            if kind == RecordType.DEAD:
                epoch = self._last_epoch.get((group_id, seq), 0)
            attempt = self._attempts.get((group_id, seq, epoch))
            if kind == RecordType.NACK:
                self.again_ms[group_id, seq, epoch] = next_ms
            if kind == RecordType.RETURNED:
                self._returned[group_id, seq].add(epoch)
            if attempt is not None:
                _tell(attempt, kind, time_ms, next_ms, events.errors.get(position, ""))

    def count(self, attempt: Attempt, base_epoch: int) -> None:
        """Which one it was: what is no attempt is not counted, and neither is what was before it was called for."""
        key = attempt.group_id, attempt.seq
        if attempt.outcome == "returned" or self._called.get(key, 0) > attempt.position:
            return
        later = sum(epoch > attempt.epoch for epoch in self._returned[key])
        number = attempt.epoch - base_epoch + later
        attempt.number = number if number > 0 else None


def _tell(attempt: Attempt, kind: int, time_ms: int, next_ms: int, error: str) -> None:
    if kind == RecordType.RELEASE:
        attempt.next_ms = next_ms
    elif kind == RecordType.ACK:
        attempt.outcome, attempt.settled_ms, attempt.next_ms = "acked", time_ms, None
    elif kind == RecordType.DEAD:
        attempt.outcome, attempt.settled_ms, attempt.next_ms = "dead", time_ms, None
    elif kind == RecordType.RETURNED:
        attempt.outcome, attempt.settled_ms, attempt.next_ms = "returned", time_ms, None
    elif kind == RecordType.NACK:
        attempt.outcome = "returned" if attempt.outcome == "returned" else "nacked"
        attempt.next_ms, attempt.error = next_ms, error


def pack_attempts(found: Attempts, max_bytes: int) -> bytes:
    """As an answer, without the oldest ones if they do not fit."""
    packed = msgspec.msgpack.encode(found)
    while len(packed) > max_bytes and len(found.attempts) > 1:
        kept = found.attempts[: len(found.attempts) // 2]
        found = msgspec.structs.replace(found, attempts=kept, next=Before(kept[-1].position, kept[-1].place))
        packed = msgspec.msgpack.encode(found)
    return packed
