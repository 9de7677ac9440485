"""What who runs a gateway decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from tickwheel.protocol.limits import DEFAULT_MAX_BODY_BYTES

RETRY_DELAYS_MS: Final = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""RocketMQ's delay levels."""


@dataclass(frozen=True, slots=True)
class Group:
    """What may differ for one group of consumers."""

    max_attempts: int | None = None
    retry_delays_ms: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """Names, and patterns of names, are RocketMQ's."""

    advertise: tuple[str, int] | None = None
    """Where clients find the gateway; None: where they say that they have found it."""
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """As the broker has it."""
    creates_topics: bool = True
    """Whether the broker makes a topic when it is first used."""
    queues: int = 1
    """Of each topic. So many receives of a push consumer wait at a time."""
    receive_batch_size: int = 128
    """Of push consumers."""
    long_polling_max_ms: int = 20_000
    invisible_min_ms: int = 10_000
    invisible_max_ms: int = 12 * 3_600_000
    renew_lease_ms: int = 60_000
    renew_max_ms: int = 3 * 3_600_000
    max_attempts: int = 17
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS
    groups: dict[str, Group] = field(default_factory=dict)
    fifo_groups: tuple[str, ...] = ()
    """Patterns, as ``*-fifo``."""
    max_delay_ms: int | None = None
    priority_topics: tuple[str, ...] = ()
    """Patterns."""

    def attempts_of(self, group: str) -> int:
        """How often a message is given to a group before it is a dead letter."""
        own = self.groups.get(group)
        return own.max_attempts if own is not None and own.max_attempts is not None else self.max_attempts

    def retries_of(self, group: str) -> tuple[int, ...]:
        """How long a message waits before each retry, in milliseconds."""
        own = self.groups.get(group)
        return own.retry_delays_ms if own is not None and own.retry_delays_ms else self.retry_delays_ms

    def is_fifo(self, group: str) -> bool:
        """Whether a group is orderly."""
        return any(fnmatchcase(group, pattern) for pattern in self.fifo_groups)

    def has_priority(self, topic: str) -> bool:
        """Whether clients are told that a topic takes messages with priority."""
        return any(fnmatchcase(topic, pattern) for pattern in self.priority_topics)
