"""Where the bytes of the CommitLog become durable: on this machine's disk, or in a log that several machines share.

The CommitLog writes both into its segments. What differs is what a group commit has to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from timerlog.files.disk import Disk, SegmentFile


@dataclass(slots=True)
class SyncTicket:
    """What one group commit makes durable: everything before ``position``."""

    position: int
    next_id: int
    files: tuple[SegmentFile, ...] = ()  #: to be synced
    ranges: tuple[tuple[int, bytes], ...] = ()  #: to be shipped: (position, bytes), in order

    def run(self) -> None:
        """Syncs the files; may be called in another thread while appends go on. Raises ``OSError``: then the log is
        unusable."""
        for file in self.files:
            file.sync()


class Durability(Protocol):
    #: Whether other machines follow the log: it says then what goes (TRIM), and not how far it is durable (MARK).
    is_shared: bool

    def created(self, disk: Disk, file: SegmentFile) -> None:
        """A segment has its header. Raises ``OSError``."""

    def wrote(self, file: SegmentFile, position: int, data: memoryview) -> None:
        """Bytes of the log were written into a segment. ``data`` is valid during the call only."""

    def ticket(self, position: int, next_id: int) -> SyncTicket:
        """What the next group commit makes durable: all that was written since the last one."""


class OnDisk:
    """Durable is what was synced."""

    is_shared = False

    def __init__(self) -> None:
        self._unsynced: list[SegmentFile] = []

    def created(self, disk: Disk, file: SegmentFile) -> None:
        """On disk before anything refers to it: then a segment without a header is one that was never used."""
        file.sync()
        disk.sync_directory()

    def wrote(self, file: SegmentFile, position: int, data: memoryview) -> None:
        if file not in self._unsynced:
            self._unsynced.append(file)

    def ticket(self, position: int, next_id: int) -> SyncTicket:
        files, self._unsynced = tuple(self._unsynced), []
        return SyncTicket(position, next_id, files)


class Shipped:
    """Durable is what the machines of a cluster have; this one's files are a copy, and are never waited for.

    There are no MARKs: a MARK tells a torn tail from damage, and here the shared log tells it.
    """

    is_shared = True

    def __init__(self) -> None:
        self._ranges: list[tuple[int, bytearray]] = []

    def created(self, disk: Disk, file: SegmentFile) -> None:
        """Nothing to wait for."""

    def wrote(self, file: SegmentFile, position: int, data: memoryview) -> None:
        ranges = self._ranges
        if ranges and ranges[-1][0] + len(ranges[-1][1]) == position:
            ranges[-1][1].extend(data)
        else:
            ranges.append((position, bytearray(data)))

    def ticket(self, position: int, next_id: int) -> SyncTicket:
        ranges, self._ranges = self._ranges, []
        return SyncTicket(position, next_id, ranges=tuple((at, bytes(data)) for at, data in ranges))
