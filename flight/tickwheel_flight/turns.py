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
    """Used by many threads at once. A turn that ends wakes the thread that has it next, and no other thread."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[threading.Lock] = deque()
        """A lock for each thread that waits, which is released when its turn comes."""
        self._changing = threading.Lock()

    @contextmanager
    def turn(self, has_left: Callable[[], bool]) -> Iterator[None]:
        """One turn. ``has_left``: asked again and again while it waits. Raises `Left`."""
        self._take(has_left)
        try:
            yield
        finally:
            self._pass_on()

    def _take(self, has_left: Callable[[], bool]) -> None:
        with self._changing:
            if self._free:
                assert not self._waiting, "a turn is free only if nobody waits"
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            while not has_left():
                if mine.acquire(timeout=_LOOK_S):
                    return
        except BaseException:
            self._leave(mine)
            raise
        self._leave(mine)
        raise Left

    def _leave(self, mine: threading.Lock) -> None:
        with self._changing:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return
        self._pass_on()  # the turn came in this moment

    def _pass_on(self) -> None:
        with self._changing:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
