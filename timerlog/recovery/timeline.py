"""Timelines: what was given out by a log is not given out again after a part of that log was lost.

A restored backup, and a log of which a repair could not save everything, have forgotten what they told clients last:
ids of messages, receipts, numbers of groups. So whoever makes such a log marks its directory. The next start begins
another timeline before anything is given out: the log says so in a record of its own, and goes on behind all that the
lost part can have given out. How many ids that is follows from how long it may have gone on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import msgspec

from timerlog.commitlog.records import TimelineRecord
from timerlog.errors import DamagedLog
from timerlog.files.disk import Disk
from timerlog.files.small_files import seal, unseal
from timerlog.layout import RecordType
from timerlog.tables.apply import Applier
from timerlog.tables.tables import MAX_ID, Tables

NAME: Final = "timeline"
_FORMAT: Final = 1
#: So many message ids are left out at least, and so many more for each millisecond that the lost part may have gone on:
#: more than a broker takes in the long run.
LEAST_IDS: Final = 1 << 24
IDS_A_MS: Final = 10
#: At most this part of the ids that there are: a log may be restored again and again.
_SHARE: Final = 4
#: And at most so many. For each the table of messages becomes longer, if without disk space.
_MOST_IDS: Final = (1 << 32) - 1
#: No message is delivered so often to a group in the lost part. Epochs of a timeline begin above a multiple of it.
EPOCHS: Final = 1 << 20
_LAST_EPOCH: Final = (1 << 32) - 2


class Mark(msgspec.Struct, frozen=True):
    """Which timeline is to begin, in a log that has forgotten what was told after ``since_ms``."""

    timeline: int
    since_ms: int


def pack_mark(since_ms: int) -> bytes:
    """For a directory whose log is another one after ``since_ms`` than clients may know."""
    return seal(_FORMAT, new_mark(since_ms))


def new_mark(since_ms: int) -> Mark:
    """Of a timeline that no log has had."""
    return Mark(int.from_bytes(os.urandom(8)), since_ms)


def read_mark(disk: Disk) -> Mark | None:
    """For which timeline a directory is marked. Raises ``DamagedLog``, ``UnsupportedFormat``."""
    content = disk.read(NAME)
    if content is None:
        return None
    body = unseal(content, _FORMAT, "the mark of another timeline")
    if body is None:
        raise DamagedLog(f"the file {NAME} is damaged: restore the backup, or repair the log, once more")
    return msgspec.json.decode(body, type=Mark)


def begin(
    mark: Mark,
    tables: Tables,
    applier: Applier,
    append: Callable[[RecordType, int, bytes], Any],
    *,
    position: int,
    now_ms: int,
) -> bool:
    """Begins this timeline; False: the log is in it. ``position``: where the log ends. Raises ``DiskFull``."""
    if mark.timeline == tables.timeline:
        return False
    record = _record(tables, mark, position, now_ms)
    append(RecordType.TIMELINE, 0, msgspec.msgpack.encode(record))
    applier.timeline(record)
    assert tables.timeline == mark.timeline, "a timeline begins once"
    assert tables.next_id == record.next_id, "what is sent next has an id behind those that may be lost"
    return True


def _record(tables: Tables, mark: Mark, position: int, now_ms: int) -> TimelineRecord:
    native, next_id = tables.native, tables.next_id
    wanted = LEAST_IDS + IDS_A_MS * max(0, now_ms - mark.since_ms)
    gap = min(wanted, (MAX_ID + 1 - next_id) // _SHARE, _MOST_IDS)
    assert 0 <= gap <= MAX_ID + 1 - next_id, "ids are left out that there are"
    known = [int(native.groups[group_id].highest_epoch) for group_id in tables.groups]
    highest = max([tables.epoch_floor, *known, *tables.free_groups.values(), tables.name_fences.highest])
    floor = min((highest // EPOCHS + 2) * EPOCHS, _LAST_EPOCH)
    assert floor > highest or floor == _LAST_EPOCH, "epochs go on above all that were given out"
    return TimelineRecord(
        timeline=mark.timeline,
        position=position,
        gap_start=next_id,
        next_id=next_id + gap,
        epoch_floor=floor,
        deliveries=[(group_id, int(native.groups[group_id].deliveries)) for group_id in tables.groups],
    )
