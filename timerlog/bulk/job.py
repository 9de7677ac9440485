"""A job of bulk scheduling as it is taken in: what is asked, what became of it, and the keys of a piece of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import bulk
from timerlog.background import InThread, Join, Stage, WaitDurable, WriteBack
from timerlog.bulk.write import Segment
from timerlog.layout import UInt64Array


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


Pause: TypeAlias = InThread | Join | Stage | WriteBack | WaitDurable | None
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
        assert segment.messages <= len(self._ids), "there is room for the keys of all messages"
        self.count = bulk.order(native, segment.first_id, segment.messages, self._ids, self._hashes)

    def part(self, start: int, most: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """The ids and hashes of some of them."""
        end = min(start + most, self.count)
        return self._ids[start:end], self._hashes[start:end]


class Rejects:
    """The messages of a job whose key another one has, with that one. A job may be nothing but such messages, so they
    are kept in arrays."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        ranges = sorted((one.first_id, one.end_id) for one in segments)
        self._first, self._end = np.array(ranges, np.uint64).reshape(-1, 2).T
        assert (self._end[:-1] <= self._first[1:]).all(), "a number is that of one message"
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
        assert not self._raced, "the job's own keys are entered first"
        assert len(ids) == len(earlier), "each has another one with its key"
        assert (ids != earlier).all(), "no message is rejected for its own key"
        self._parts.append((ids.copy(), earlier.copy()))
        self._count += len(ids)
        place = np.searchsorted(self._first, earlier, "right")
        self.inside += int(((place > 0) & (earlier < self._end[place - 1])).sum())

    def add_raced(self, ids: Sequence[int], earlier: Sequence[int]) -> bool:
        """Those whose key was sent meanwhile, maybe again; whether there is a new one."""
        before = len(self._raced)
        self._raced.update(zip(ids, earlier, strict=True))
        return len(self._raced) > before

    def since(self, count: int) -> UInt64Array:
        """All but the first ``count``, in the order in which they came."""
        assert 0 <= count <= len(self), "no more are known than there are"
        raced = np.array(list(islice(self._raced, max(0, count - self._count), None)), np.uint64)
        if count >= self._count:
            return raced
        ids: UInt64Array = np.concatenate([*(ids for ids, _ in self._parts), raced])
        return ids[count:]

    def sorted_ids(self) -> UInt64Array:
        """All of them, by number."""
        ids = self.since(0)
        ids.sort()
        return ids
