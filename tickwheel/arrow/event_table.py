"""Reads events from the logs of data directories as Arrow batches: what the table ``events`` and a stream are made of.

An offset of a stream says for each log how far it was read: a position, at which a record begins. A log is known by its
number, not by where its directory lies, so a directory may be moved between two runs of a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tickwheel.arrow.columns import ARROW_TYPES, EVENT_COLUMNS
from tickwheel.arrow.errors import PositionLost, SourceError
from tickwheel.arrow.options import ReadOptions
from tickwheel.arrow.predicates import Predicate
from timerlog.commitlog.view import LogView
from timerlog.errors import PositionGone
from timerlog.layout import Int64Array, MessageState
from timerlog.query.columns import LogColumns, shard_names
from timerlog.readers.describe import Offline
from timerlog.readers.events import (
    EVENTS,
    NO_TIME,
    Events,
    event_types,
    position_after_bytes,
    position_after_rows,
    read_events,
)
from timerlog.readers.snapshot import Snapshot

#: By log number (16 hexadecimal digits): a position.
Offset: TypeAlias = dict[str, int]
_EVENT_TYPES: Final = sorted(EVENTS)
_EVENT_NAMES: Final = pa.array([EVENTS[kind] for kind in _EVENT_TYPES], pa.string())


@dataclass(frozen=True, slots=True)
class EventsPart:
    """What one task reads: positions from ``start`` to ``end`` of one log, within one segment."""

    directory: int
    start: int
    end: int


def log_key(offline: Offline) -> str:
    """By what an offset knows a log: positions mean something in one timeline of it."""
    return f"{offline.description.timeline or offline.description.log_id:016x}"


def wanted_types(options: ReadOptions) -> frozenset[int]:
    """The record types of the events that are asked for. Raises ``SourceError``."""
    try:
        return frozenset(EVENTS) if options.events is None else event_types(options.events)
    except KeyError as error:
        raise SourceError(f"There is no event {error}: use {', '.join(EVENTS.values())}.") from None


def starting_offset(options: ReadOptions, found: list[Offline]) -> Offset:
    """Where a new query begins. Raises ``SourceError``, ``PositionLost``."""
    starting = options.starting
    if starting == "earliest":
        return {log_key(one): one.first_position for one in found}
    if starting == "latest":
        return {log_key(one): one.end_position for one in found}
    assert isinstance(starting, dict)
    if set(starting) == {""} and len(options.directories) > 1:
        raise SourceError("One position cannot be that of several directories: give startingOffsets as JSON.")
    unknown = set(starting) - {*options.directories, ""}
    if unknown:
        raise SourceError(f"startingOffsets names {sorted(unknown)[0]!r}, which is not read.")
    offset = {}
    for directory, one in zip(options.directories, found, strict=True):
        position = starting.get(directory, starting.get("", one.first_position))
        offset[log_key(one)] = _position(one, position, options)
    return offset


def _position(one: Offline, position: int, options: ReadOptions) -> int:
    """A position of a log that can still be read. Raises ``PositionLost``."""
    try:
        one.check_position(position)
    except PositionGone as error:
        if options.fail_on_data_loss or position > one.first_position:
            raise PositionLost(f"{str(error).capitalize()}.") from None
        return one.first_position
    return position


def current_offset(
    options: ReadOptions, found: list[Offline], start: Offset, target: Offset | None, limit_rows: int | None
) -> Offset:
    """How far the next batch goes from ``start``: to the end of what is committed, or of ``target``; with a limit, so
    far that it holds about that many events: a record is not split, and each log takes its share in turn. Raises
    ``PositionLost``, ``SourceError``."""
    wanted = wanted_types(options)
    _check_logs(options, found, start)
    offset, left = {}, limit_rows
    for one in found:
        key = log_key(one)
        first = _position(one, start.get(key, one.first_position), options)
        end = (
            one.end_position
            if target is None
            else max(first, _position(one, target.get(key, first), options))
        )
        if left is None:
            offset[key] = end
        elif left <= 0 or first >= end:
            offset[key] = first
        else:
            offset[key], rows = _limited(one, first, end, wanted, left)
            left -= rows
    return offset


def offset_after_bytes(
    options: ReadOptions, one: Offline, start: Offset, target: Offset | None, limit_bytes: int
) -> Offset:
    """How far a batch goes that ends at the first record ``limit_bytes`` behind ``start``, whatever it holds. Raises
    ``PositionLost``."""
    offset = current_offset(options, [one], start, target, None)
    ((key, end),) = offset.items()
    first, description = start.get(key, one.first_position), one.description
    if end - first <= limit_bytes:
        return offset
    with closing(LogView(Path(description.directory, "commitlog"), description.segment_bytes)) as log:
        return {key: position_after_bytes(log, first, end, limit_bytes)}


def _check_logs(options: ReadOptions, found: list[Offline], start: Offset) -> None:
    lost = set(start) - {log_key(one) for one in found}
    if lost and options.fail_on_data_loss:
        raise PositionLost(
            f"The query has read the log {sorted(lost)[0]}, which no directory holds any more."
        )


def _limited(one: Offline, first: int, end: int, wanted: frozenset[int], limit_rows: int) -> tuple[int, int]:
    """A position behind at most ``limit_rows`` events, and how many these are, if that is all; else the limit."""
    description = one.description
    with closing(LogView(Path(description.directory, "commitlog"), description.segment_bytes)) as log:
        stop = position_after_rows(log, first, end, wanted, limit_rows)
        if stop < end:
            return stop, limit_rows
        return end, sum(len(part) for part in read_events(log, first, end, wanted))


def split_events(found: list[Offline], start: Offset, end: Offset, options: ReadOptions) -> list[EventsPart]:
    """The parts between two offsets: one for each segment. Raises ``PositionLost``."""
    parts = []
    _check_logs(options, found, start)
    for number, one in enumerate(found):
        key = log_key(one)
        first = _position(one, start.get(key, one.first_position), options)
        last = _position(one, end.get(key, first), options)
        parts += [EventsPart(number, *piece) for piece in one.parts(first, max(first, last))]
    return parts


def all_events(found: list[Offline]) -> list[EventsPart]:
    """Everything that is committed, one part for each segment."""
    return [
        EventsPart(number, *piece)
        for number, one in enumerate(found)
        for piece in one.parts(one.first_position, one.end_position)
    ]


def read_event_batches(
    offline: Offline,
    part: EventsPart,
    columns: list[str],
    predicates: list[Predicate],
    wanted: frozenset[int],
) -> Iterator[Any]:
    """Record batches of the ``columns``, in their order. Raises ``DamagedLog`` when the part cannot be read whole."""
    with closing(Snapshot(offline.description)) as snapshot:
        for batch in scan_events(snapshot, part, columns, predicates, wanted):
            if batch is not None:
                yield batch


def scan_events(
    snapshot: Snapshot,
    part: EventsPart,
    columns: list[str],
    predicates: list[Predicate],
    wanted: frozenset[int],
) -> Iterator[Any]:
    """The same of a snapshot that is open already. None where no event of a chunk passed: who reads for several
    readers lets the next reader go on."""
    scan = _EventScan(snapshot, columns, predicates)
    for events in read_events(snapshot.log, part.start, part.end, wanted):
        yield scan.batch(events)


class _EventScan:
    def __init__(self, snapshot: Snapshot, columns: list[str], predicates: list[Predicate]) -> None:
        self._snapshot, self._columns, self._predicates = snapshot, columns, predicates
        description = snapshot.description
        self._topics = {topic.topic_id: topic.name for topic in description.topics}
        shards = shard_names(description.topics)
        self._shards = {
            topic.topic_id: name
            for topic, name in zip(description.topics, shards, strict=True)
            if name is not None
        }
        self._groups = {group.group_id: group.name for group in description.groups}
        self._topic_of_group = {group.group_id: group.topic_id for group in description.groups}
        self._fences = {group.group_id: group.fence for group in description.groups if group.fence}
        self._log = LogColumns(snapshot)
        self._needed = {*columns, *(one.column for one in predicates)}

    def batch(self, events: Events) -> Any:
        """The rows of the events that pass the filters; None where no event passes."""
        for group_id, fence in self._fences.items():
            mine = np.flatnonzero((events.group_ids == group_id) & (events.epochs > 0))
            is_own = events.epochs[mine] > fence
            events.epochs[mine[is_own]] -= fence
            events.group_ids[mine[~is_own]] = 0  # of groups that are gone and had this number
        self._complete(events)
        made = {name: self._column(name, events) for name in EVENT_COLUMNS if name in self._needed}
        passed = np.ones(len(events), bool)
        for one in self._predicates:
            passed &= one.passes(made[one.column])
        if not passed.any():
            return None
        arrays = [made[name] for name in self._columns]
        if not passed.all():
            kept = pa.array(np.flatnonzero(passed))
            arrays = [array.take(kept) for array in arrays]
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)

    def _complete(self, events: Events) -> None:
        """Records name some messages by id, others by their number in a topic, which a group gives."""
        if self._needed.isdisjoint(_OF_MESSAGE):
            return
        for group_id in np.unique(events.group_ids[events.group_ids > 0]).tolist():
            events.topic_ids[events.group_ids == group_id] = self._topic_of_group.get(group_id, 0)
        for topic_id in np.unique(events.topic_ids[events.ids == 0]).tolist():
            mine = np.flatnonzero((events.ids == 0) & (events.topic_ids == topic_id))
            if topic_id in self._topics:
                events.ids[mine] = self._snapshot.ids_of(topic_id, events.seqs[mine])
        unknown = np.flatnonzero(events.topic_ids == 0)
        events.topic_ids[unknown] = self._rows(events.ids[unknown])["topic_id"]

    def _rows(self, ids: Int64Array) -> Any:
        """The rows of messages; zeros for what is not there any more."""
        known = (ids > 0) & (ids < len(self._snapshot.messages))
        return self._snapshot.messages.take(np.where(known, ids, 0))

    def _column(self, name: str, events: Events) -> Any:
        match name:
            case "position":
                return pa.array(events.positions)
            case "place":
                return pa.array(events.places.astype(np.int32))
            case "event":
                return _EVENT_NAMES.take(pa.array(np.searchsorted(_EVENT_TYPES, events.kinds)))
            case "time":
                return _times(events.times_ms)
            case "time_next":
                return _times(events.next_ms)
            case "topic":
                return _named(events.topic_ids, self._topics)
            case "shard":
                return _named(events.topic_ids, self._shards)
            case "group":
                return _named(events.group_ids, self._groups)
            case "id":
                return _known(events.ids)
            case "epoch":
                return _known(events.epochs)
            case "error":
                texts = [events.errors.get(position) for position in events.positions.tolist()]
                return pa.array(texts, pa.string())
            case "key":
                return self._log.key(events.ids)
            case "directory":
                return pa.repeat(self._snapshot.description.directory, len(events))
        return self._of_row(name, events)

    def _of_row(self, name: str, events: Events) -> Any:
        rows = self._rows(events.ids)
        is_gone = rows["state"] == MessageState.NONE
        if name == "priority":
            return pa.array(rows["priority"].astype(np.int32), mask=is_gone)
        return _times(np.where(is_gone, NO_TIME, rows["deliver_at_ms"]))


_OF_MESSAGE: Final = frozenset({"id", "topic", "shard", "key", "priority", "deliver_at"})


def _times(times_ms: Int64Array) -> Any:
    return pa.array(times_ms * 1_000, pa.int64(), mask=times_ms == NO_TIME).view(ARROW_TYPES["timestamp"])


def _known(numbers: Int64Array) -> Any:
    return pa.array(numbers, pa.int64(), mask=numbers == 0)


def _named(numbers: Int64Array, names: dict[int, str]) -> Any:
    """The name of each number; NULL for one without."""
    listed = sorted(names)
    if not listed:
        return pa.nulls(len(numbers), pa.string())
    places = np.minimum(np.searchsorted(listed, numbers), len(listed) - 1)
    is_known = np.asarray(listed)[places] == numbers
    return pa.array([names[number] for number in listed], pa.string()).take(pa.array(places, mask=~is_known))
