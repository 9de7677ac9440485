"""What a fork means for clients: the child has copies of their sockets and locks, and none of their threads.

So everything with a connection or a directory is told in the child, and answers with ClientForked from then on. What it
had is the parent's business: nothing is written, closed in order or removed by the child. Nothing is checked meanwhile.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import Any, Final, Protocol
from weakref import WeakSet

from tickwheel.protocol.errors import ClientForked

logger = logging.getLogger("tickwheel")


class Forked(Protocol):
    """Something that does not work in a child of the process that made it."""

    def forked(self, error: ClientForked) -> None:
        """Called in the child, first of all: from now on everything raises this error. It must not touch what the
        parent uses, wait, or take a lock."""


_known: WeakSet[Any] = WeakSet()
_kept: Final[list[object]] = []


def tell(one: Forked) -> None:
    """It is told in the child when this process forks."""
    _known.add(one)


def keep(*things: object) -> None:
    """Never collected: to collect them would close what the parent still uses."""
    _kept.extend(things)


def let_go(descriptor: int) -> None:
    """Puts a dead socket in the place of an inherited one. So this process neither keeps the connection open after the
    parent has closed it, nor can write to it, whatever still refers to the descriptor."""
    with suppress(OSError):
        dead, other = socket.socketpair()
        other.close()
        with dead:
            os.dup2(dead.fileno(), descriptor, inheritable=False)


def _in_child() -> None:
    for one in list(_known):
        try:
            one.forked(ClientForked())
        except Exception:  # the others must hear of it, too
            logger.exception("%r was not told of a fork; this is a defect", one)
    _known.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
