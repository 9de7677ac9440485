"""Directories whose log begins far from position 0, as after years; nothing lies before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from tests.support.native.driver import NOW_MS, SMALL
from timerlog.commitlog.records import GroupRecord, TopicRecord
from timerlog.engine import space
from timerlog.files import mapped_file
from timerlog.files.disk import FileDisk
from timerlog.files.window import PAGE_BYTES
from timerlog.maintenance.backup import back_up, restore
from timerlog.recovery.opening import create
from timerlog.settings import StoreSettings
from timerlog.store import Store
from timerlog.tables import tables
from timerlog.tables.base_record import Base, GroupBase, TopicBase

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


@contextmanager
def narrow_tables(room_bytes: int = 2 * PAGE_BYTES) -> Iterator[None]:
    """Inside, tables grow by a page, and have so few addresses that they move again and again."""
    with ExitStack() as patches:
        for name in ("ROWS_ROOM", "TOPIC_ROOM"):
            patches.enter_context(mock.patch.object(tables, name, room_bytes))
        for name in ("SMALLEST_STEP_BYTES", "LARGEST_STEP_BYTES"):
            patches.enter_context(mock.patch.object(mapped_file, name, PAGE_BYTES))
        patches.enter_context(mock.patch.object(space, "MAX_BATCH", 16))
        yield


def begin_late(
    directory: Path, next_id: int, seq: int, names: tuple[str, ...] = ("t",), settings: StoreSettings = SMALL
) -> None:
    """Makes an empty log as after years, and closes it: the next message has this id, and this number in each of the
    topics, which have a group ``g``. All before is gone, and counted nowhere."""
    directory.mkdir(parents=True, exist_ok=True)
    disk, first = FileDisk(directory), FAR // settings.segment_bytes * settings.segment_bytes
    topics = [TopicRecord(number, name, NOW_MS) for number, name in enumerate(names, 1)]
    groups = [GroupRecord(topic.topic_id, topic.topic_id, "g", 0, NOW_MS) for topic in topics]
    base = Base(
        next_id=next_id,
        first_id=next_id,
        tick_ms=NOW_MS,
        last_topic_id=len(topics),
        last_group_id=len(groups),
        topics=[TopicBase(topic, seq, 0, 0, seq) for topic in topics],
        groups=[GroupBase(group, 0, 0, 0) for group in groups],
        documents={},
        failures=[],
        transactions=[],
        free_groups=[],
    )
    with ExitStack() as undo:
        opened = create(directory, disk, settings, 7, NOW_MS, undo, first=first)
        opened.applier.base(base)
        undo.pop_all()
    Store.of(opened, disk, settings, NOW_MS).close()


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
