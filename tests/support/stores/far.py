"""Directories whose log begins far from position 0, as after years; nothing lies before it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.native.driver import NOW_MS, SMALL
from timerlog.files.disk import FileDisk
from timerlog.maintenance.backup import back_up, restore
from timerlog.recovery.opening import create
from timerlog.settings import StoreSettings
from timerlog.store import Store

TIB = 1 << 40
#: What a log at 10 MB/s has written after 22 days.
FAR = 17 * TIB
#: Where a float has lost the last eight bits of a position.
BEYOND_FLOATS = 1 << 60
#: After each of them so many ids are left out as a broker may have given out since.
_RESTORES = 2
_YEARS_MS = 20 * 365 * 86_400_000


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


def begin_with_large_ids(directory: Path) -> int:
    """Makes an empty log whose next message id is beyond 2^32, as in a directory that was restored from old backups;
    returns that id."""
    made = directory.with_name(f"{directory.name}-before")
    begin(made, 0)
    for number in range(_RESTORES):
        copy, restored = (
            made.with_name(f"{made.name}-copy"),
            directory.with_name(f"{directory.name}-{number}"),
        )
        back_up(made, copy, NOW_MS - _YEARS_MS)
        made = restored if number < _RESTORES - 1 else directory
        restore(copy, made, number + 1)
        store = Store.open(made, SMALL, NOW_MS)
        first_id = store.tables.next_id
        store.close()
    assert first_id > 1 << 32
    return first_id
