"""The number of a node belongs to one process: one that hears another process with its own number ends.

The owner goes on, the other one ends: what two write would count for one of them only, and lose nothing, but each would
answer as if it were alone. What stood in the shared log before this process began was written by the one before it, and
its last append may still come then. Only a process that goes on to write is another one.
"""

from __future__ import annotations

from typing import Final

from tickwheel.protocol.errors import TickwheelError
from tickwheel_broker.sharedlog.known_owner import KnownOwner
from timerlog.replication.record import Head
from timerlog.replication.rule import Said

APART_MS: Final = 1_000
"""Records that were written so far apart are not of one append."""


class NodeNumberTaken(TickwheelError):
    """Another process is this node of the cluster."""

    code = "node_number_taken"
    advice = "Give each node of a cluster a number of its own (node), or end the other process before this one starts."


class OwnNumber:
    """What is heard of it."""

    def __init__(self, number: int, process: str) -> None:
        """`process`: as this one calls itself in what it writes; see `known_owner`."""
        self._number, self._process = number, process
        self._start: int | None = None
        self._first_ms: int | None = None

    def begin(self, end: int) -> None:
        """The process has just begun, and there the shared log ends. Later calls change nothing."""
        if self._start is None:
            self._start = end

    def hear(self, offset: int, said: Said, head: Head, owner: KnownOwner) -> None:
        """A record was read, that became of it, and `owner` has heard of it. Raises NodeNumberTaken."""
        if said is Said.PASSED_OVER or self._start is None or offset < self._start:
            return
        if head.node != self._number or owner.process == self._process:
            return
        if self._first_ms is None:
            self._first_ms = head.clock_ms
        elif abs(head.clock_ms - self._first_ms) >= APART_MS:
            where = f", and clients reach it at {owner.url}" if owner.url else ""
            raise NodeNumberTaken(f"Another process is node {self._number}: it owns the log{where}.")
