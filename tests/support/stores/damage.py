"""A small directory with something of everything, which is put back after each damage; and all that it answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import delivered_bodies, send
from tests.support.stores.purging import ack, fill, take
from timerlog.engine.deliver import NoFrame
from timerlog.layout import MessageState
from timerlog.store import Store

LATER_MS = NOW_MS + 10_000_000_000  # everything is due


def make_directory(directory: Path) -> None:
    """Scheduled, cancelled, waiting, leased, acked and given back messages; keys, a document, two topics and groups."""
    store = Store.open(directory, SMALL, NOW_MS)
    topics = [store.topics.open(name, NOW_MS) for name in ("a", "b")]
    groups = [store.groups.open(topic, "g", NOW_MS) for topic in topics]
    for number, topic in enumerate(topics):
        fill(store, topic, [b"due-%d-%d" % (number, at) for at in range(12)], NOW_MS)
        fill(store, topic, [b"far-%d-%d" % (number, at) for at in range(8)], LATER_MS - 1_000)
    pump(store, NOW_MS + 10)
    for group in groups:
        ids, epochs = take(store, group, 9, NOW_MS + 10)
        ack(store, group, ids[:4], epochs[:4], NOW_MS + 10)
        store.settle.nack(group, ids[4:6], epochs[4:6], 5_000, "not yet", NOW_MS + 10)
    store.change.cancel([13, 14], NOW_MS + 10)
    store.change.reschedule([15], LATER_MS - 500, NOW_MS + 10)
    store.change.put_document("note", b"kept", NOW_MS)
    store.produce.ingest(send(topics[0], [b"without a key"]), NOW_MS)
    store.sync()
    store.housekeeping(NOW_MS + 60_000)
    store.close()


@dataclass(frozen=True)
class Answers:
    """What a directory says: its state, where its keys lead, and every body that it delivers."""

    state: str
    found: tuple[int, ...]
    bodies: dict[int, bytes]
    damaged: frozenset[int]


def answers(directory: Path) -> Answers:
    """Opens a directory, has everything delivered, and leaves as a killed broker would. Raises ``StoreError``."""
    store = Store.open(directory, SMALL, NOW_MS + 20)
    try:
        keys = [f"{kind}-{number}-{at}" for kind in ("due", "far") for number in (0, 1) for at in range(12)]
        found = tuple(number for topic in ("a", "b") for number in store.select.find(topic, keys))
        state = str(store.look.state_hash())
        bodies = dict(_delivered(store))
        states = store.tables.rows["state"][: store.tables.next_id]
        damaged = frozenset((states == MessageState.DAMAGED).nonzero()[0].tolist())
        return Answers(state, found, bodies, damaged)
    finally:
        store.close(clean=False)


def _delivered(store: Store) -> Iterator[tuple[int, bytes]]:
    pump(store, LATER_MS)
    for group_id in list(store.tables.groups):
        holder = store.holders.acquire(group_id)
        while (frame := store.deliver.fetch(group_id, holder, 1, 500, MIB, LATER_MS)) is not NoFrame.NOTHING:
            if frame:
                yield from delivered_bodies(frame)


class Original:
    """The files of a directory as they are now, to be put back quickly."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[str, tuple[bytes, int]] = {}
        for path in directory.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                self.files[str(path.relative_to(directory))] = content.rstrip(b"\0"), len(content)

    def put_back(self) -> None:
        for path in self.directory.rglob("*"):
            if path.is_file() and str(path.relative_to(self.directory)) not in self.files:
                path.unlink()
        for name, (content, size_bytes) in self.files.items():
            with open(self.directory / name, "wb") as file:
                file.write(content)
                file.truncate(size_bytes)

    def is_untouched(self, *but: str) -> bool:
        """Whether the directory is as it was, except some files."""
        there = {
            str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file()
        }
        return there == set(self.files) and all(
            self._is(name) for name in self.files if name not in ("LOCK", *but)
        )

    def _is(self, name: str) -> bool:
        content, size_bytes = self.files[name]
        path = self.directory / name
        return path.stat().st_size == size_bytes and path.read_bytes().rstrip(b"\0") == content

    def kinds(self) -> dict[str, list[str]]:
        """The files of each kind."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.files):
            kind = name.rpartition("/")[2]
            for ending in (".log", ".arrivals", ".deliveries"):
                if "/" in name and name.endswith(ending):
                    kind = ending[1:] if ending != ".log" else "commitlog"
            found.setdefault(kind, []).append(name)
        return found


def flip_bit(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def flip(directory: Path, position: int, segment_bytes: int) -> None:
    """What a disk does in a bad hour to a log that is open."""
    base = position // segment_bytes * segment_bytes
    fd = os.open(directory / "commitlog" / f"{base:020d}.log", os.O_RDWR)
    try:
        byte = os.pread(fd, 1, position - base)
        os.pwrite(fd, bytes([byte[0] ^ 0x10]), position - base)
    finally:
        os.close(fd)
