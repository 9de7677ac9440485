"""Damaged records are had again where the log is a copy: from the log that several machines share.

A record that does not match its checksum is wanted first, and called damaged only when the shared log has it so, too.
Who meets one goes on without it and asks again later; what is fetched meanwhile is compared with what is here, and
written back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from tickwheel_native import scan
from timerlog.commitlog.log import CommitLog
from timerlog.commitlog.reader import END_RECORD, padded
from timerlog.errors import BeingHealed
from timerlog.layout import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, UInt64Array

_ALL: Final = b"\1" * 256
_RECORDS_A_STEP: Final = 1_024
_STEP_BYTES: Final = 256 * 1024


class Healer(Protocol):
    """Of a log that is a copy."""

    def lost(self, positions: UInt64Array) -> npt.NDArray[np.bool_]:
        """Which of these records, none of which matches its checksum, cannot be had again. The others are wanted from
        now on: look at them again later."""


@dataclass(slots=True)
class HealingCounts:
    """What became of the records that were wanted."""

    healed: int = 0
    lost: int = 0


class Healing:
    """Which records of one replica are wanted, and what became of them. Somebody who can read the shared log takes
    what is ``wanted``, hands over what stands there by ``take``, and calls ``settle``."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._wanted: set[int] = set()
        #: The shared log has them damaged, too.
        self._lost: set[int] = set()
        self.on_wanted: Callable[[], object] = lambda: None
        self.counts = HealingCounts()

    def lost(self, positions: UInt64Array) -> npt.NDArray[np.bool_]:
        """See ``Healer``."""
        assert not np.count_nonzero(positions % 8), "records begin at multiples of 8"
        found = positions.tolist()
        self._wanted.update(position for position in found if position not in self._lost)
        if self._wanted:
            self.on_wanted()
        return np.array([position in self._lost for position in found], np.bool_)

    @property
    def wanted(self) -> int | None:
        """Where the first record begins that is to be had again. What is not known to count is not asked for: there
        the shared log may have something else."""
        log = self._log
        first, end = log.segments[0], log.durable_position
        self._wanted = {position for position in self._wanted if first <= position < end}
        return min(self._wanted, default=None)

    def take(self, position: int, data: bytes) -> int:
        """What the shared log has there. Returns in how many bytes it differed from what was here. Raises
        ``LogFailed``: this disk does not take it."""
        log = self._log
        base = position // log.segment_bytes * log.segment_bytes
        count = min(len(data), log.durable_position - position)
        if count <= 0 or base not in log.segments:
            return 0
        here = np.frombuffer(log.addresses.view(position, count), np.uint8)
        differing = np.flatnonzero(here != np.frombuffer(data, np.uint8, count))
        if not len(differing):
            return 0
        first, last = int(differing[0]), int(differing[-1])
        log.write_back(position + first, data[first : last + 1])
        return len(differing)

    def settle(self, start: int, end: int) -> list[int]:
        """All of the shared log between these positions was taken. Returns where records lie there that are lost."""
        assert start < end, "a part of the log was taken"
        done = [position for position in self._wanted if start <= position < end]
        self._wanted.difference_update(done)
        # A purge may have taken the segment of some meanwhile: nobody asks for these any more.
        segments, size = frozenset(self._log.segments), self._log.segment_bytes
        there = [position for position in done if position // size * size in segments]
        lost = [position for position in there if not self._is_whole(position)]
        self._lost.update(lost)
        self.counts.healed += len(there) - len(lost)
        self.counts.lost += len(lost)
        return lost

    def _is_whole(self, position: int) -> bool:
        log = self._log
        room = position // log.segment_bytes * log.segment_bytes + log.segment_bytes - position
        size_bytes = record_bytes(log, position)
        if not RECORD_HEAD_BYTES <= size_bytes <= room:
            return False
        return bool(
            scan.check_records(log.addresses.pointer, np.array([position]), np.array([size_bytes]))[0]
        )


def record_bytes(log: CommitLog, position: int) -> int:
    """How long the record there says that it is."""
    return int.from_bytes(log.addresses.view(position + 4, 4), "little")


class Scrub:
    """Looks through a log for damage, a little at a time, from one segment on."""

    def __init__(self, log: CommitLog, healer: Healer, first: int = 0, end: int | None = None) -> None:
        """Up to the segment at ``end``; None: as far as the log is known to count."""
        assert first % log.segment_bytes == 0, "segments are looked through from their beginning"
        assert end is None or end % log.segment_bytes == 0, "segments are looked through to their end"
        self._log, self._healer = log, healer
        self._at, self._end = first + SEGMENT_HEADER_BYTES, end
        #: Where a record begins that is wanted: it goes no further before that is there, or lost.
        self.waits_for: int | None = None

    @property
    def position(self) -> int:
        """All before it was looked at."""
        return self._at

    def step(self) -> bool:
        """A millisecond or less of it. Whether there is more."""
        log, self.waits_for = self._log, None
        at = max(self._at, log.segments[0] + SEGMENT_HEADER_BYTES)
        base = at // log.segment_bytes * log.segment_bytes
        end = log.durable_position if self._end is None else min(self._end, log.durable_position)
        if at >= end:
            return False
        segment_end = min(base + log.segment_bytes, end)
        stop, reason = self._scan(at, min(at + _STEP_BYTES, segment_end))
        if stop == at:
            stop, reason = self._scan(at, segment_end)
        if reason == END_RECORD or segment_end - stop < RECORD_HEAD_BYTES:
            stop = base + log.segment_bytes + SEGMENT_HEADER_BYTES
        elif stop == at:
            stop = self._behind_damage(at, base)
        assert stop > at or self.waits_for is not None, "a step goes on, or says what it waits for"
        self._at = stop
        return True

    def checked_step(self) -> bool:
        """``step``. Raises ``BeingHealed`` where it waits for a record."""
        is_more = self.step()
        if self.waits_for is not None:
            raise BeingHealed(f"the record at position {self.waits_for} is damaged here, and fetched again")
        return is_more

    def _scan(self, at: int, end: int) -> tuple[int, int]:
        into = np.empty(_RECORDS_A_STEP, np.uint64)
        stop, _, reason = scan.scan(self._log.addresses.pointer, at, end, _ALL, into)
        return stop, reason

    def _behind_damage(self, at: int, base: int) -> int:
        """Where it goes on: there again, as long as the record can be had again."""
        if not self._healer.lost(np.array([at], np.uint64))[0]:
            self.waits_for = at
            return at
        following = at + padded(max(RECORD_HEAD_BYTES, record_bytes(self._log, at)))
        return min(following, base + self._log.segment_bytes + SEGMENT_HEADER_BYTES)
