"""How many ranges of memory this process may still map: Linux has a limit of them (`vm.max_map_count`).

Each table of a topic and of a group is one. At the limit nothing that needs memory works any more, and a topic that is
in the log must have its table: so it is asked here before, and some are left for everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from timerlog.errors import StoreError

LEFT_FOR_OTHERS: Final = 2_048
"""Segments of the log, threads, libraries, large blocks of memory."""
_REFUSALS_A_COUNT: Final = 64
"""To count takes some ten milliseconds where there are many."""
_NO_LIMIT: Final = 1 << 40

ADVICE: Final = (
    "Raise vm.max_map_count (sysctl -w vm.max_map_count=262144, and a file in /etc/sysctl.d), or delete topics and "
    "groups that nobody uses."
)


def most_maps() -> int:
    """How many the system allows."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _NO_LIMIT


def count_maps() -> int:
    """How many there are."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


class Maps:
    """Counts anew only where few are left by what was asked for since."""

    def __init__(self, most: Callable[[], int] = most_maps, count: Callable[[], int] = count_maps) -> None:
        self._most, self._count = most, count
        self._left = 0
        self._refusals = 0

    def has_room(self, more: int) -> bool:
        """Whether so many tables may be made, which is then expected to happen."""
        if self._left - more < LEFT_FOR_OTHERS and self._refusals % _REFUSALS_A_COUNT == 0:
            self._left = self._most() - self._count()
        if self._left - more < LEFT_FOR_OTHERS:
            self._refusals += 1
            return False
        self._refusals = 0
        self._left -= more
        return True

    def need_room(self, more: int, refusal: type[StoreError]) -> None:
        """Raises ``refusal`` where so many tables may not be made."""
        if not self.has_room(more):
            error = refusal("the system lets the broker map no more files into memory")
            error.advice = ADVICE
            raise error

    def is_at_limit(self) -> bool:
        """Whether a map that failed did so for want of them."""
        return self._most() - self._count() < LEFT_FOR_OTHERS


MAPS: Final = Maps()
"""Of this process: all stores share them."""
