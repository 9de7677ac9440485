"""What a node's directory says of itself: to which cluster it belongs, and how far it has followed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from timerlog.errors import NoDataDirectory
from timerlog.files.disk import FileDisk
from timerlog.files.replica_mark import ReplicaMark, read_mark
from timerlog.recovery import checkpoint
from timerlog.recovery.checkpoint import Place


class Replica(msgspec.Struct, frozen=True):
    """``place``: as its last checkpoint has it; None for the directory of one that owns the log, or was killed while it
    did."""

    mark: ReplicaMark
    place: Place | None


def look_at_replica(directory: Path) -> Replica:
    """Raises ``NoDataDirectory``, ``DamagedLog``, ``UnsupportedFormat``."""
    mark = read_mark(directory)
    if mark is None:
        raise NoDataDirectory(f"{directory} does not belong to a node of a cluster")
    found = checkpoint.load(FileDisk(directory))
    return Replica(mark, found.place if found is not None and isinstance(found.place, Place) else None)
