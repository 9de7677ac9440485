"""Places in the log at which a replica can go on reading: for each, which record of the replicated log ended there.

What counted once counts always, so a place stays true whatever becomes of this machine. All of them follow from the
replicated log; without them a replica reads it from its first record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tickwheel_native import Buffer
from timerlog.commitlog.durability import Link
from timerlog.errors import DECODE_ERRORS, DiskFull
from timerlog.files.disk import Disk
from timerlog.files.small_files import seal, unseal
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.recovery.checkpoint import Place
from timerlog.replication.genesis import Announcements
from timerlog.replication.record import Head, Kind, Staging, unpack_staging
from timerlog.replication.rule import Said

NAME: Final = "places"
FORMAT: Final = 1
#: Of log, at least, between two of them.
STEP_BYTES: Final = 4 * 1024 * 1024
#: Of more, every other one goes, but the last.
MOST: Final = 1_024


class Linked(msgspec.Struct, frozen=True):
    """A job whose files were staged, and are segments of the log. Positions are those of segments, offsets those of
    records of the replicated log."""

    job: bytes
    first: int
    end: int  #: behind its last segment
    staged_at: int  #: of its first STAGE
    linked_at: int


class _Content(msgspec.Struct, frozen=True, omit_defaults=True):
    all: list[Place] = []
    starts: list[Place] = []
    linked: list[Linked] = []


class Places:
    """The places of one replica, in a small file. ``starts``: of each segment, right before its first record."""

    def __init__(self, disk: Disk, segment_bytes: int, step_bytes: int = STEP_BYTES) -> None:
        self._disk, self._segment_bytes, self.step_bytes = disk, segment_bytes, step_bytes
        content = _load(disk)
        self.all, self.starts, self.linked = content.all, content.starts, content.linked
        #: Of a batch that is not whole yet.
        self._begun: list[Place] = []
        #: Where the files of a job begin that is no part of the log yet.
        self._staged_at: int | None = None
        self._announcements = Announcements()

    def note(self, place: Place) -> None:
        """Keeps it if it is far enough from the last one."""
        if self.all and place.end < self.all[-1].end + self.step_bytes:
            return
        self.all.append(place)
        if len(self.all) > MOST:
            self.all = self.all[-1::-2][::-1]
        self._save()

    @property
    def is_staging(self) -> bool:
        """Whether files of a job have come that is no part of the log yet: who begins to read here misses them."""
        return self._staged_at is not None

    def read(self, head: Head, body: Buffer, said: Said, offset: int, links: Sequence[Link] = ()) -> bool:
        """A reader has come to a record of the replicated log. ``links``: what the batch has made segments that the
        record ends. Whether a segment begins in what now counts."""
        if said is Said.FENCED:
            self._begun.clear()
            self._staged_at = None
        elif said is Said.STAGED:
            self._note_staged(unpack_staging(head.position, body), offset)
        is_announced = self._announcements.read(head, offset)
        if said not in (Said.PART, Said.BATCH):
            return False
        if head.kind is Kind.DATA and head.position % self._segment_bytes == SEGMENT_HEADER_BYTES:
            before = offset - (2 if is_announced else 1)  # a new reader begins with the START
            self._begun.append(Place(head.position, before, head.term, head.node, head.seq, head.chain))
        if said is Said.PART:
            return False
        for link in links:
            self._note_linked(link, offset)
        begins = bool(self._begun)
        if begins:
            known = {place.end for place in self.starts}
            self.starts += [place for place in self._begun if place.end not in known]
            self._begun.clear()
        if begins or links:
            self._save()
        return begins

    def _note_staged(self, staging: Staging, offset: int) -> None:
        if staging.is_end:
            self._staged_at = None
        elif staging.is_start or self._staged_at is None:
            self._staged_at = offset

    def _note_linked(self, link: Link, offset: int) -> None:
        staged_at, self._staged_at = self._staged_at, None
        end = link.position - SEGMENT_HEADER_BYTES
        if staged_at is None or any(known.end == end for known in self.linked):
            return
        assert staged_at < offset, "a job is staged before it is linked"
        first = end - len(link.sizes) * self._segment_bytes
        self.linked.append(Linked(link.job, first, end, staged_at, offset))

    def start_of(self, base: int) -> Place | None:
        """The last start from which all can be read that the log holds from a segment on; None: none is known here."""
        known = (place for place in self.starts if place.end <= base + SEGMENT_HEADER_BYTES)
        whole = (place for place in known if self._reads_all(place, base))
        return max(whole, key=lambda place: place.offset, default=None)

    def _reads_all(self, place: Place, base: int) -> bool:
        """Whether who begins there comes to all files of the jobs that it links, and of those that lie from a segment
        on."""
        if self._staged_at is not None and place.offset >= self._staged_at:
            return False
        return not any(
            place.offset >= known.staged_at and (known.end > base or place.offset < known.linked_at)
            for known in self.linked
        )

    def linked_with(self, position: int) -> Linked | None:
        """The job whose segments have this position."""
        return next((known for known in self.linked if known.first <= position < known.end), None)

    def forget_before(self, base: int) -> None:
        """What lies before a segment is deleted."""
        assert base % self._segment_bytes == 0, "whole segments are deleted"
        start = self.start_of(base)
        least = base if start is None else min(base, start.end - 1)
        if any(place.end <= least for place in (*self.all, *self.starts)):
            self.all = [place for place in self.all if place.end > least]
            self.starts = [place for place in self.starts if place.end > least]
            self.linked = [known for known in self.linked if known.end > least]
            self._save()

    def last_before(self, end: int) -> Place | None:
        """The last one in a log that ends there."""
        return max(
            (place for place in self.all if place.end <= end), key=lambda one: one.offset, default=None
        )

    def before(self, position: int) -> Place | None:
        """The last one from which reading comes to what lies at a position."""
        linked = self.linked_with(position)
        return max(
            (
                place
                for place in (*self.all, *self.starts)
                if place.end <= position and (linked is None or place.offset < linked.staged_at)
            ),
            key=lambda one: one.offset,
            default=None,
        )

    def _save(self) -> None:
        try:
            self._disk.replace(
                NAME, seal(FORMAT, _Content(self.all, self.starts, self.linked)), durable=False
            )
        except DiskFull:
            return  # the next start reads a little more


def _load(disk: Disk) -> _Content:
    data = disk.read(NAME)
    if data is None:
        return _Content()
    body = unseal(data, FORMAT, "the list of a replica's places")
    if body is None:
        return _Content()
    try:
        return msgspec.json.decode(body, type=_Content)
    except DECODE_ERRORS:
        return _Content()
