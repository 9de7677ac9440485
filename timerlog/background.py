"""What work that is done a little at a time asks of its runner.

Such work is a generator of steps of a millisecond or two, so that messages go on in between. What a step yields says
what has to happen before the next one; None: nothing, only call again. The store's own loops and the broker's
background tasks are runners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timerlog.files.mapped_file import Region

_LEAST: Final = 1_024
_QUICK_S: Final = 0.001
_SLOW_S: Final = 0.003


@dataclass(frozen=True, slots=True)
class WaitDurable:
    """The work goes on when the log is on the disk up to ``position``."""

    position: int


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
    """These bytes of a table are as they will stay for a while: a good time for ``Region.write_back``, in a thread for
    which nothing waits. The job goes on."""

    region: Region
    start_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class Stage:
    """All machines that follow the log get the files of a job, which are no part of it yet. The job goes on when they
    have them, or when a file could not be read: then ``failed`` was called. Without files: nothing comes of the job.
    """

    job: bytes
    failed: Callable[[OSError], None]
    paths: tuple[Path, ...] = ()
    segment_bytes: int = 0

    def ranges(self, max_bytes: int) -> Iterator[tuple[int, bytes]]:
        """All bytes of the files, each of which begins at a multiple of ``segment_bytes``. Raises ``OSError``."""
        assert max_bytes > 0, "each piece has bytes: none would look like the end of a file"
        for number, path in enumerate(self.paths):
            with path.open("rb", buffering=0) as file:
                at = number * self.segment_bytes
                while data := file.read(max_bytes):
                    yield at, data
                    at += len(data)


class Pace:
    """How many messages a step may take, so that it takes one to three milliseconds and everything else has a turn. As
    a rule that is ``most``; while the system writes the pages that a step touches, each costs as much as hundreds."""

    def __init__(self, most: int) -> None:
        assert most >= _LEAST, "no step is larger than the largest"
        self.count = self._most = most

    def took(self, taken_s: float) -> None:
        """How long a step took."""
        if taken_s > _SLOW_S:
            self.count = max(self.count // 2, _LEAST)
        elif taken_s < _QUICK_S:
            self.count = min(self.count * 2, self._most)
        assert _LEAST <= self.count <= self._most, "who makes room for the largest step has enough"
