"""A connection in Kombu's event loop, the hub: its socket is watched, and what came is delivered when that is readable.

What another call has read meanwhile, a request that waited for its answer, is announced through a pair of sockets, so
that it is delivered in a callback for a descriptor, too.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final, Protocol

from tickwheel.client import forks as _forks

_RECONNECTS_EVERY_S: Final = 0.5


class Watched(Protocol):
    """A connection."""

    watch_s: float

    def turn(self) -> None:
        """What can be done without waiting."""

    def reconnect(self) -> None:
        """Goes on with a lost connection, for a moment."""

    def deliver(self) -> None:
        """Hands out what came."""

    def fileno(self) -> int:
        """Of the socket that there is now; -1: none."""


class Watch:
    """The place of one connection in a loop."""

    def __init__(self, connection: Any, loop: Any) -> None:
        self.loop = loop
        self._connection = connection
        self._descriptor = -1
        self._is_rung = self._is_reading = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        loop.add_reader(self._ear.fileno(), self._hear)
        every_s = min(connection.watch_s, _RECONNECTS_EVERY_S)
        self._timer = loop.call_repeatedly(every_s, self._tick)

    def follow(self) -> None:
        """The connection may have another socket by now."""
        descriptor = self._connection.fileno()
        if descriptor != self._descriptor:
            if self._descriptor >= 0:
                self.loop.remove_reader(self._descriptor)
            self._descriptor = descriptor
            if descriptor >= 0:
                self.loop.add_reader(descriptor, self._read)

    def ring(self) -> None:
        """Something came: it is to be delivered in the next turn of the loop. From any thread."""
        if not self._is_rung and not self._is_reading:
            self._is_rung = True
            with contextlib.suppress(OSError):
                self._bell.send(b"\0")

    def _read(self) -> None:
        self._is_reading = True
        try:
            self._connection.turn()
        finally:
            self._is_reading = False
        self._connection.deliver()

    def _hear(self) -> None:
        self._is_rung = False
        with contextlib.suppress(OSError):
            self._ear.recv(64)
        self._connection.deliver()

    def _tick(self) -> None:
        """Nothing is delivered here: see `connection`."""
        self._connection.reconnect()
        self._connection.turn()

    def close(self) -> None:
        """Leaves the loop."""
        self._timer.cancel()
        self.loop.remove_reader(self._ear.fileno())
        if self._descriptor >= 0:
            self.loop.remove_reader(self._descriptor)
            self._descriptor = -1
        self._bell.close()
        self._ear.close()

    def forget(self) -> None:
        """In a child process: the loop is the parent's."""
        _forks.keep(self)
        for end in (self._bell, self._ear):
            if end.fileno() >= 0:
                _forks.let_go(end.fileno())
