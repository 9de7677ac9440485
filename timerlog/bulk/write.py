"""Bulk scheduling, the side that prepares: whole CommitLog segments of messages, written where there is no broker.

A broker gives a ``Plan`` and numbers (``first_id``); ``write_segments`` makes files of what it is given, sorted by
time, which ``timerlog.bulk.adopt`` takes into the log as they are. Nothing here needs the broker's directory, only a
place that the broker can reach.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import bulk as native_bulk
from tickwheel_native import crc32c, lib
from timerlog.commitlog.segments import pack_segment_header
from timerlog.errors import StoreError
from timerlog.files.disk import write_durably
from timerlog.files.paced_file import PacedFile
from timerlog.layout import (
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_TIME_MS,
    MESSAGE_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Array,
    RecordType,
)

ORDERED_PRIORITY: Final = lib.TW_ORDERED_PRIORITY
#: Where a segment says that it lies before it is taken in: nowhere.
NOWHERE: Final = 0
MANIFEST: Final = "manifest.json"
#: What is built before it is written: small enough to stay in the processor's cache, which makes both several times as
#: fast as with 16 MiB.
_BUFFER_BYTES: Final = 1024 * 1024
_HOUR_MS: Final = 3_600_000
#: More files wait for the disk at most before the next one is made.
_SYNCS_LEFT: Final = 4
_TOPIC_IDS: Final = 1 << 16


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that messages go to. ``shard_of_byte``: the number of the topic that takes a message, by the first byte
    of its routing hash; empty: ``topic_id`` itself."""

    topic_id: int
    priority: int
    max_body_bytes: int
    shard_of_byte: list[int] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has to be known to write segments for a store. ``max_headers_bytes``: the client adds what the
    broker's HELLO_OK says."""

    job: str  #: 32 hexadecimal digits
    log_id: int
    segment_bytes: int
    created_ms: int
    topics: dict[str, TopicPlan]
    max_headers_bytes: int = MAX_HEADERS_BYTES
    timeline: int = 0  #: of the log: its numbers mean something in one timeline only


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written. ``hours``: how many of its messages are due in each hour, by topic id and by hours since
    1970."""

    file: str
    first_id: int
    messages: int
    bytes: int
    hours: list[tuple[int, int, int]]

    @property
    def end_id(self) -> int:
        """Below it are its numbers."""
        return self.first_id + self.messages


#: Of a job's manifest; its segments say theirs themselves.
MANIFEST_FORMAT: Final = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a job consists of. It is there when everything else is."""

    format: int = 1
    plan: Plan
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class Texts:
    """One text a message: ``data[at[i]:at[i + 1]]``. ``at``: int64, one more than there are messages."""

    at: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.at)

    def as_c(self) -> native_bulk.Texts:
        assert 0 <= int(self.at[0]) <= int(self.at[-1]) <= len(self.data), "texts lie in their data"
        assert (self.at[1:] >= self.at[:-1]).all(), "a text ends where it begins, or behind that"
        return np.ascontiguousarray(self.at, np.int64), np.ascontiguousarray(self.data, np.uint8)


@dataclass(frozen=True, slots=True)
class Topics:
    """The topic of each message: ``names[of[i]]``. ``of``: uint16."""

    names: Sequence[str]
    of: npt.NDArray[np.uint16]

    def each(self, values: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """For each message the value of its topic."""
        return np.asarray(values, dtype)[self.of]


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages by column. ``priorities``: uint8; ``None``: the topic's, no message has one."""

    deliver_at_ms: npt.NDArray[np.int64]
    bodies: Texts
    keys: Texts | None = None
    headers: Texts | None = None  #: MessagePack maps
    orders: Texts | None = None
    priorities: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.deliver_at_ms)


def refusals(
    columns: Columns, max_body_bytes: int | npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which messages a broker would not take, by reason; those must be left out before they are written.
    ``max_body_bytes``: of their topic, or for each of them."""
    found = {
        "bad_time": (columns.deliver_at_ms < 0) | (columns.deliver_at_ms > MAX_TIME_MS),
        "body_too_large": columns.bodies.lengths > max_body_bytes,
    }
    for reason, texts, limit in (
        ("key_too_long", columns.keys, MAX_KEY_BYTES),
        ("headers_too_large", columns.headers, MAX_HEADERS_BYTES),
        ("order_key_too_long", columns.orders, MAX_KEY_BYTES),
    ):
        if texts is not None:
            found[reason] = texts.lengths > limit
    return found


def write_segments(
    plan: Plan,
    topics: str | Topics,
    columns: Columns,
    reserve: Callable[[int], int],
    directory: Path,
    name: str,
    syncs: ToDisk | None = None,
) -> list[Segment]:
    """Writes messages, sorted by time, into as many files ``<name>-<n>.log`` as it takes; all are on the disk when this
    returns, or, with ``syncs``, when that was waited for. ``topics``: one for all, or of each message; the plan must
    have them. ``reserve`` gives the first of so many message numbers, for these alone. Raises ``StoreError`` for
    a message that ``refusals`` would have named, ``OSError``."""
    if syncs is None:
        with Syncs() as own:
            written = write_segments(
                plan=plan,
                topics=topics,
                columns=columns,
                reserve=reserve,
                directory=directory,
                name=name,
                syncs=own,
            )
            own.wait()
        return written
    if isinstance(topics, str):
        topics = Topics([topics], np.zeros(len(columns), np.uint16))
    writer = _Writer(plan, topics, columns, reserve(len(columns)) if len(columns) else 0)
    segments: list[Segment] = []
    while writer.is_left:
        file = f"{name}-{len(segments)}.log"
        segments.append(writer.write_segment(directory / file, syncs))
    return segments


class ToDisk(Protocol):
    """What is told of files that are written."""

    def add(self, fd: int) -> None:
        """All of it is written. It may be waited for elsewhere until it is on the disk."""


class Syncs:
    """Brings files to the disk in a thread, while the next ones are made."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "sync")
        self._left: deque[Future[None]] = deque()

    def __enter__(self) -> Syncs:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()

    def add(self, fd: int) -> None:
        """Everything that was written to it so far. Raises the ``OSError`` of an earlier one."""
        while len(self._left) >= _SYNCS_LEFT:
            self._left.popleft().result()
        self._left.append(self._thread.submit(_sync_and_close, os.dup(fd)))

    def wait(self) -> None:
        """Returns when all of them are on the disk. Raises ``OSError``."""
        while self._left:
            self._left.popleft().result()


def _sync_and_close(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _Writer:
    def __init__(self, plan: Plan, topics: Topics, columns: Columns, first_id: int) -> None:
        count, given = len(columns), columns.priorities
        texts = (columns.bodies, columns.keys, columns.headers, columns.orders)
        assert len(topics.of) == count, "each message has a topic"
        assert all(len(one.at) == count + 1 for one in texts if one is not None), "each message has its texts"
        assert given is None or len(given) == count, "each message has a priority, or none has"
        planned = [plan.topics[name] for name in topics.names]
        limits = topics.each([one.max_body_bytes for one in planned], np.int64)
        bad = [reason for reason, found in refusals(columns, limits).items() if found.any()]
        if bad:
            raise StoreError(f"some messages cannot be stored: {', '.join(bad)}")
        self._plan, self._next_id = plan, first_id
        self._deliver_at_ms = np.ascontiguousarray(columns.deliver_at_ms, np.int64)
        self._order = by_time(self._deliver_at_ms)
        self._topic_ids = _routed(planned, topics, columns, self._order, first_id)
        priorities = columns.priorities
        if priorities is None:
            priorities = topics.each([one.priority for one in planned], np.uint8)
        self._columns = self._native_columns(columns, priorities)
        self._done = 0
        wanted_bytes = max(_BUFFER_BYTES, _largest_record_bytes(columns))
        self._buffer = np.empty(min(wanted_bytes, plan.segment_bytes), np.uint8)

    @property
    def is_left(self) -> bool:
        return self._done < len(self._order)

    def _native_columns(self, columns: Columns, priorities: npt.NDArray[np.uint8]) -> native_bulk.Columns:
        if columns.orders is not None:
            priorities = np.where(columns.orders.lengths > 0, np.uint8(ORDERED_PRIORITY), priorities)
        return native_bulk.Columns(
            created_ms=self._plan.created_ms,
            topic_ids=self._topic_ids,
            deliver_at_ms=self._deliver_at_ms,
            priorities=np.ascontiguousarray(priorities, np.uint8),
            keys=_as_c(columns.keys),
            headers=_as_c(columns.headers),
            orders=_as_c(columns.orders),
            bodies=columns.bodies.as_c(),
        )

    def write_segment(self, path: Path, syncs: ToDisk) -> Segment:
        first_id, first = self._next_id, self._done
        header = pack_segment_header(NOWHERE, self._plan.segment_bytes, self._plan.log_id)
        room = self._plan.segment_bytes - SEGMENT_HEADER_BYTES - RECORD_HEAD_BYTES
        with open(path, "xb", buffering=0) as file:
            paced = PacedFile(file.fileno())
            paced.write(header)
            while self.is_left and (built := self._build(room)):
                assert 0 <= built <= room, "what is written leaves room for END"
                paced.write(self._buffer[:built].data)
                room -= built
            paced.write(end_record())
            syncs.add(file.fileno())
        if self._done == first:
            raise StoreError("a message does not fit into a segment")
        used = self._plan.segment_bytes - RECORD_HEAD_BYTES - room + RECORD_HEAD_BYTES
        return Segment(
            file=path.name,
            first_id=first_id,
            messages=self._done - first,
            bytes=used,
            hours=self._hours(first),
        )

    def _build(self, room: int) -> int:
        order = self._order[self._done :]
        count, written = native_bulk.build(self._columns, order, self._next_id, self._buffer, room)
        self._done += count
        self._next_id += count
        return written

    def _hours(self, first: int) -> list[tuple[int, int, int]]:
        members = self._order[first : self._done]
        # Hour and topic as one number: of pairs, numpy finds the different ones many times more slowly.
        pairs = self._deliver_at_ms[members] // _HOUR_MS * _TOPIC_IDS + self._topic_ids[members]
        unique, counts = np.unique(pairs, return_counts=True)
        found = (
            (*divmod(pair, _TOPIC_IDS), n) for pair, n in zip(unique.tolist(), counts.tolist(), strict=True)
        )
        return sorted((topic_id, hour, n) for hour, topic_id, n in found)


def _as_c(texts: Texts | None) -> native_bulk.Texts | None:
    return None if texts is None else texts.as_c()


def _largest_record_bytes(columns: Columns) -> int:
    """At most so much does one message take."""
    texts = (columns.bodies, columns.keys, columns.headers, columns.orders)
    lengths = [int(one.lengths.max(initial=0)) for one in texts if one is not None]
    return MESSAGE_HEAD_BYTES + sum(lengths) + 8


def end_record() -> bytes:
    """The last record of a segment."""
    tail = RECORD_HEAD_BYTES.to_bytes(4, "little") + bytes([RecordType.END]) + bytes(7)
    return crc32c(tail).to_bytes(4, "little") + tail


def by_time(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """The places of the earliest message, of the next one and so on; of those with one time, the first one first."""
    return np.argsort(times_ms, kind="stable").astype(np.uint32)


def _routed(
    planned: Sequence[TopicPlan],
    topics: Topics,
    columns: Columns,
    order: npt.NDArray[np.uint32],
    first_id: int,
) -> npt.NDArray[np.uint16]:
    """The topic or shard that takes each message: as the broker routes what is sent."""
    if not any(one.shard_of_byte for one in planned):
        return topics.each([one.topic_id for one in planned], np.uint16)
    count = len(columns)
    hashes = np.empty(count, np.uint32)
    hashes[order] = (np.arange(first_id, first_id + count, dtype=np.uint64) * np.uint64(0x9E3779B1)).astype(
        np.uint32
    )
    for texts in (columns.keys, columns.orders):
        if texts is not None:
            own = native_bulk.hash_texts(*texts.as_c())
            hashes = np.where(own != 0, own, hashes)
    by_byte = np.array([one.shard_of_byte or [one.topic_id] * 256 for one in planned], np.uint16)
    routed: npt.NDArray[np.uint16] = by_byte[topics.of, hashes >> np.uint32(24)]
    return routed


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Says that a job is complete: all its files are on the disk already."""
    write_durably(directory / MANIFEST, msgspec.json.encode(manifest))
