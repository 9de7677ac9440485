"""Where times and chance come from. Tests of users' programs have other ones (``tickwheel.testing``)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import anyio


def _until(deadline_s: float) -> AbstractContextManager[anyio.CancelScope]:
    return anyio.CancelScope(deadline=deadline_s)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Those of the machine, unless others are given."""

    wall_s: Callable[[], float] = time.time
    """The date, in epoch seconds: for what is told to others."""
    now_s: Callable[[], float] = anyio.current_time
    """A clock that does not jump, for all that is waited for here."""
    until: Callable[[float], AbstractContextManager[anyio.CancelScope]] = _until
    """A block that is cancelled when it is so late by ``now_s``."""
    chance: Callable[[], float] = random.random
