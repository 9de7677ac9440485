"""Directories whose log begins far from position 0, as after years; nothing lies before it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.native.driver import NOW_MS, SMALL
from timerlog.files.disk import FileDisk
from timerlog.recovery.opening import create
from timerlog.settings import StoreSettings
from timerlog.store import Store

TIB = 1 << 40
#: What a log at 10 MB/s has written after 22 days.
FAR = 17 * TIB
#: Where a float has lost the last eight bits of a position.
BEYOND_FLOATS = 1 << 60


def begin(directory: Path, position: int, settings: StoreSettings = SMALL) -> int:
    """Makes an empty log that begins in the segment at a position, and closes it; returns where it begins."""
    directory.mkdir(parents=True, exist_ok=True)
    first = position // settings.segment_bytes * settings.segment_bytes
    disk = FileDisk(directory)
    with ExitStack() as undo:
        opened = create(directory, disk, settings, 7, NOW_MS, undo, first=first)
        undo.pop_all()
    Store.of(opened, disk, settings, NOW_MS).close()
    return first
