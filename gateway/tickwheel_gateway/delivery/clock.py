"""What time it is, as receipts have it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

NowMs: TypeAlias = Callable[[], int]
"""Epoch milliseconds."""


def wall_ms() -> int:
    """By the clock of this machine."""
    return time.time_ns() // 1_000_000
