"""What ``stats()``, ``figures()``, ``topics()`` and ``wheel()`` answer.

Times are epoch milliseconds (UTC), sizes are bytes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tickwheel._moments import datetime_of as datetime_of
from tickwheel._moments import length, moment, moment_or_none
from tickwheel.protocol import endpoint_states
from tickwheel.protocol.bodies.admin import PurgeOk

_NEAR: Final = timedelta(hours=12)
_SOON: Final = timedelta(minutes=2)


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

    now = moment("now_ms")
    tick = moment("tick_ms")
    uptime = length("uptime_ms")


class EndpointState(endpoint_states.EndpointState, frozen=True, kw_only=True):
    """What becomes of the messages of a push endpoint now: ``delivering``, ``failing``, ``not_served`` (no ``tickwheel
    push`` sends to it) or ``paused`` (it is disabled). Its tests do not count."""

    @property
    def label(self) -> str:
        """``name`` as people read it."""
        return self.name.replace("_", " ")

    since = moment_or_none("since_ms", "``since_ms`` as a datetime; None: it is not known.")
    next = moment_or_none("next_ms", "``next_ms`` as a datetime; None: it is not known.")

    def text(self, now: datetime) -> str:
        """All of it in one line, with times in UTC.

        >>> at = 1_935_000_060_000
        >>> state = EndpointState(name="failing", reason="HTTP 503", since_ms=at, next_ms=at + 600_000)
        >>> state.text(datetime_of(at)), state.text(datetime_of(at + 86_400_000))
        ('failing: HTTP 503 since 20:01, next try 20:11 UTC', 'failing: HTTP 503 since 2031-04-26 20:01 UTC')
        >>> EndpointState(name="not_served", reason="port 9 is not allowed").text(datetime_of(at))
        'not served: port 9 is not allowed'
        """
        text = f"{self.label}: {self.reason}" if self.reason else self.label
        if self.since is None:
            return text
        text = f"{text} since {_short(self.since, now)}"
        if self.next is not None and self.next > now:
            text = f"{text}, next try {_short(self.next, now, has_seconds=self.next - now < _SOON)}"
        return f"{text} UTC"


def _short(moment: datetime, now: datetime, *, has_seconds: bool = False) -> str:
    """Without the day where that is clear."""
    day = "" if abs(moment - now) < _NEAR else "%Y-%m-%d "
    return moment.strftime(f"{day}%H:%M:%S" if has_seconds else f"{day}%H:%M")


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
    ignores_ordering_keys: bool = False
    """It is given messages with an ordering key as those without."""
    endpoint_state: EndpointState | None = None
    """Of the push endpoint that it belongs to; None: it belongs to none, or the broker does not tell."""

    @property
    def lacks_consumer(self) -> bool:
        """Messages wait, and nobody takes them. An endpoint's group is read by ``tickwheel push`` as its endpoint can
        bear it: what there is to say of that, ``endpoint_state`` says."""
        return bool(self.backlog and not self.subscribers and not self.leased and self.endpoint_state is None)

    created = moment("created_ms")
    last_read = moment_or_none("last_read_ms")
    ephemeral = length("ephemeral_ms")


class GroupInfo(GroupStats, frozen=True, kw_only=True):
    """One consumer group, with the name of its topic."""

    topic: str


class _TopicCounts(msgspec.Struct, frozen=True):
    name: str
    topic_id: int
    messages: int
    """All that ever came."""
    scheduled: int
    ready: int
    """In the topic: due, also what is done and not purged yet."""


class TopicStats(_TopicCounts, frozen=True):
    """One topic."""

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

    created = moment("created_ms")


class Histogram(msgspec.Struct, frozen=True):
    """How values are spread. ``counts[i]`` had at most ``bounds[i]`` and more than the bound before; the last one, of
    which there is one more, had more than all bounds."""

    bounds: list[float]
    counts: list[int]
    sum: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """A bound that this share of the values does not exceed: of 0.99, the bound of the bucket with the 99th
        percentile. ``inf`` if that is above all bounds, 0 if there are no values."""
        left = share * self.count
        if not self.count:
            return 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            left -= count
            if left <= 0:
                return bound
        return float("inf")


class GroupFigures(GroupStats, frozen=True, kw_only=True):
    """One consumer group."""

    topic_id: int
    redelivered: int
    """Deliveries since the broker started but the first ones."""
    lateness: list[int] = msgspec.field(default_factory=list)
    """Its part of ``first_delivery_lateness_seconds``: counts of the same buckets. Empty: there were none."""


class TopicFigures(_TopicCounts, frozen=True):
    """One topic; see ``TopicStats``."""

    cancelled: int
    purged: int
    paused: bool = False
    shard_of: str = ""
    lateness: list[int] = msgspec.field(default_factory=list)
    """Its part of ``delivery_lateness_seconds``: counts of the same buckets. Empty: there were none."""
    groups: list[GroupFigures] = msgspec.field(default_factory=list)


class FigureTotals(msgspec.Struct, frozen=True):
    """Of all topics and groups together. ``messages``, ``cancelled``, and those of deliveries only grow."""

    messages: int
    scheduled: int
    ready: int
    cancelled: int
    delivered: int
    acked: int
    leased: int
    dead: int
    redelivered: int
    backlog: int
    """Due, and not done by a group; a message counts once for each."""


class Figures(msgspec.Struct, frozen=True):
    """What the broker says of itself in numbers; the names are those of the metrics, without ``tickwheel_`` (and, of
    counters, ``_total``). A number that there is several times (``refusals`` by error code, ``queue_messages`` by
    queue) is a dict."""

    now_ms: int
    started_ms: int
    totals: FigureTotals
    counters: dict[str, float | dict[str, float]] = msgspec.field(default_factory=dict)
    """They only grow: those of the log and of topics since the directory was made, others since ``started_ms``."""
    gauges: dict[str, float | dict[str, float]] = msgspec.field(default_factory=dict)
    histograms: dict[str, Histogram] = msgspec.field(default_factory=dict)
    """Since ``started_ms``, in the unit that the name ends with."""
    topics: list[TopicFigures] = msgspec.field(default_factory=list)

    now = moment("now_ms")
    started = moment("started_ms")


class ClientSubscription(msgspec.Struct, frozen=True):
    """A subscription of a connection."""

    topic: str
    group: str
    group_id: int
    credit: int
    batch: int
    leases: int
    """How many messages it holds."""


class ClientFetches(msgspec.Struct, frozen=True):
    """Fetches of a connection that wait for messages of one group."""

    topic: str
    group: str
    group_id: int
    count: int
    """How many wait."""
    since_ms: int
    """When the first of them began to wait."""

    since = moment("since_ms")


class ClientInfo(msgspec.Struct, frozen=True):
    """A connection that is logged in."""

    id: int
    """Of this connection alone, until the broker starts anew."""
    peer: str
    """Where it comes from: an address with its port, or a Unix socket."""
    name: str
    """What the client calls itself."""
    token: str
    """The id of its token; ``anonymous`` without tokens, ``owner`` for the broker's own user at the Unix socket."""
    token_name: str
    since_ms: int
    queued_bytes: int
    """What waits until the client reads it."""
    subscriptions: list[ClientSubscription]
    """The first 100."""
    more_subscriptions: int = 0
    fetches: list[ClientFetches] = msgspec.field(default_factory=list)
    """Those that wait, of the first 100 groups."""
    more_fetches: int = 0
    """How many wait for messages of other groups."""

    since = moment("since_ms")


class AuditLine(msgspec.Struct, frozen=True):
    """One line of the audit log: who came in, who was refused what, who changed what."""

    number: int
    timestamp: str
    """As in the file: ISO 8601, UTC."""
    event: str
    """What was asked for: ``login``, ``SetTopic``, ``connection`` …"""
    outcome: str
    """``ok`` or ``refused``."""
    fields: dict[str, Any]
    """All others: peer, token, code, subject …"""


class AuditTail(msgspec.Struct, frozen=True):
    """Lines of the audit log, the oldest first."""

    lines: list[AuditLine]
    has_gap: bool
    """Some may have come between the one that was asked after and these, and are only in the file (``audit_log``): the
    broker keeps 10,000, and none from before its start."""


class PurgeResult(PurgeOk, frozen=True):
    """What a purge has done, or would do. ``freed_bytes``: of the log's segments, without what moved messages take
    again; the tables give space back, too. ``moved_messages``: messages that are still needed, written again at the
    head of the log. ``kept_messages``: messages in segments that stay."""


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

    slot = length("slot_ms")


class Forecast(msgspec.Struct, frozen=True):
    """What is due at ``until_ms`` or before, exactly: what is in earlier rows is in it, too."""

    label: str
    until_ms: int
    timers: int
    """``messages`` and ``leases`` together."""
    messages: int | None = None
    """Messages whose time comes. None: the broker is older, does not tell them apart, and estimates ``timers``."""
    leases: int | None = None
    """Deliveries whose lease ends unless it is acked or extended, and waits for redelivery that end."""

    until = moment("until_ms")


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

    tick = moment("tick_ms")
    now = moment("now_ms")
