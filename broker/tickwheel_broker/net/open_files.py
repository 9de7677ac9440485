"""How many files the process may still open: connections leave some for the store, queries and the listeners."""

from __future__ import annotations

import os
import resource
from typing import Final

_KEPT: Final = 64
"""For segments and tables that grow, the threads' pipes, queries, certificates that are read again."""

_SHARE: Final = 4
_HTTP_SHARE: Final = 8


def allow_many() -> bool:
    """As many as the system allows: each segment of the log is one, and each connection. The usual limit is there for
    programs that would search through all possible ones. False: it stays limited."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def are_scarce() -> bool:
    """Whether what is left is kept for others than connections: at most a quarter of what is allowed."""
    limit = _limit()
    try:
        lowest = os.open(
            os.devnull, os.O_RDONLY | os.O_CLOEXEC
        )  # the system gives the lowest number that is free
    except OSError:
        return True
    os.close(lowest)
    return lowest >= limit - min(_KEPT, limit // _SHARE)


def most_of_http(most: int) -> int:
    """As many connections the HTTP listener may have."""
    return max(2, min(most, _limit() // _HTTP_SHARE))
