"""A job of bulk scheduling as it is taken in: what is asked, what became of it, and the keys of a piece of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from tickwheel_native import ffi, lib
from timerlog.bulk.write import Segment
from timerlog.engine.state import UInt64Array
from timerlog.files.mapped_file import Region
from timerlog.purge.purger import WaitDurable

_LEAST: Final = 1_024
_QUICK_S: Final = 0.001
_SLOW_S: Final = 0.003


class Reject(msgspec.Struct, frozen=True):
    """A message of a job whose key another message has."""

    key: str
    topic: str
    earlier_id: int


class AdoptReport(msgspec.Struct, kw_only=True):
    """What became of a job. ``inside``: how many of the rejected ones have the key of another message of the job;
    ``samples``: some of them. ``repeated``: it had been taken in before."""

    messages: int = 0
    rejected: int = 0
    inside: int = 0
    samples: list[Reject] = []
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class InThread:
    """``work`` is called, in another thread as a rule. The job goes on when it has ended, or, with ``beside``, at
    once: then ``Join`` waits for it, and there is no other one meanwhile."""

    work: Callable[[], None]
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """The job goes on when the work beside it has ended."""


@dataclass(frozen=True, slots=True)
class WriteBack:
    """These bytes of a table are as they will stay for a while: a good time for ``Region.write_back``, in a thread that
    nobody waits for. The job goes on."""

    region: Region
    start_bytes: int
    end_bytes: int


Pause: TypeAlias = InThread | Join | WriteBack | WaitDurable | None
Steps: TypeAlias = Generator[Pause, None, None]


@dataclass(slots=True)
class AdoptJob:
    """``job_id``: None: what the manifest says. ``left_behind``: why its directory could not be cleared away."""

    directory: Path
    max_rejects: int
    job_id: bytes | None = None
    left_behind: Exception | None = None
    report: AdoptReport = field(default_factory=AdoptReport)
    is_done: bool = False
    error: Exception | None = None


class Pace:
    """How many messages a step may take, so that it takes one to three milliseconds and everybody else has a turn. As
    a rule that is ``most``; while the system writes the pages that a step touches, each costs as much as hundreds."""

    def __init__(self, most: int) -> None:
        self.count = self._most = most

    def took(self, taken_s: float) -> None:
        """How long a step took."""
        if taken_s > _SLOW_S:
            self.count = max(self.count // 2, _LEAST)
        elif taken_s < _QUICK_S:
            self.count = min(self.count * 2, self._most)


class Keyed:
    """The messages of a segment that have a key, and its hash, by partition of the key index."""

    def __init__(self, capacity: int) -> None:
        self._ids, self._hashes = np.empty(capacity, np.uint64), np.empty(capacity, np.uint32)
        self.count = 0

    def fill(self, native: Any, segment: Segment) -> None:
        count = ffi.new("uint64_t *")
        ids, hashes = self.id_pointer(0), self.hash_pointer(0)
        lib.tw_bulk_order(native, segment.first_id, segment.messages, ids, hashes, count)
        self.count = int(count[0])

    def id_pointer(self, start: int) -> Any:
        return ffi.cast("uint64_t *", self._ids.ctypes.data) + start

    def hash_pointer(self, start: int) -> Any:
        return ffi.cast("uint32_t *", self._hashes.ctypes.data) + start


class Rejects:
    """The messages of a job whose key another one has, with that one. A job may be nothing but such messages, so they
    are kept in arrays."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        ranges = sorted((one.first_id, one.end_id) for one in segments)
        self._first, self._end = np.array(ranges, np.uint64).reshape(-1, 2).T
        self._parts: list[tuple[UInt64Array, UInt64Array]] = []
        self._raced: dict[int, int] = {}
        self._count = 0
        #: How many have the key of another message of the job.
        self.inside = 0

    def __len__(self) -> int:
        return self._count + len(self._raced)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for ids, earlier in self._parts:
            yield from zip(ids.tolist(), earlier.tolist(), strict=True)
        yield from self._raced.items()

    def add(self, ids: UInt64Array, earlier: UInt64Array) -> None:
        """Takes copies; each message is added once."""
        if not len(ids):
            return
        self._parts.append((ids.copy(), earlier.copy()))
        self._count += len(ids)
        place = np.searchsorted(self._first, earlier, "right")
        self.inside += int(((place > 0) & (earlier < self._end[place - 1])).sum())

    def add_raced(self, ids: Sequence[int], earlier: Sequence[int]) -> bool:
        """Those whose key somebody sent meanwhile, maybe again; whether there is a new one."""
        before = len(self._raced)
        self._raced.update(zip(ids, earlier, strict=True))
        return len(self._raced) > before

    def sorted_ids(self) -> UInt64Array:
        """All of them, by number."""
        raced = np.array(list(self._raced), np.uint64)
        ids: UInt64Array = np.concatenate([*(ids for ids, _ in self._parts), raced])
        ids.sort()
        return ids
