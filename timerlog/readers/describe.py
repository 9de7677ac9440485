"""Describes a data directory from its files alone, whether a broker is using it or not: read-only, without the lock.

A checkpoint says what held at a point of the log; the log's records from there on say what has changed since. What is
*committed* ends at the last position that a MARK or the checkpoint calls durable: a broker acknowledges nothing before
that mark is in the file. Everything behind it may be lost in a power loss, and is left out unless it is asked for.

The tables are read as they are. Whether they are those of this log follows from the checkpoint, as for a start: it
counts after a clean shutdown or in the same boot of the machine. Otherwise only a broker's start can say what they are.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from timerlog.commitlog.addresses import END_POSITION
from timerlog.commitlog.reader import BAD_CHECKSUM, BAD_LENGTH
from timerlog.commitlog.records import AdoptedRecord, GroupRecord, TimelineRecord, TopicRecord
from timerlog.commitlog.segments import SegmentHeader, segment_header_of
from timerlog.commitlog.view import LogView
from timerlog.errors import BadDirectory, DamagedLog, PositionGone, TablesMissing
from timerlog.files.disk import LOG_FOLDER, FileDisk, check_data_directory, segment_path
from timerlog.layout import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    TRANSACTION_ID_BYTES,
    Int64Array,
    RecordType,
)
from timerlog.readers.snapshot import Description
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery.checkpoint import Checkpoint

_MARK_BODY: Final = struct.Struct("<Q")
_BROKEN: Final = (BAD_LENGTH, BAD_CHECKSUM)
_TELLING: Final = frozenset(
    {
        RecordType.MESSAGE,
        RecordType.ADOPTED,
        RecordType.TOPIC,
        RecordType.GROUP,
        RecordType.GROUP_CHANGED,
        RecordType.TRANSACTION,
        RecordType.TIMELINE,
        RecordType.MARK,
    }
)


class Offline(msgspec.Struct, frozen=True, kw_only=True):
    """A directory at one moment. Positions are bytes in the log; everything before ``end_position`` is committed."""

    description: Description
    first_position: int  #: of the first record that is left
    end_position: int
    segments: list[int]  #: the position at which each segment begins, in order

    def parts(self, start: int, end: int) -> list[tuple[int, int]]:
        """The part of the log from ``start`` to ``end``, cut where segments end. Raises ``PositionGone`` when it begins
        before the log or ends behind what is committed."""
        self.check_position(start)
        self.check_position(end)
        size = self.description.segment_bytes
        pieces = [(max(base, start), min(base + size, end)) for base in self.segments]
        return [(first, last) for first, last in pieces if first < last]

    def check_position(self, position: int) -> None:
        """Raises ``PositionGone`` for one from which the log cannot be read on."""
        where = self.description.directory
        if position < self.first_position:
            raise PositionGone(
                f"position {position} was purged from {where}: its log begins at {self.first_position}"
            )
        if position > self.end_position:
            raise PositionGone(
                f"position {position} lies behind what {where} has committed ({self.end_position})"
            )


def describe_directory(directory: Path, now_ms: int, *, committed: bool = True) -> Offline:
    """Describes a directory at ``now_ms``; with ``committed`` false, up to the last whole record that is in the file.

    Raises ``BadDirectory`` when it is not a data directory, ``TablesMissing`` when its tables cannot be trusted,
    ``DamagedLog``, ``UnsupportedFormat``.
    """
    headers = _segment_headers(directory)
    first = headers[0]
    found = _checkpoint(directory, first.log_id)
    _check_sizes(directory, found, first.base)
    log = LogView(directory / LOG_FOLDER, first.segment_bytes)
    try:
        state = _State.of(found, first.segment_bytes)
        start = max(min(found.durable_position, found.position), first.base + SEGMENT_HEADER_BYTES)
        end = _read_on(log, start, state)
    finally:
        log.close()
    end = state.durable if committed else max(end, state.durable)
    return Offline(
        description=Description(
            directory=str(directory.resolve()),
            log_id=first.log_id,
            segment_bytes=first.segment_bytes,
            now_ms=now_ms,
            next_id=state.next_id_at(end),
            first_id=state.first_id,
            first_seqs={
                topic.record.topic_id: topic.first_seq for topic in found.base.topics if topic.first_seq
            },
            topics=list(state.topics.values()),
            groups=[group for group in state.groups.values() if group.topic_id in state.topics],
            timeline=state.timeline,
            gaps=sorted([*state.gaps, *state.empty]),
        ),
        first_position=first.base + SEGMENT_HEADER_BYTES,
        end_position=end,
        # The log may have gone on in other segments since these were listed.
        segments=[
            *(header.base for header in headers),
            *range(headers[-1].base + first.segment_bytes, end, first.segment_bytes),
        ],
    )


def _segment_headers(directory: Path) -> list[SegmentHeader]:
    """The headers of the segments, oldest first; one that is being created has none yet."""
    check_data_directory(directory)
    headers = []
    for base in FileDisk(directory).segments():
        header = _segment_header(segment_path(directory, base))
        if header is not None:
            headers.append(header)
    if not headers:
        raise BadDirectory(f"{directory} holds no log yet")
    if any(header.log_id != headers[0].log_id for header in headers):
        raise DamagedLog(f"the segments of {directory} are not of one log")
    return headers


def _segment_header(path: Path) -> SegmentHeader | None:
    try:
        return segment_header_of(path)
    except FileNotFoundError:  # purged just now
        return None
    except PermissionError as error:
        raise BadDirectory(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


def _checkpoint(directory: Path, log_id: int) -> Checkpoint:
    """The checkpoint, if by it the tables are those of this log."""
    found = checkpoints.load(FileDisk(directory))
    if found is None or found.log_id != log_id or not checkpoints.is_trustworthy(found):
        raise TablesMissing(f"the tables of {directory} cannot be trusted: no checkpoint speaks for them")
    for name, size_bytes in found.tables.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size < size_bytes:
            # The tables of a topic go when it is deleted, and the log says so behind the checkpoint.
            if name.startswith("topics/") and not path.exists():
                continue
            raise TablesMissing(f"{path} is missing or was cut")
    return found


def _check_sizes(directory: Path, found: Checkpoint, first_base: int) -> None:
    for base, size_bytes in found.segments.items():
        path = segment_path(directory, base)
        if base >= first_base and (not path.exists() or path.stat().st_size < size_bytes):
            raise DamagedLog(f"{path} is missing or shorter than the {size_bytes} bytes it had")


@dataclass(slots=True)
class _State:
    """What is known at the point up to which the log was read."""

    segment_bytes: int
    topics: dict[int, TopicRecord]
    groups: dict[int, GroupRecord]
    next_id: int
    first_id: int  #: no message below it is there
    durable: int  #: the highest position that a MARK names
    timeline: int  #: see ``Description``
    gaps: list[tuple[int, int]]
    empty: list[tuple[int, int]]  #: ids of which all messages are gone: see ``timerlog.tables.empty_rows``
    #: Positions and ids of messages that lie behind it, in parts.
    pending: list[tuple[Int64Array, Int64Array]] = field(default_factory=list)
    #: From where to where segments of bulk jobs lie, whose messages have ids from before.
    adopted: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, found: Checkpoint, segment_bytes: int) -> _State:
        return cls(
            segment_bytes=segment_bytes,
            topics={topic.record.topic_id: topic.record for topic in found.base.topics},
            groups={group.record.group_id: group.record for group in found.base.groups},
            next_id=found.base.next_id,
            first_id=found.base.first_id,
            durable=found.durable_position,
            timeline=found.base.timeline,
            gaps=list(found.base.gaps),
            empty=list(found.empty),
        )

    def take_in(self, position: int, record: AdoptedRecord) -> None:
        """The segments behind that of ``position`` are a bulk job's."""
        following = (position // self.segment_bytes + 1) * self.segment_bytes
        self.adopted.append((following, following + record.segments * self.segment_bytes))

    def are_adopted(self, positions: Int64Array) -> npt.NDArray[np.bool_]:
        """Which messages a bulk job has brought."""
        found = np.zeros(len(positions), np.bool_)
        for start, end in self.adopted:
            found |= (positions >= start) & (positions < end)
        return found

    def next_id_at(self, position: int) -> int:
        """The id of the first message that does not lie before ``position``."""
        for positions, ids in self.pending:
            behind = np.flatnonzero(positions >= position)
            if len(behind):
                return int(ids[behind[0]])
        return self.next_id

    def begin_timeline(self, record: TimelineRecord) -> None:
        """Ids and epochs go on elsewhere."""
        self.timeline = record.timeline
        gap = (record.gap_start, record.next_id)
        if gap not in self.gaps:
            self.gaps.append(gap)
        self.next_id = max(self.next_id, record.next_id)
        for group_id, group in self.groups.items():
            fence = max(group.fence or 0, record.epoch_floor)
            self.groups[group_id] = msgspec.structs.replace(group, fence=fence)

    def leave_empty(self, ids: Int64Array) -> None:
        """There are messages of these ids: a bulk job was taken in."""
        if self.empty and ids.min() < self.empty[-1][1]:
            ids = np.sort(ids)
            counts = np.diff(np.searchsorted(ids, np.array(self.empty, np.int64)), axis=1)[:, 0]
            self.empty = [stretch for stretch, count in zip(self.empty, counts, strict=True) if not count]

    def forget_durable(self) -> None:
        """Keeps only messages behind the last mark: that is all that may be asked for."""
        self.pending = [part for part in self.pending if part[0][-1] >= self.durable]


def _read_on(log: LogView, start: int, state: _State) -> int:
    """Takes note of what the log says from ``start`` on; returns where its last whole record ends. Raises
    ``DamagedLog``."""
    stop = start
    while True:
        for part in log.scan(stop, END_POSITION, _TELLING):
            _note(log, part.positions, state)
            state.forget_durable()
            reason, last, stop = part.reason, stop, part.stop
        if reason not in _BROKEN or log.marked_behind(stop) <= stop:
            return stop
        # The broker may have finished this record, and others, since it was looked at.
        if stop == last:
            raise DamagedLog(f"the log is damaged at position {stop}: it was on disk beyond that")


def _note(log: LogView, positions: Int64Array, state: _State) -> None:
    heads = log.heads(positions)
    for index in np.flatnonzero(heads["type"] == RecordType.ADOPTED).tolist():
        start, size_bytes = int(positions[index]) + RECORD_HEAD_BYTES, int(heads["record_bytes"][index])
        payload = log.read(start, size_bytes - RECORD_HEAD_BYTES)
        state.take_in(start, msgspec.msgpack.decode(payload, type=AdoptedRecord))
    is_message = heads["type"] == RecordType.MESSAGE
    if is_message.any():
        ids = log.messages(positions[is_message])["id"].astype(np.int64)
        is_sent = ~state.are_adopted(positions[is_message])
        if is_sent.any():
            state.pending.append((positions[is_message][is_sent], ids[is_sent]))
        state.next_id = max(state.next_id, int(ids[-1]) + 1)
        # What was taken in as a whole has ids from before.
        state.leave_empty(ids)
        state.first_id = min(state.first_id, int(ids.min()))
    others = np.flatnonzero(~is_message)
    for position, head in zip(positions[others].tolist(), heads[others], strict=True):
        start, end = position + RECORD_HEAD_BYTES, position + int(head["record_bytes"])
        match head["type"]:
            case RecordType.MARK:
                state.durable = max(state.durable, _MARK_BODY.unpack(log.read(start, _MARK_BODY.size))[0])
            case RecordType.TOPIC:
                topic = msgspec.msgpack.decode(log.read(start, end - start), type=TopicRecord)
                if topic.deleted:
                    state.topics.pop(topic.topic_id, None)
                else:
                    state.topics[topic.topic_id] = topic
            case RecordType.GROUP | RecordType.GROUP_CHANGED:
                group = msgspec.msgpack.decode(log.read(start, end - start), type=GroupRecord)
                if group.deleted:
                    state.groups.pop(group.group_id, None)
                else:
                    state.groups[group.group_id] = group
            case RecordType.TIMELINE:
                state.begin_timeline(
                    msgspec.msgpack.decode(log.read(start, end - start), type=TimelineRecord)
                )
            case RecordType.TRANSACTION:
                for part in log.scan(start + TRANSACTION_ID_BYTES, end, _TELLING):
                    _note(log, part.positions, state)
