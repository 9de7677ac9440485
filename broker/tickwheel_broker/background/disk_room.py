"""How much of a disk is left to what the broker cannot announce, in bytes."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from tickwheel_broker.config.settings import MIB, Settings

_LEAST_BYTES: Final = 256 * MIB
_SEGMENTS: Final = 4
_SHARE: Final = 0.05


class Room(NamedTuple):
    """Of the data directory's file system."""

    free_bytes: int
    kept_bytes: int
    """What large requests must leave: segments for what is sent meanwhile and for a purge, and what is set aside for
    accepted messages. At most a twentieth of the disk, so that small disks can be used, too."""


def room_of(settings: Settings) -> Room:
    """Raises OSError."""
    disk = os.statvfs(settings.data_dir)
    wanted = max(_LEAST_BYTES, _SEGMENTS * settings.segment_bytes + settings.disk_reserve_bytes)
    share = int(_SHARE * disk.f_blocks * disk.f_frsize)
    return Room(disk.f_bavail * disk.f_frsize, min(wanted, share))
