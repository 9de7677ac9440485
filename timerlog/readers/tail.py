"""What has happened since a place in the log: a piece of it at a time, with the place from which to go on.

A place is the position of a record and how many of its rows were told already. Places hold over restarts of the broker,
and as long as the log has not been purged up to there. A place of another timeline of the log is known as such: the
upper bits of what is told say of which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from timerlog.commitlog.reader import END_RECORD
from timerlog.files.disk import FileDisk
from timerlog.layout import SEGMENT_HEADER_BYTES, Int64Array, RecordType
from timerlog.readers.events import EVENTS, NO_TIME, Events, events_of, flat, flat_with_tops
from timerlog.readers.known_groups import GROUP_TYPES, KnownGroups
from timerlog.readers.snapshot import Snapshot

_READ: Final = frozenset(EVENTS) | GROUP_TYPES | {RecordType.TRANSACTION}
_STEP_ROWS: Final = 10_000
_EVENT_BYTES: Final = 256


class Place(NamedTuple):
    """Where to go on."""

    position: int
    told: int


_TOLD_BITS: Final = 32
#: So that a place has at most 53 bits, which JSON of any reader keeps.
_TAGS: Final = (1 << 20) - 1


def told_in(timeline: int, told: int) -> int:
    """What was told, so that another timeline knows it is not of it."""
    assert 0 <= told < 1 << _TOLD_BITS, "what is told leaves room for the timeline"
    return told | _tag(timeline) << _TOLD_BITS


def _tag(timeline: int) -> int:
    return 1 + timeline % _TAGS if timeline else 0


def resumed(place: Place, timeline: int, begins: int) -> tuple[Place, bool]:
    """Where to go on in this timeline, which begins at a position: what another one told behind that is not in it.
    Whether there is a gap."""
    position, told = place.position, place.told & ((1 << _TOLD_BITS) - 1)
    if place.told >> _TOLD_BITS == _tag(timeline) or position <= begins:
        return Place(position, told), False
    return Place(begins, 0), True


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. Times in epoch ms."""

    event: str
    position: int  #: of the record in the log
    id: int = 0  #: of the message; 0: it has been purged since
    topic: str = ""  #: empty: it is gone
    group: str = ""
    epoch: int = 0
    time_ms: int | None = None  #: None: the log does not say
    next_ms: int | None = None  #: when it is due, its lease ends, or it goes on
    error: str = ""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """``has_gap``: something before or between these events is gone, or cannot be read."""

    events: list[LoggedEvent]
    next: Place
    more: bool
    has_gap: bool


@dataclass(slots=True)
class TailReader:
    """Reads on from ``place`` to ``end``: at most ``limit`` events, of about ``max_bytes``."""

    snapshot: Snapshot
    place: Place
    end: int
    limit: int
    max_bytes: int
    has_gap: bool = False
    events: list[LoggedEvent] = field(default_factory=list, init=False)
    _names: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        assert self.limit > 0, "a piece has events, or the next one would be the same"
        topics = self.snapshot.description.topics
        self._names = {topic.topic_id: topic.name for topic in topics}
        self._names |= {
            topic.topic_id: self._names[topic.parent] for topic in topics if topic.parent in self._names
        }

    def run(self, is_late: Callable[[], bool]) -> Tail:
        """As far as it comes before ``is_late``."""
        size = self.snapshot.description.segment_bytes
        bases, first = FileDisk(Path(self.snapshot.description.directory)).segments(), self.place
        for base in bases:
            end = min(base + size, self.end)
            begin = base + SEGMENT_HEADER_BYTES
            if end <= self.place.position or end <= begin:
                continue
            if self.place.position < begin:
                # A segment that was read to its end is followed by the next one; what is beyond was purged.
                self.has_gap |= self.place.position < base and self.place.position > 0
                self.place = Place(begin, 0)
            if not self._segment(base, end, is_late):
                break
        assert self.place.position >= first.position, "what was told is not told again"
        return Tail(
            events=self.events,
            next=Place(self.place.position, told_in(self.snapshot.description.timeline, self.place.told)),
            more=self.place.position < self.end,
            has_gap=self.has_gap,
        )

    def _segment(self, base: int, end: int, is_late: Callable[[], bool]) -> bool:
        """Whether it was read to its end."""
        log, begin = self.snapshot.log, self.place.position
        groups = KnownGroups(log, base)
        for part in log.scan(base, begin, GROUP_TYPES | {RecordType.TRANSACTION}):
            groups.note(flat(log, part.positions, GROUP_TYPES))
        reason = None
        for part in log.scan(begin, end, _READ):
            positions, of_top = flat_with_tops(log, part.positions, _READ)
            if not self._part(positions, part.positions[of_top], groups):
                return False
            self.place, reason = Place(part.stop, 0), part.reason
            if is_late():
                return False
        if reason != END_RECORD and self.place.position < end:
            self.has_gap = True
        self.place = Place(end, 0)
        return True

    def _part(self, positions: Int64Array, tops: Int64Array, groups: KnownGroups) -> bool:
        """Whether there was room for all of it."""
        if not len(positions):
            return True
        is_group = np.isin(self.snapshot.log.heads(positions)["type"], list(GROUP_TYPES))
        groups.note(positions[is_group])
        positions, tops = positions[~is_group], tops[~is_group]
        first, told = self.place
        top, count = -1, 0
        for events in events_of(self.snapshot.log, positions, _STEP_ROWS):
            tops_of_rows = tops[np.searchsorted(positions, events.positions)].tolist()
            for row, top_of_row in enumerate(tops_of_rows):
                top, count = (top, count + 1) if top == top_of_row else (top_of_row, 0)
                if top == first and count < told:
                    continue
                event = self._event(events, row, groups)
                self.max_bytes -= (
                    _EVENT_BYTES + len(event.topic) + len(event.group) + len(event.error.encode())
                )
                if len(self.events) == self.limit or (self.events and self.max_bytes < 0):
                    self.place = Place(top, count)
                    return False
                self.events.append(event)
        return True

    def _event(self, events: Events, row: int, groups: KnownGroups) -> LoggedEvent:
        position = int(events.positions[row])
        message_id, topic_id, name = int(events.ids[row]), int(events.topic_ids[row]), ""
        if group_id := int(events.group_ids[row]):
            group = groups.at(group_id, position)
            if group is not None:
                name, topic_id = group.name, group.topic_id
            if topic_id in self._names:
                message_id = int(self.snapshot.ids_of(topic_id, events.seqs[row : row + 1])[0])
        elif not topic_id and 0 < message_id < len(self.snapshot.messages):
            topic_id = int(self.snapshot.messages.at(message_id)["topic_id"])
        time_ms, next_ms = int(events.times_ms[row]), int(events.next_ms[row])
        return LoggedEvent(
            event=EVENTS[int(events.kinds[row])],
            position=position,
            id=message_id,
            topic=self._names.get(topic_id, ""),
            group=name,
            epoch=int(events.epochs[row]),
            time_ms=None if time_ms == NO_TIME else time_ms,
            next_ms=None if next_ms == NO_TIME else next_ms,
            error=events.errors.get(position, ""),
        )
