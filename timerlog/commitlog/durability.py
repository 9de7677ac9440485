"""Where the bytes of the CommitLog become durable: on this machine's disk, or in a log that several machines share.

The CommitLog writes both into its segments. What differs is what a group commit has to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from timerlog.files.disk import Disk, SegmentFile


class Link(NamedTuple):
    """The files of a bulk job as segments. ``position``: where the log goes on behind them."""

    position: int
    job: bytes
    #: Of each file, in bytes.
    sizes: tuple[int, ...]
    #: Records that mean nothing any more, since the files were staged: (where they are in the files, if each began at a
    #: multiple of the segment's size; their checksums).
    fills: tuple[tuple[int, int], ...] = ()


Piece: TypeAlias = tuple[int, bytes] | Link
"""What stands where in the log, or which files do."""


def end_of(piece: tuple[int, bytes | bytearray] | Link) -> int:
    """Where the log goes on behind a piece."""
    return piece.position if isinstance(piece, Link) else piece[0] + len(piece[1])


@dataclass(slots=True)
class SyncTicket:
    """What one group commit makes durable: everything before ``position``."""

    position: int
    next_id: int
    files: tuple[SegmentFile, ...] = ()  #: to be synced
    pieces: tuple[Piece, ...] = ()  #: to be shipped, in order

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

    def linked(self, link: Link) -> None:
        """Files were made segments, behind what was written until now."""

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

    def linked(self, link: Link) -> None:
        """They were synced before."""

    def ticket(self, position: int, next_id: int) -> SyncTicket:
        files, self._unsynced = tuple(self._unsynced), []
        return SyncTicket(position, next_id, files)


class Shipped:
    """Durable is what the machines of a cluster have; this one's files are a copy, and are never waited for.

    There are no MARKs: a MARK tells a torn tail from damage, and here the shared log tells it.
    """

    is_shared = True

    def __init__(self) -> None:
        self._pieces: list[tuple[int, bytearray] | Link] = []

    def created(self, disk: Disk, file: SegmentFile) -> None:
        """Nothing to wait for."""

    def wrote(self, file: SegmentFile, position: int, data: memoryview) -> None:
        last = self._pieces[-1] if self._pieces else None
        assert last is None or end_of(last) <= position, "what is written lies behind what was written before"
        if last is None or isinstance(last, Link) or last[0] + len(last[1]) != position:
            self._pieces.append((position, bytearray(data)))
        else:
            last[1].extend(data)

    def linked(self, link: Link) -> None:
        assert self._pieces, "an END leads to the files of a job"
        assert end_of(self._pieces[-1]) < link.position, "files of a job lie behind what was written before"
        self._pieces.append(link)

    def ticket(self, position: int, next_id: int) -> SyncTicket:
        pieces, self._pieces = self._pieces, []
        assert not pieces or end_of(pieces[-1]) <= position, (
            "what is shipped lies before what is made durable"
        )
        whole = (piece if isinstance(piece, Link) else (piece[0], bytes(piece[1])) for piece in pieces)
        return SyncTicket(position, next_id, pieces=tuple(whole))
