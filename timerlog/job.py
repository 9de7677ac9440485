"""A job of bulk scheduling as it is taken in: what is asked, what became of it, and the keys of a piece of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from native import ffi, lib
from timerlog.bulk import Segment
from timerlog.purge import WaitDurable


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
    """The job goes on when ``work`` has been called, in another thread as a rule."""

    work: Callable[[], None]


Pause: TypeAlias = InThread | WaitDurable | None
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
