"""Places in the log at which a replica can go on reading: for each, which record of the replicated log ended there.

What counted once counts always, so a place stays true whatever becomes of this machine. All of them follow from the
replicated log; without them a replica reads it from its first record.
"""

from __future__ import annotations

from typing import Final

import msgspec

from timerlog.errors import DECODE_ERRORS, DiskFull
from timerlog.files.disk import Disk
from timerlog.files.small_files import seal, unseal
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.recovery.checkpoint import Place
from timerlog.replication.genesis import Announcements
from timerlog.replication.record import Head
from timerlog.replication.rule import Said

NAME: Final = "places"
FORMAT: Final = 1
#: Of log, at least, between two of them.
STEP_BYTES: Final = 4 * 1024 * 1024
#: Of more, every other one goes, but the last.
MOST: Final = 1_024


class _Content(msgspec.Struct, frozen=True):
    all: list[Place] = []
    starts: list[Place] = []


class Places:
    """The places of one replica, in a small file. ``starts``: of each segment, right before its first record."""

    def __init__(self, disk: Disk, segment_bytes: int, step_bytes: int = STEP_BYTES) -> None:
        self._disk, self._segment_bytes, self.step_bytes = disk, segment_bytes, step_bytes
        content = _load(disk)
        self.all, self.starts = content.all, content.starts
        #: Of a batch that is not whole yet.
        self._begun: list[Place] = []
        self._announcements = Announcements()

    def note(self, place: Place) -> None:
        """Keeps it if it is far enough from the last one."""
        if self.all and place.end < self.all[-1].end + self.step_bytes:
            return
        self.all.append(place)
        if len(self.all) > MOST:
            self.all = self.all[-1::-2][::-1]
        self._save()

    def read(self, head: Head, said: Said, offset: int) -> bool:
        """A reader has come to a record of the replicated log. Whether a segment begins in what now counts."""
        if said is Said.FENCED:
            self._begun.clear()
        is_announced = self._announcements.read(head, offset)
        if said not in (Said.PART, Said.BATCH):
            return False
        if head.position % self._segment_bytes == SEGMENT_HEADER_BYTES:
            before = offset - (2 if is_announced else 1)  # a new reader begins with the START
            self._begun.append(Place(head.position, before, head.term, head.node, head.seq, head.chain))
        if said is Said.PART or not self._begun:
            return False
        known = {place.end for place in self.starts}
        self.starts += [place for place in self._begun if place.end not in known]
        self._begun.clear()
        self._save()
        return True

    def start_of(self, base: int) -> Place | None:
        """Before the first record of a segment; None: that is not known here."""
        return next((place for place in self.starts if place.end == base + SEGMENT_HEADER_BYTES), None)

    def forget_before(self, base: int) -> None:
        """What lies before a segment is deleted."""
        if any(place.end < base for place in (*self.all, *self.starts)):
            self.all = [place for place in self.all if place.end > base]
            self.starts = [place for place in self.starts if place.end > base]
            self._save()

    def last_before(self, end: int) -> Place | None:
        """The last one in a log that ends there."""
        return max(
            (place for place in self.all if place.end <= end), key=lambda one: one.offset, default=None
        )

    def before(self, position: int) -> Place | None:
        """The last one from which reading comes to what lies at a position."""
        places = (place for place in (*self.all, *self.starts) if place.end <= position)
        return max(places, key=lambda one: one.offset, default=None)

    def _save(self) -> None:
        try:
            self._disk.replace(NAME, seal(FORMAT, _Content(self.all, self.starts)), durable=False)
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
