"""A disk in memory that keeps what was synced apart from what was only written.

What the operating system holds (*written*) survives a killed process. What was *synced* survives a power loss, too; of
the rest some may be there and some not, torn at any byte. Directory entries are synced apart from what they name.
A process sees the disk through a `View`; when it dies, its view does nothing more.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tickwheel_native import Buffer, memory
from timerlog.errors import DiskFull, LogFailed

NO_LIMIT = 1 << 60


class Killed(BaseException):
    """The process ends here and now, within a call to the disk."""


class Inode:
    """A segment's file: an unlinked file in memory, and what of it was synced."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("simulated-segment", os.MFD_CLOEXEC)
        self.size_bytes = 0
        self.synced = bytearray()
        self.synced_size_bytes = 0
        self.unsynced: list[tuple[int, bytes]] = []
        self.writes = 0

    def write(self, offset: int, data: bytes) -> None:
        """To the operating system."""
        os.pwrite(self.fd, data, offset)
        self.unsynced.append((offset, data))
        self.writes += 1

    def resize(self, size_bytes: int) -> None:
        """For the operating system."""
        os.ftruncate(self.fd, size_bytes)
        self.size_bytes = size_bytes

    def sync(self, writes: int | None = None) -> None:
        """The first `writes` of all that there were go to the disk, or all."""
        synced = self.writes - len(self.unsynced)
        upto = len(self.unsynced) if writes is None else max(0, writes - synced)
        for offset, data in self.unsynced[:upto]:
            self._put(offset, data)
        del self.unsynced[:upto]
        self.synced_size_bytes = self.size_bytes

    def cut(self, end: int) -> None:
        """Everything from `end` on is zeros, on the disk as well."""
        size_bytes = self.size_bytes
        os.ftruncate(self.fd, end)
        os.ftruncate(self.fd, size_bytes)
        self.sync()
        del self.synced[end:]

    def lose_power(self, rng: random.Random) -> None:
        """What was not synced is lost, or is there in part."""
        self._keep_some(rng)
        self.unsynced.clear()
        if self.synced_size_bytes < self.size_bytes and rng.random() < 0.5:
            self.synced_size_bytes = max(self.synced_size_bytes, len(self.synced))
        else:
            self.synced_size_bytes = self.size_bytes
        self.restore()

    def restore(self) -> None:
        """What the operating system sees is what is on the disk."""
        os.ftruncate(self.fd, 0)
        self.size_bytes = max(self.synced_size_bytes, len(self.synced))
        os.ftruncate(self.fd, self.size_bytes)
        os.pwrite(self.fd, bytes(self.synced), 0)

    def copy(self) -> Inode:
        """An independent one with the same content."""
        other = Inode()
        other.resize(self.size_bytes)
        content = self.content()
        os.pwrite(other.fd, content, 0)
        other.synced, other.synced_size_bytes = bytearray(content), self.size_bytes
        return other

    def content(self) -> bytes:
        """What the operating system sees, up to the last byte that was ever written."""
        end = max([len(self.synced), *(offset + len(data) for offset, data in self.unsynced)])
        return os.pread(self.fd, end, 0)

    def flip(self, place: int, bit: int) -> None:
        """The disk forgets one bit of what it has."""
        if place < len(self.synced):
            self.synced[place] ^= bit
            os.pwrite(self.fd, self.synced[place : place + 1], place)

    def close(self) -> None:
        """Free the memory."""
        os.close(self.fd)

    def _put(self, offset: int, data: bytes) -> None:
        if len(self.synced) < offset + len(data):
            self.synced.extend(bytes(offset + len(data) - len(self.synced)))
        self.synced[offset : offset + len(data)] = data

    def _keep_some(self, rng: random.Random) -> None:
        """Nothing, a beginning that is torn at some byte, or any of the sectors; some of it may be wrong."""
        how = rng.choice(("none", "none", "prefix", "prefix", "sectors"))
        if how == "none" or not self.unsynced:
            return
        if how == "prefix":
            count = rng.randint(0, len(self.unsynced) - 1)
            for offset, data in self.unsynced[:count]:
                self._put(offset, data)
            offset, data = self.unsynced[count]
            self._put(offset, data[: rng.randint(0, len(data))])
            return
        for offset, data in self.unsynced:
            at = 0
            while at < len(data):
                end = min(len(data), (offset + at) // 512 * 512 + 512 - offset)
                if rng.random() < 0.5:
                    self._put(offset + at, _perhaps_flipped(data[at:end], rng))
                at = end


def _perhaps_flipped(data: bytes, rng: random.Random) -> bytes:
    if rng.random() > 0.05:
        return data
    wrong = bytearray(data)
    wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
    return bytes(wrong)


@dataclass
class SmallFile:
    """A file that is written as a whole."""

    data: bytes
    is_synced: bool


@dataclass
class DiskFaults:
    """What goes wrong next. `kill_in` counts calls to the disk."""

    kill_in: int = 0
    write_fails: bool = False
    sync_fails: bool = False
    read_fails: bool = False


@dataclass
class Disk:
    """The machine's disk: it outlives processes."""

    rng: random.Random
    faults: DiskFaults = field(default_factory=DiskFaults)
    free_bytes: int = NO_LIMIT
    segments: dict[int, Inode] = field(default_factory=dict)
    files: dict[str, SmallFile] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    prepared: dict[str, int] = field(default_factory=dict)
    synced_segments: dict[int, Inode] = field(default_factory=dict)
    synced_files: dict[str, SmallFile] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    forgiven: dict[str, int] = field(default_factory=dict)
    """How many faults of a kind have been an excuse."""

    def allocate(self, count_bytes: int) -> bool:
        """Takes so many bytes of blocks. False: there are not so many."""
        if count_bytes > self.free_bytes:
            self.count("full")
            return False
        if self.free_bytes < NO_LIMIT:
            self.free_bytes -= count_bytes
        return True

    def release(self, count_bytes: int) -> None:
        """Gives blocks back."""
        if self.free_bytes < NO_LIMIT:
            self.free_bytes += count_bytes

    def count(self, what: str) -> None:
        """Something went wrong, on purpose."""
        self.counts[what] = self.counts.get(what, 0) + 1

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Inside, nothing goes wrong: for those who only look."""
        faults, self.faults = self.faults, DiskFaults()
        try:
            yield
        finally:
            self.faults = faults

    def sync_directory(self) -> None:
        """What exists now exists after a power loss."""
        gone = [one for base, one in self.synced_segments.items() if self.segments.get(base) is not one]
        self.synced_segments, self.synced_files = dict(self.segments), dict(self.files)
        for inode in gone:
            inode.close()

    def lose_power(self) -> None:
        """Only what was synced is there, and perhaps some of the rest."""
        for base, inode in list(self.segments.items()):
            if base not in self.synced_segments and self.rng.random() < 0.5:
                inode.close()  # it was created, and the directory was not synced
                del self.segments[base]
        for base, inode in self.synced_segments.items():
            if base not in self.segments:
                self.segments[base] = inode  # it was removed, and the directory was not synced
        for inode in self.segments.values():
            inode.lose_power(self.rng)
        for name in {**self.files, **self.synced_files}:
            self._lose_file(name)
        self.segments = dict(sorted(self.segments.items()))
        self.synced_segments, self.synced_files = dict(self.segments), dict(self.files)

    def _lose_file(self, name: str) -> None:
        entry = self.files.get(name) if self.rng.random() < 0.5 else self.synced_files.get(name)
        if entry is None:
            self.files.pop(name, None)
        elif entry.is_synced:
            self.files[name] = entry
        else:
            torn = entry.data[: self.rng.randint(0, len(entry.data))]
            data = self.rng.choice((entry.data, torn, b"", bytes(len(entry.data))))
            self.files[name] = SmallFile(data, is_synced=True)

    def copy(self) -> Disk:
        """An independent disk on which everything is synced, and nothing fails."""
        segments = {base: inode.copy() for base, inode in self.segments.items()}
        files = {name: SmallFile(one.data, is_synced=True) for name, one in self.files.items()}
        return Disk(
            self.rng,
            segments=segments,
            files=files,
            held=dict(self.held),
            synced_segments=dict(segments),
            synced_files=dict(files),
        )

    def close(self) -> None:
        """Free the memory."""
        for inode in dict.fromkeys((*self.segments.values(), *self.synced_segments.values())):
            inode.close()


class View:
    """The disk as one process sees it; see `timerlog.files.disk.Disk`."""

    def __init__(self, disk: Disk, on_kill: Callable[[], None]) -> None:
        """`on_kill`: the process is killed within a call."""
        self.disk = disk
        self.is_dead = False
        self._on_kill = on_kill
        self.sync_limits: dict[Inode, int] | None = None

    def step(self) -> bool:
        """A call begins. False: the process is dead, and nothing happens. Raises Killed."""
        if self.is_dead:
            return False
        faults = self.disk.faults
        if faults.kill_in:
            faults.kill_in -= 1
            if not faults.kill_in:
                self._on_kill()
                self.is_dead = True
                raise Killed
        return True

    def written(self) -> dict[Inode, int]:
        """How often each segment was written to until now."""
        return {inode: inode.writes for inode in self.disk.segments.values()}

    def allocate_table(self, fd: int, start: int, count_bytes: int) -> int:
        """Blocks for a derived table: 0, or an error number below."""
        if not self.disk.allocate(count_bytes):
            return -errno.ENOSPC
        return memory.allocate(fd, start, count_bytes)

    # -- see `timerlog.files.disk.Disk` --

    def segments(self) -> list[int]:
        return sorted(self.disk.segments)

    def open_segment(self, base: int, *, create: bool) -> OpenSegment:
        if self.disk.faults.read_fails and not create:
            self.disk.faults.read_fails = False
            self.disk.count("read error")
            raise OSError(errno.EIO, "simulated read error")
        if create and base not in self.disk.segments:
            self.step()
            if self.is_dead:
                return OpenSegment(self, Inode(), base)
            self.disk.segments[base] = Inode()
        return OpenSegment(self, self.disk.segments[base], base)

    def remove_segment(self, base: int) -> None:
        if self.step():
            inode = self.disk.segments.pop(base)
            self.disk.release(inode.size_bytes)
            if self.disk.synced_segments.get(base) is not inode:
                inode.close()

    def adopt_segment(self, base: int, source: Path) -> None:
        raise OSError(errno.EXDEV, "bulk jobs are not simulated")

    def open_staged(self, number: int) -> OpenSegment:
        raise AssertionError("no bulk job is simulated")

    def link_staged(self, number: int, base: int) -> None:
        raise AssertionError("no bulk job is simulated")

    def drop_staged(self) -> None:
        """There are none."""

    def sweep_staged(self) -> bool:
        return False

    def sync_directory(self) -> None:
        if self.step():
            self.disk.sync_directory()

    def read(self, name: str) -> bytes | None:
        if self.disk.faults.read_fails:
            self.disk.faults.read_fails = False
            self.disk.count("read error")
            raise OSError(errno.EIO, "simulated read error")
        found = self.disk.files.get(name)
        return None if found is None else found.data

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        if not self.step():
            return
        room = self.disk.prepared.pop(name, 0)
        if not self.disk.allocate(max(0, len(data) - room)):
            self.disk.prepared[name] = room
            raise DiskFull(f"the disk is full (writing {name})")
        before = self.disk.files.get(name)
        self.disk.files[name] = SmallFile(data, durable)
        self.disk.release(len(before.data) if before is not None else 0)
        if durable:
            self.step()
            self.disk.sync_directory()

    def prepare(self, name: str, size_bytes: int) -> None:
        if not self.step():
            return
        room = self.disk.prepared.get(name, 0)
        if not self.disk.allocate(max(0, size_bytes - room)):
            raise DiskFull(f"the disk is full (growing {name})")
        self.disk.prepared[name] = max(room, size_bytes)

    def remove(self, name: str) -> None:
        if self.step():
            self.disk.files.pop(name, None)
            self.disk.sync_directory()

    def held_bytes(self, name: str) -> int:
        return self.disk.held.get(name, 0)

    def resize_held(self, name: str, size_bytes: int) -> None:
        if not self.step():
            return
        before_bytes = self.disk.held.get(name, 0)
        if not self.disk.allocate(max(0, size_bytes - before_bytes)):
            raise DiskFull(f"the disk is full (growing {name})")
        self.disk.release(max(0, before_bytes - size_bytes))
        self.disk.held[name] = size_bytes


class OpenSegment:
    """See `timerlog.files.disk.SegmentFile`."""

    def __init__(self, view: View, inode: Inode, base: int) -> None:
        self._view = view
        self._inode = inode
        self._base = base

    @property
    def size_bytes(self) -> int:
        return self._inode.size_bytes

    @size_bytes.setter
    def size_bytes(self, size_bytes: int) -> None:
        raise AttributeError("allocate() changes the size")

    def allocate(self, end: int) -> None:
        if end <= self._inode.size_bytes or not self._view.step():
            return
        if not self._view.disk.allocate(end - self._inode.size_bytes):
            raise DiskFull(f"the disk is full (growing segment {self._base})")
        self._inode.resize(end)

    def write(self, offset: int, data: Buffer) -> None:
        content = bytes(data)
        disk = self._view.disk
        if self._view.is_dead:
            return
        try:
            self._view.step()
        except Killed:
            self._inode.write(offset, content[: disk.rng.randint(0, len(content))])
            raise
        if disk.faults.write_fails:
            disk.faults.write_fails = False
            disk.count("write error")
            self._inode.write(offset, content[: disk.rng.randint(0, len(content) - 1)])
            raise LogFailed(f"writing segment {self._base} failed: simulated")
        self._inode.write(offset, content)

    def sync(self) -> None:
        if not self._view.step():
            return
        disk = self._view.disk
        if disk.faults.sync_fails:
            disk.faults.sync_fails = False
            disk.count("sync error")
            raise OSError(errno.EIO, "simulated sync error")
        limits = self._view.sync_limits
        self._inode.sync(None if limits is None else limits.get(self._inode, 0))

    def fileno(self) -> int:
        """Of what holds its bytes: it is nothing that could be synced."""
        return self._inode.fd

    def cut(self, end: int) -> None:
        if self._view.step():
            self._inode.cut(end)

    def map_into(self, base: Any, offset: int, span_bytes: int) -> None:
        result = memory.map_file(base, offset, self._inode.fd, 0, span_bytes, writable=False)
        if result:
            raise OSError(-result, os.strerror(-result))

    def is_deleted(self) -> bool:
        """No one deletes files of the simulated disk."""
        return False

    def close(self) -> None:
        """The content stays."""
