"""How long a delivery may take before the message comes again. Pure.

As the broker's topics: the first delivery has ``ack_wait``; the wait of the second is twice ``min_backoff``, and each
later one doubles it, between ``ack_wait`` and ``max_backoff``. Each message is moved by up to a third of its wait at
random, inside of those bounds, so that what failed together does not come back together.
"""

from __future__ import annotations

from typing import Final

from tickwheel.outbox.messages.settings import MessageSettings
from tickwheel.protocol.errors import BadTime

NS_A_MS: Final = 1_000_000
_LONGEST_NS: Final = 1 << 61
"""73 years, for tables without an upper bound: added to the time of day it fits 64 bits."""
_MAX_SHIFT: Final = 62
LATEST_NS: Final = (1 << 63) - 1


def due_ns(start_ns: int, after_ms: int) -> int:
    """A time in ns, as a column of 64 bits can hold it. Raises BadTime."""
    due = start_ns + after_ms * NS_A_MS
    if due > LATEST_NS:
        raise BadTime(
            "Nanoseconds since 1970 fit a column of 64 bits until the year 2262 only.",
            advice="Use an earlier time.",
        )
    return due


def next_epoch(epoch: int, last: int) -> int:
    """The number of the delivery after ``epoch``, from 1 up to the column's end, where it stays. A row that was set
    beyond that by hand keeps what it has."""
    return max(epoch, min(max(epoch, 0) + 1, last))


def wait_bounds_ns(settings: MessageSettings, epoch: int) -> tuple[int, int]:
    """The shortest and the longest wait after delivery number ``epoch`` (from 1)."""
    ack_wait_ns = min(settings.ack_wait_ms * NS_A_MS, _LONGEST_NS)
    if epoch <= 1:
        return ack_wait_ns, ack_wait_ns
    first_ns = (settings.min_backoff_ms or settings.ack_wait_ms) * NS_A_MS
    high_ns = min(max(settings.max_backoff_ms * NS_A_MS or _LONGEST_NS, ack_wait_ns), _LONGEST_NS)
    middle_ns = min(max(first_ns << min(epoch - 1, _MAX_SHIFT), ack_wait_ns), high_ns)
    return max(middle_ns - middle_ns // 3, ack_wait_ns), min(middle_ns + middle_ns // 3, high_ns)
