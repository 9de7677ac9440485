"""A data directory whose tables are full of holes, on a disk without a free block, and everything that reads it.

Run as a process (`python -m tests.support.stores.holes STEP DIRECTORY`): what goes wrong here ends it with SIGBUS or
SIGSEGV.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, ack, content, fill, take
from timerlog.engine.select import Filter
from timerlog.errors import DiskFull
from timerlog.files.holes import Holes
from timerlog.maintenance.inspect import inspect_directory
from timerlog.readers.snapshot import Snapshot, describe
from timerlog.store import Store

SETTINGS = msgspec.structs.replace(SMALL, segment_bytes=5 * MIB, disk_reserve_bytes=256 * 1024)
COUNT = 12_000
KEPT = 13


def make(directory: Path) -> None:
    """One message that is far away, and 12 of thousands stay: the tables have holes before and between them."""
    store = Store.open(directory / "data", SETTINGS, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    fill(store, topic, [b"far"], LATER_MS * 2)
    for _ in range(COUNT // 1_000):
        store.produce.ingest(send(topic, [b""] * 1_000, times_ms=[NOW_MS] * 1_000), NOW_MS)
    pump(store, NOW_MS + 10)
    ids, epochs = take(store, group, COUNT, NOW_MS + 10)
    done = [index for index, message_id in enumerate(ids) if message_id % 1_000]
    ack(store, group, [ids[index] for index in done], [epochs[index] for index in done], NOW_MS + 10)
    store.sync()
    assert store.purge(LATER_MS).purged_messages == COUNT - KEPT + 1
    store.groups.open(topic, "late", LATER_MS, "latest")
    store.sync()


def use(directory: Path) -> None:
    """A start after a kill, and all that reads or changes tables."""
    store = Store.open(directory / "data", SETTINGS, LATER_MS)
    kept = content(store)
    assert len(kept) >= KEPT
    with closing(Snapshot(describe(store.log, store.tables, LATER_MS))) as snapshot:
        assert len({int(i) for chunk in snapshot.chunks(None) for i in chunk.ids}) == len(kept)
    assert {int(i) for ids in store.select.matching(1, Filter(), LATER_MS) for i in ids} == set(kept)
    ids = list(range(1, COUNT, 7))
    assert set(store.change.cancel(ids[1:900], LATER_MS)) <= {"not_found", "already_delivered"}
    pump(store, LATER_MS)
    for group_id in list(store.tables.groups):
        with suppress(DiskFull):
            take(store, group_id, 100, LATER_MS)
    with suppress(DiskFull):
        store.produce.ingest(send(1, [b"new"] * 10), LATER_MS)
    store.housekeeping(LATER_MS)
    store.purge(LATER_MS)
    assert len(content(store)) >= len(kept)
    store.tables.sync()


def fill_up(directory: Path) -> None:
    """Takes every block that is left."""
    with suppress(OSError), open(directory / "filler", "ab", buffering=0) as filler:
        while filler.write(bytes(4_096)):
            pass
    assert os.statvfs(directory).f_bavail == 0


def main() -> None:
    """One step; it ends as a kill would."""
    Holes.are_read_only = True
    step, directory = sys.argv[1], Path(sys.argv[2])
    {"make": make, "use": use, "inspect": lambda path: inspect_directory(path / "data")}[step](directory)
    if step == "make":
        fill_up(directory)
    os._exit(0)


if __name__ == "__main__":
    main()
