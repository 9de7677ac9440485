"""What ``stats()``, ``topics()`` and ``wheel()`` answer.

Times are epoch milliseconds (UTC), sizes are bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_of(time_ms: int) -> datetime:
    """Epoch milliseconds as an aware datetime in UTC; what lies beyond the year 9999 is its last microsecond."""
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


class Stats(msgspec.Struct, frozen=True):
    """The state of a broker at ``now_ms``, its own clock.

    Counters start with the data directory, not the process.
    """

    now_ms: int
    tick_ms: int
    """How far the wheel has turned; ``now_ms - tick_ms`` is what it still has to catch up with."""
    messages: int
    """All that ever came."""
    scheduled: int
    """Waiting for their time."""
    ready: int
    """In their topics: due, also what is done and not purged yet. What a group still has to do is its ``backlog``."""
    cancelled: int
    delivered: int
    acked: int
    leased: int
    """Delivered, and neither acked nor back in the queue."""
    topics: int
    groups: int
    connections: int
    subscribers: int
    appended_bytes: int
    """The end of the log."""
    durable_bytes: int
    """How far the log is surely on disk."""
    disk_bytes: int
    """All files of the data directory together."""
    syncs: int
    uptime_ms: int
    version: str
    refusals: dict[str, int] = msgspec.field(default_factory=dict)
    """By error code: what was refused to clients since the broker started."""

    @property
    def now(self) -> datetime:
        """``now_ms`` as a datetime."""
        return datetime_of(self.now_ms)

    @property
    def tick(self) -> datetime:
        """``tick_ms`` as a datetime."""
        return datetime_of(self.tick_ms)

    @property
    def uptime(self) -> timedelta:
        """``uptime_ms`` as a timedelta."""
        return timedelta(milliseconds=self.uptime_ms)


class GroupStats(msgspec.Struct, frozen=True):
    """One consumer group of a topic."""

    name: str
    group_id: int
    delivered: int
    acked: int
    leased: int
    backlog: int
    """Due, and not yet acked by this group."""
    subscribers: int
    dead: int = 0
    """Moved to the topic's dead letters after their last attempt."""
    created_ms: int = 0
    last_read_ms: int = 0
    """When it got its first subscriber, or lost its last one; after a crash exact to an hour. 0: never since brokers
    keep that."""
    ephemeral_ms: int = 0
    """It ends so long after its last subscriber has left; 0: it stays."""

    @property
    def created(self) -> datetime:
        """``created_ms`` as a datetime."""
        return datetime_of(self.created_ms)

    @property
    def last_read(self) -> datetime | None:
        """``last_read_ms`` as a datetime."""
        return datetime_of(self.last_read_ms) if self.last_read_ms else None

    @property
    def ephemeral(self) -> timedelta:
        """``ephemeral_ms`` as a timedelta."""
        return timedelta(milliseconds=self.ephemeral_ms)


class GroupInfo(GroupStats, frozen=True, kw_only=True):
    """One consumer group, with the name of its topic."""

    topic: str


class TopicStats(msgspec.Struct, frozen=True):
    """One topic."""

    name: str
    topic_id: int
    messages: int
    """All that ever came."""
    scheduled: int
    ready: int
    """In the topic: due, also what is done and not purged yet."""
    groups: list[GroupStats]
    cancelled: int = 0
    paused: bool = False
    shard_of: str = ""
    """Of a shard: the topic that it is a part of, whose figures contain its own."""


class TopicInfo(msgspec.Struct, frozen=True):
    """What holds for a topic. Durations in ms, sizes in bytes; 0 means "no limit" where that makes sense."""

    name: str
    topic_id: int
    created_ms: int
    paused: bool
    shards: list[str]
    """The key ranges of its shards; empty: it has none."""
    settings: dict[str, int | float]
    """What was set for this topic."""
    effective: dict[str, int | float]
    """What holds: that, or the broker's settings."""
    messages: int
    scheduled: int
    ready: int
    """As in ``TopicStats``."""

    @property
    def created(self) -> datetime:
        """``created_ms`` as a datetime."""
        return datetime_of(self.created_ms)


class PurgeResult(msgspec.Struct, frozen=True):
    """What a purge has done, or would do."""

    run: int
    is_done: bool
    segments: int
    """Deleted segments of the log."""
    freed_bytes: int
    """Of the log: what the segments took, without what moved messages take again. The tables give space back, too."""
    purged_messages: int
    moved_messages: int
    """Those that are still needed, written again at the head of the log."""
    moved_bytes: int
    damaged_messages: int
    kept_messages: int
    """In segments that stay."""


class Topics(msgspec.Struct, frozen=True):
    """All topics."""

    topics: list[TopicStats]


class WheelLevel(msgspec.Struct, frozen=True):
    """One level of the wheel. ``heat`` counts timers over equal parts of the level, from now on."""

    level: int
    slot_ms: int
    slots_occupied: int
    timers: int
    heat: list[int]

    @property
    def slot(self) -> timedelta:
        """``slot_ms`` as a timedelta."""
        return timedelta(milliseconds=self.slot_ms)


class Forecast(msgspec.Struct, frozen=True):
    """What is due at ``until_ms`` or before, exactly: what is in earlier rows is in it, too."""

    label: str
    until_ms: int
    timers: int
    """``messages`` and ``leases`` together."""
    messages: int | None = None
    """Messages whose time comes. None: the broker is older, does not tell them apart, and estimates ``timers``."""
    leases: int | None = None
    """Deliveries whose lease ends if nobody acks or extends it, and waits for redelivery that end."""

    @property
    def until(self) -> datetime:
        """``until_ms`` as a datetime."""
        return datetime_of(self.until_ms)


class Wheel(msgspec.Struct, frozen=True):
    """A picture of the wheel, as it was when the broker began to count. ``levels`` has all timers; also those of
    messages that were cancelled or acked, or that have another time since: they stay until their time and do nothing
    then. ``forecast`` is without them."""

    tick_ms: int
    now_ms: int
    levels: list[WheelLevel]
    forecast: list[Forecast]
    gone: int = 0
    """How many timers will do nothing."""

    @property
    def tick(self) -> datetime:
        """``tick_ms`` as a datetime."""
        return datetime_of(self.tick_ms)

    @property
    def now(self) -> datetime:
        """``now_ms`` as a datetime."""
        return datetime_of(self.now_ms)
