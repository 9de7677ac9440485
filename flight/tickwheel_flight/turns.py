"""Turns: so many threads work at the same time, the others wait in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_LOOK_S: Final = 0.2


class Left(Exception):
    """Who waited has gone."""


class Turns:
    """Used by many threads at once."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, has_left: Callable[[], bool]) -> Iterator[None]:
        """One turn. ``has_left``: asked again and again while it waits. Raises `Left`."""
        self._take(has_left)
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _take(self, has_left: Callable[[], bool]) -> None:
        mine = object()
        with self._changed:
            self._waiting.append(mine)
            try:
                while not self._free or self._waiting[0] is not mine:
                    if has_left():
                        raise Left
                    self._changed.wait(_LOOK_S)
                self._free -= 1
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
