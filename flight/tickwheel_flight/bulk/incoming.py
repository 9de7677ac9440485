"""Files that come in. One for which nothing comes for long is given up: it goes, and makes room for others, though its
call stays open until its writer says something or goes away: nothing of Arrow Flight ends it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tickwheel.errors import ShuttingDown, TickwheelError
from tickwheel_flight.bulk.room import Room
from tickwheel_flight.snapshots import StoodStill
from timerlog.files.paced_file import PacedFile

MAX_PUTS: Final = 64
"""Files that come in at a time."""
STILL_S: Final = 60.0
"""So long nothing may come."""
_LOOK_S: Final = 1.0


class TooManyPuts(TickwheelError):
    """As many files as are allowed come in at this moment."""

    code = "too_many_puts"
    advice = "Put fewer files at a time, or try again when others are done."
    retryable = True


class Incoming:
    """One file. Its writer and the watch use it at once."""

    def __init__(self, folder: int, part: str, room: Room, now_s: Callable[[], float]) -> None:
        """``folder``: a descriptor of the directory. Raises OSError."""
        self.part = part
        self._room, self._now_s = room, now_s
        self._folder = os.dup(folder)
        self._lock = threading.Lock()
        self._reason: TickwheelError | None = None
        self._moved_s = now_s()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(part, flags, 0o640, dir_fd=folder)
        except BaseException:
            os.close(self._folder)
            raise
        self._paced = PacedFile(self._fd)
        room.enter(part)
        self._is_open = True

    def moved(self) -> None:
        """Something came. Raises what `check` raises."""
        self.check()
        self._moved_s = self._now_s()

    def check(self) -> None:
        """Raises why it was given up: StoodStill, ShuttingDown."""
        if self._reason is not None:
            raise self._reason

    def write(self, chunk: Any) -> None:
        """Raises OSError, StagingFull, DiskFull, and what `check` raises."""
        with self._lock:
            self.check()
            self._room.take(self.part, memoryview(chunk).nbytes)
            self._paced.write(chunk)

    def sync(self) -> None:
        """To the disk. Raises the same."""
        with self._lock:
            self.check()
            os.fsync(self._fd)
            self._moved_s = self._now_s()

    def still_s(self) -> float:
        """How long nothing came; a disk that is slow is not its writer's doing."""
        return 0.0 if self._lock.locked() else self._now_s() - self._moved_s

    def end(self, reason: TickwheelError | None = None) -> None:
        """Closes it, and removes what did not get another name. ``reason``: what its writer is told."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open, self._reason = False, reason
            os.close(self._fd)
            with suppress(OSError):
                os.unlink(self.part, dir_fd=self._folder)
            os.close(self._folder)
            self._room.leave(self.part)


class Watch:
    """Knows all that come in, and gives up those that stand still."""

    def __init__(self, still_s: float = STILL_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._still_s, self._now_s = still_s, now_s
        self._coming: set[Incoming] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    @contextmanager
    def incoming(self, folder: int, part: str, room: Room) -> Iterator[Incoming]:
        """One more file. Raises `TooManyPuts`, ShuttingDown, OSError."""
        with self._changed:
            if self._is_stopping:
                raise ShuttingDown
            if len(self._coming) >= MAX_PUTS:
                raise TooManyPuts
            found = Incoming(folder, part, room, self._now_s)
            self._coming.add(found)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="puts", daemon=True)
                self._thread.start()
        try:
            yield found
        finally:
            self._give_up(found, None)

    def stop(self) -> None:
        """Gives all of them up."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for one in [*self._coming]:
            self._give_up(one, ShuttingDown())

    def give_up_still(self) -> None:
        """Those for which nothing came for long."""
        for one in [*self._coming]:
            if one.still_s() >= self._still_s:
                self._give_up(
                    one,
                    StoodStill(
                        f"Nothing of the file came for {self._still_s:.0f} s.", advice="Put it again."
                    ),
                )

    def _give_up(self, one: Incoming, reason: TickwheelError | None) -> None:
        one.end(reason)
        with self._changed:
            self._coming.discard(one)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._is_stopping:
                    return
                if not self._coming:
                    self._thread = None  # the next file starts it again
                    return
                self._changed.wait(_LOOK_S)
            self.give_up_still()
