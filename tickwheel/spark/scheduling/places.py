"""Where a task writes: into the broker's directory where it is seen from here, or else to a disk of its own, from which
each file goes to `tickwheel flight`. Each task finds out itself: executors need not see what the driver sees.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from tickwheel.arrow.errors import DataError
from tickwheel.arrow.jobs import Run, Stored
from tickwheel.spark.errors import ScheduleFailed, StagingError
from tickwheel.spark.scheduling.result import Staged
from timerlog.bulk.write import Segment, Syncs, ToDisk

OPEN_SUFFIX: Final = "-open"
"""Of the file that stands for a run, behind the run's name: who sees it sees the broker's directory."""
_PUTS_LEFT: Final = 2
"""So many files wait to be put before the next one is made: a task's disk is bounded."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Place(Protocol):
    """A context: what is left on this machine goes at its end."""

    staged: Staged

    @property
    def directory(self) -> Path:
        """Where files are written."""

    @property
    def syncs(self) -> ToDisk:
        """What brings them to the disk."""

    def __enter__(self) -> Place: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def written(self, segments: Sequence[Segment]) -> None:
        """Files are written. Raises what went wrong with earlier ones."""

    def wait(self) -> None:
        """Until all of them are on the broker's disk. Raises the same."""

    def remove(self, name: str) -> None:
        """What an attempt has written under names that begin with this. It may fail: the rest goes with the job."""

    def explained(self, error: OSError) -> DataError:
        """What the file system said."""


class InPlace:
    """The directory of the job itself."""

    staged: Staged = "in place"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.syncs = Syncs()

    def __enter__(self) -> InPlace:
        return self

    def __exit__(self, *error: object) -> None:
        self.syncs.__exit__()

    def written(self, segments: Sequence[Segment]) -> None:
        """See ``Place``."""

    def wait(self) -> None:
        """See ``Place``."""
        self.syncs.wait()

    def remove(self, name: str) -> None:
        """See ``Place``."""
        with suppress(OSError):
            for path in self.directory.glob(f"{name}-*"):
                path.unlink()

    def explained(self, error: OSError) -> DataError:
        """See ``Place``."""
        if error.errno in _FULL:
            return _full(self.directory, "Free space on the broker's disk.")
        return StagingError(f"A task cannot write to {self.directory}: {error.strerror or error}.")


class _NotToDisk:
    """The files of this machine are gone soon."""

    def add(self, fd: int) -> None:
        pass


class ByFlight:
    """A disk of this machine. A thread puts what is written while the next files are made."""

    staged: Staged = "flight"

    def __init__(self, run: Run) -> None:
        self._run = run
        self.syncs = _NotToDisk()

    def __enter__(self) -> ByFlight:
        self.directory = Path(tempfile.mkdtemp(prefix="tickwheel-run-", dir=_local_directory()))
        self._thread = ThreadPoolExecutor(1, "put")
        self._left: deque[Future[Stored]] = deque()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def written(self, segments: Sequence[Segment]) -> None:
        """See ``Place``."""
        for segment in segments:
            while len(self._left) >= _PUTS_LEFT:
                self._left.popleft().result()
            self._left.append(self._thread.submit(self._put, segment.file))

    def wait(self) -> None:
        """See ``Place``."""
        while self._left:
            self._left.popleft().result()

    def remove(self, name: str) -> None:
        """See ``Place``: what was put goes when the job is handed in, or dropped."""

    def explained(self, error: OSError) -> DataError:
        """See ``Place``."""
        if error.errno in _FULL:
            return _full(self.directory, "Free space on the disks of the workers (spark.local.dir).")
        return ScheduleFailed(f"A task cannot write to {self.directory}: {error.strerror or error}.")

    def _put(self, file: str) -> Stored:
        path = self.directory / file
        stored = self._run.put(path, file)
        path.unlink()
        return stored


def is_seen(directory: Path, *, has_flight: bool) -> bool:
    """Whether files that are written into a directory of the broker's, if it is there, are good for the broker: it
    takes those of its own user. Where there is no other way, it is tried as another user, too."""
    try:
        owner = directory.stat().st_uid
    except OSError:
        return False
    is_ours = owner == os.geteuid() or not has_flight
    return directory.is_dir() and is_ours and os.access(directory, os.W_OK | os.X_OK)


def mark(directory: Path, run: str) -> None:
    """So that tasks know the directory when they see it. Raises OSError."""
    (directory / (run + OPEN_SUFFIX)).touch()


def is_marked(directory: Path, run: str) -> bool:
    """Whether it is the directory that the driver means, and not another one of the same name."""
    return (directory / (run + OPEN_SUFFIX)).exists()


def _local_directory() -> str | None:
    """Where Spark has workers write; it is cleared away with the executor."""
    for directory in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if directory and os.access(directory, os.W_OK | os.X_OK):
            return directory
    return None


def _full(directory: Path, advice: str) -> ScheduleFailed:
    full = ScheduleFailed(f"The disk of {directory} is full.", advice=advice)
    full.code = "disk_full"
    return full
