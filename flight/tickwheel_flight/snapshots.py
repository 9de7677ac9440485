"""The files of the directory, mapped once for all streams of a reading, and for few readings at a time: addresses and
mappings of a process are finite, and a reader that stands still must not keep them from others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tickwheel.errors import TickwheelError
from tickwheel_flight.tickets import Moment
from timerlog.readers.describe import Offline
from timerlog.readers.snapshot import Snapshot

MAX_READINGS: Final = 8
"""Moments of which streams are read at a time."""
KEPT_READINGS: Final = 2
"""Of them for readers who read nothing yet: so a reader with many plans does not keep others waiting."""
IDLE_S: Final = 15.0
"""A reading of which no batch was asked for so long may be ended for another."""
PATIENCE_S: Final = 30.0
"""So long a stream waits for its reading's turn."""

_LOOK_S: Final = 0.2


class TooManyReadings(TickwheelError):
    """As many tables as are allowed are being read at this moment."""

    code = "too_many_readings"
    advice = "Try again when other readers are done."
    retryable = True


class StoodStill(TickwheelError):
    """No batch was asked for a long time, and another reader needed the room."""

    code = "stood_still"
    advice = "Read batches as they come, or ask for the table anew (GetFlightInfo)."


class Open:
    """The snapshot of a reading, and who uses it."""

    def __init__(self, snapshot: Snapshot, reader: str, now_s: float) -> None:
        self.snapshot = snapshot
        self.reader = reader
        self.streams = 0
        self.working = 0
        self.used_s = now_s
        self.is_gone = False


class Snapshots:
    """Used by many threads at once."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._open: dict[Moment, Open] = {}
        self._changed = threading.Condition()

    @contextmanager
    def borrow(
        self, moment: Moment, offline: Offline, has_left: Callable[[], bool], reader: str = ""
    ) -> Iterator[Open]:
        """The snapshot of a moment, for one stream of a ``reader``. Raises `TooManyReadings`, ``StoreError``."""
        found = self._take(moment, offline, has_left, reader)
        try:
            yield found
        finally:
            with self._changed:
                found.streams -= 1
                if not found.streams:
                    self._close(moment, found)

    @contextmanager
    def working(self, found: Open) -> Iterator[None]:
        """While a batch is made: then nobody closes it. Raises `StoodStill`."""
        with self._changed:
            if found.is_gone:
                raise StoodStill
            found.working += 1
        try:
            yield
        finally:
            with self._changed:
                found.working -= 1
                found.used_s = self._now_s()

    def _take(self, moment: Moment, offline: Offline, has_left: Callable[[], bool], reader: str) -> Open:
        until_s = self._now_s() + PATIENCE_S
        with self._changed:
            while moment not in self._open and not self._has_room(reader) and not self._end_idle():
                if has_left() or self._now_s() >= until_s:
                    raise TooManyReadings
                self._changed.wait(_LOOK_S)
            found = self._open.get(moment)
            if found is None:
                found = self._open[moment] = Open(Snapshot(offline.description), reader, self._now_s())
            found.streams += 1
            found.used_s = self._now_s()
            return found

    def _has_room(self, reader: str) -> bool:
        reads_already = any(found.reader == reader for found in self._open.values())
        return len(self._open) < MAX_READINGS - (KEPT_READINGS if reads_already else 0)

    def _end_idle(self) -> bool:
        """Whether there is room now."""
        for moment, found in self._open.items():
            if not found.working and self._now_s() - found.used_s >= IDLE_S:
                self._close(moment, found)
                return True
        return False

    def _close(self, moment: Moment, found: Open) -> None:
        if not found.is_gone:
            found.is_gone = True
            del self._open[moment]
            found.snapshot.close()
            self._changed.notify_all()
