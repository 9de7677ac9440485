"""Dropping: what the log does not need any more is deleted, and the tables give back what it took there.

Each replica of a log does that by itself, when the log says that it may; on one machine, the purge goes straight on.
First comes a checkpoint, on the disk, that no longer names the segments; then they are deleted; then the pages of the
tables on which nothing is left go. In this order because a start never replays what lies before a checkpoint: a page
that was given back must not be written again, since on a full disk that would end the process.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from tickwheel_native import purge
from timerlog.background import WaitDurable
from timerlog.commitlog.log import CommitLog
from timerlog.errors import DiskFull
from timerlog.files.disk import Disk, SegmentFile
from timerlog.files.held_space import Reserve, Spare
from timerlog.layout import HEADER_BYTES, KEY_PARTITIONS
from timerlog.purge.pages import Piece, Reclaim
from timerlog.recovery.checkpoint import NAME as CHECKPOINT
from timerlog.recovery.checkpoint import Checkpoints, pack
from timerlog.tables.tables import Tables

_RAISE: Final = 65_536
_PARTITIONS_A_STEP: Final = 16


@dataclass(slots=True)
class DropTicket:
    """Deletes segments. ``run`` may be called in another thread while the store goes on; then the purge goes on."""

    disk: Disk
    checkpoint: bytes
    segments: dict[int, SegmentFile]

    def run(self) -> None:
        """Raises ``OSError``, ``DiskFull`` (then nothing was deleted; it may be called again)."""
        self.disk.replace(CHECKPOINT, self.checkpoint, durable=True)
        for base, file in self.segments.items():
            file.close()
            self.disk.remove_segment(base)
        self.disk.sync_directory()


@dataclass(slots=True)
class FreeTicket:
    """Gives pages of the tables back. ``run`` may be called in another thread, as it may wait for the disk."""

    pieces: list[Piece]

    def run(self) -> None:
        """Raises ``OSError``."""
        for region, start, end in self.pieces:
            region.punch(start, end)


#: What a step asks its caller for: None, only to be called again.
Pause: TypeAlias = WaitDurable | DropTicket | FreeTicket | None
Steps: TypeAlias = Generator[Pause, None, None]


class Dropper:
    """Gives back what one machine has of a log that needs it no more. ``reclaim`` must hear what is purged."""

    def __init__(
        self,
        *,
        log: CommitLog,
        tables: Tables,
        checkpoints: Checkpoints,
        disk: Disk,
        reserve: Reserve,
        spare: Spare,
    ) -> None:
        self._log, self._tables = log, tables
        self._checkpoints, self._disk, self._reserve, self._spare = checkpoints, disk, reserve, spare
        self.reclaim = Reclaim(tables)
        #: What the last checkpoint made here covers.
        self._covered = 0
        self._ticket: DropTicket | None = None

    @property
    def is_dropping(self) -> bool:
        """Whether a checkpoint is being written elsewhere."""
        return self._ticket is not None

    def close(self) -> None:
        """The next start deletes what could not be deleted any more."""
        if self._ticket is not None:
            for file in self._ticket.segments.values():
                file.close()

    def segments_before(self, end: int) -> list[int]:
        """Those that are there, in order."""
        return [base for base in self._log.segments if base < end]

    def drop(self, bases: Iterable[int]) -> Steps:
        """Deletes segments to which nothing refers any more, also on all other machines."""
        self._make_room_to_save()
        yield from self._save({base: self._log.detach(base) for base in bases})

    def give_back(self, written: int) -> Steps:
        """Pages of the tables on which nothing is left. ``written``: where the last record ends that emptied some."""
        yield from self.raise_first()
        if not self.reclaim.is_needed:
            return
        if self._covered < written:
            self._make_room_to_save()
            yield from self._save({})
        assert self._covered >= written, "a checkpoint covers what emptied the pages that go"
        for pieces in self.reclaim.steps():
            left = [piece for piece in pieces if piece[0].leave(piece[1], piece[2])]
            for region, start, end in left:
                assert start >= HEADER_BYTES, "a table keeps its header"
                if region is self._tables.messages.region:
                    self._tables.sparse.given_back(*self._tables.messages.items_of(start, end))
            yield FreeTicket(left) if left else None

    def raise_first(self) -> Steps:
        """Below the first message that is there nothing is looked at any more."""
        while purge.raise_first_id(self._tables.native, _RAISE):
            yield None
        for topic_id in list(self._tables.topics):
            while topic_id in self._tables.topics and purge.raise_first_seq(
                self._tables.native, topic_id, _RAISE
            ):
                yield None

    def shrink_keys(self) -> Steps:
        """Partitions of the key index in which few are left."""
        for start in range(0, KEY_PARTITIONS, _PARTITIONS_A_STEP):
            try:
                with self._reserve.closed():
                    for partition in range(start, start + _PARTITIONS_A_STEP):
                        self._tables.keys.shrink(partition)
            except DiskFull:
                return  # the next run tries again
            yield None

    def _make_room_to_save(self) -> None:
        with suppress(DiskFull):  # then it is tried again until there is some
            self._checkpoints.make_room()

    def _save(self, segments: dict[int, SegmentFile]) -> Steps:
        """A checkpoint on the disk, then segments deleted."""
        assert self._ticket is None, "one checkpoint is written at a time"
        first = min(self._log.segments, default=0)
        assert not segments or max(segments) < first, "the oldest segments go, and the newest stays"
        checkpoint = self._checkpoints.make()
        assert checkpoint.position >= self._covered, "a checkpoint covers what the one before covers"
        assert segments.keys().isdisjoint(checkpoint.segments), "a checkpoint names no segment that goes"
        self._ticket = DropTicket(self._disk, pack(checkpoint), segments)
        yield self._ticket
        self._ticket = None
        self._covered = checkpoint.position
        self._spare.cover(self._log.disk_bytes())
