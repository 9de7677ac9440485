"""The CommitLog as columns: many records at once, from the files that a broker may be writing.

Segments are mapped when they are first looked at; what is found is copied before it is judged, because a purge may take
the file, and the next look finds the record where it lies then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickwheel_native import memory, scan
from timerlog.commitlog.addresses import LogAddresses
from timerlog.commitlog.reader import END_RECORD, LogReader
from timerlog.errors import NoAddressSpace
from timerlog.files.disk import segment_bases, segment_name
from timerlog.files.mapped_file import mapped
from timerlog.layout import (
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Array,
    Int64Array,
)

_SCANNED: Final = 65_536


@dataclass(frozen=True, slots=True)
class Records:
    """Where in the log the parts of messages are; ``is_whole`` is false where the record is no longer there."""

    is_whole: npt.NDArray[np.bool_]
    positions: Int64Array
    key_bytes: Int64Array
    headers_bytes: Int64Array
    order_bytes: Int64Array
    body_bytes: Int64Array

    def keys(self) -> tuple[Int64Array, Int64Array]:
        """Start and length of each key."""
        return self.positions + MESSAGE_HEAD_BYTES, self.key_bytes

    def headers(self) -> tuple[Int64Array, Int64Array]:
        """Start and length of each message's headers."""
        return self.positions + MESSAGE_HEAD_BYTES + self.key_bytes, self.headers_bytes

    def order_keys(self) -> tuple[Int64Array, Int64Array]:
        """Start and length of each ordering key."""
        return self.positions + MESSAGE_HEAD_BYTES + self.key_bytes + self.headers_bytes, self.order_bytes

    def bodies(self) -> tuple[Int64Array, Int64Array]:
        """Start and length of each body."""
        starts, lengths = self.order_keys()
        return starts + lengths, self.body_bytes


@dataclass(frozen=True, slots=True)
class Scanned:
    """Positions of records, in order; ``stop``: where the scan went on or ended; ``reason``: why it ended there, as
    ``timerlog.commitlog.reader.REASONS`` has them, or None: it goes on."""

    positions: Int64Array
    stop: int
    reason: int | None


class LogView:
    """The CommitLog's segments, mapped when they are first looked at. What a broker writes while the view is there is
    in it, as far as its addresses reach: a tebibyte at least."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        bases = segment_bases(directory) or [0]
        self._addresses = LogAddresses(bases[0], bases[-1] + segment_bytes)
        self._pointer = self._addresses.pointer
        self._ends: dict[int, int] = {}

    def close(self) -> None:
        self._addresses.release()

    def records(self, ids: Int64Array, rows: Array) -> Records:
        """Finds the records of messages. What they say is checked against the rows, their checksum is not."""
        assert len(ids) == len(rows), "each message has its row"
        positions = rows["position"].astype(np.int64)
        sizes = rows["record_bytes"].astype(np.int64)
        readable = (sizes >= MESSAGE_HEAD_BYTES) & (positions + sizes <= self._readable_ends(positions))
        is_whole, lengths = scan.message_parts(
            self._pointer, np.asarray(ids, np.int64), positions, np.where(readable, sizes, 0)
        )
        return Records(is_whole, positions, *lengths)

    def map_more(self, positions: Int64Array) -> bool:
        """Maps what the segments of some positions have grown by; whether there was any."""
        has_grown = False
        for number in np.unique(positions // self._segment_bytes).tolist():
            base = number * self._segment_bytes
            known = self._ends.get(base, 0)
            self._ends[base] = max(known, self._map(base))
            has_grown |= self._ends[base] > known
        return has_grown

    def read(self, start: int, size_bytes: int) -> bytes:
        """Bytes that ``records`` or ``scan`` has found."""
        return bytes(self._addresses.view(start, size_bytes))

    def gather(self, starts: Int64Array, sizes: Int64Array) -> npt.NDArray[np.uint8]:
        """Pieces that ``records`` has found, one behind the other."""
        assert len(starts) == len(sizes), "each piece has a start and a size"
        gathered = np.empty(int(sizes.sum()), np.uint8)
        scan.gather(self._pointer, starts, sizes, gathered)
        return gathered

    def are_right(self, positions: Int64Array, sizes: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of the records that ``records`` has found matches its checksum."""
        assert len(positions) == len(sizes), "each record has a position and a size"
        return scan.check_records(self._pointer, positions, sizes)

    def heads(self, positions: Int64Array) -> Array:
        """The heads of records that ``scan`` has found."""
        return self._items(positions, RECORD_HEAD)

    def payload(self, position: int) -> bytes:
        """What a record holds that ``scan`` has found, behind its head."""
        size = int(self.heads(np.array([position]))["record_bytes"][0])
        return self.read(position + RECORD_HEAD_BYTES, size - RECORD_HEAD_BYTES)

    def word(self, positions: Int64Array) -> Int64Array:
        """The whole numbers of 8 bytes at some positions, each a multiple of 8."""
        words: Int64Array = self.gather(positions, np.full(len(positions), 8)).view(np.int64)
        return words

    def messages(self, positions: Int64Array) -> Array:
        """The heads of MESSAGE records that ``scan`` has found, with all that stands before the key."""
        return self._items(positions, MESSAGE_HEAD)

    def first_record(self, base: int) -> tuple[int, bytes] | None:
        """Type and payload of the record with which a segment begins; None: there is none, or it is damaged."""
        start, end = base + SEGMENT_HEADER_BYTES, self._end(base)
        if end < start + RECORD_HEAD_BYTES:
            return None
        here = np.array([start])
        head = self.heads(here)[0]
        size = int(head["record_bytes"])
        if not RECORD_HEAD_BYTES <= size <= end - start or not self.are_right(here, np.array([size]))[0]:
            return None
        return int(head["type"]), self.read(start + RECORD_HEAD_BYTES, size - RECORD_HEAD_BYTES)

    def _items(self, positions: Int64Array, dtype: np.dtype[Any]) -> Array:
        found: Array = self.gather(positions, np.full(len(positions), dtype.itemsize)).view(dtype)
        return found

    def scan(self, position: int, end: int, wanted: frozenset[int] | None = None) -> Iterator[Scanned]:
        """Checks the records from ``position`` on, from segment to segment, up to ``end`` or the first that is broken,
        and says where those of the ``wanted`` types lie (None: all but END), some at a time; the last part has a
        ``reason``. Inside a record of records, ``end`` is its end."""
        types = bytes(wanted is None or kind in wanted for kind in range(256))
        while True:
            base = position // self._segment_bytes * self._segment_bytes
            position = max(position, base + SEGMENT_HEADER_BYTES)
            positions = np.empty(_SCANNED, np.uint64)
            position, found, reason = scan.scan(
                self._pointer, position, min(self._end(base), end), types, positions
            )
            here = positions[:found].astype(np.int64)
            if reason == END_RECORD and base + self._segment_bytes < end:
                yield Scanned(here, position, None)
                position = base + self._segment_bytes
            elif reason == scan.FULL:
                yield Scanned(here, position, None)
            else:
                yield Scanned(here, position, reason)
                return

    def marked_behind(self, position: int) -> int:
        """The highest durable position that a MARK behind ``position`` in its segment names; 0 when there is none."""
        base = position // self._segment_bytes * self._segment_bytes
        end = self._end(base)
        sizes = {base: end - base} if end else {}
        return LogReader(self._addresses, self._segment_bytes, sizes).marked_behind(position)

    def _readable_ends(self, positions: Int64Array) -> Int64Array:
        """For each position, where the readable part of its segment ends; 0 when it is gone."""
        numbers = positions // self._segment_bytes
        if len(numbers) and (numbers == numbers[0]).all():  # as a rule
            return np.full(len(numbers), self._end(int(numbers[0]) * self._segment_bytes))
        segments, which = np.unique(numbers, return_inverse=True)
        ends = np.array([self._end(int(number) * self._segment_bytes) for number in segments], np.int64)
        return ends[which] if len(ends) else np.zeros(0, np.int64)

    def _end(self, base: int) -> int:
        end = self._ends.get(base)
        if end is None:
            end = self._ends[base] = self._map(base)
        return end

    def _map(self, base: int) -> int:
        """Where what can be read of it ends; 0: it is gone. Raises ``NoAddressSpace``."""
        path = self._directory / segment_name(base)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            size = min(os.fstat(fd).st_size, self._segment_bytes)
            if not self._addresses.holds(base, base + self._segment_bytes):
                raise NoAddressSpace(f"{path.name} was written long after the log was first looked at")
            if size:
                mapped(memory.map_file(self._pointer, base, fd, 0, size, writable=False), path)
        finally:
            os.close(fd)
        return base + size
