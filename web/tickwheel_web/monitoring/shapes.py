"""What the broker's figures, its clients and its audit log look like."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import LoggedEvent
from tickwheel.protocol.units import format_duration
from tickwheel.stats import (
    AuditLine,
    ClientInfo,
    Figures,
    Forecast,
    Histogram,
    PurgeResult,
    Stats,
    TopicFigures,
    Wheel,
)
from tickwheel_web.shapes import MAX_PAGE, Id, Moment

_Number = float  # and so an int, too


class HorizonsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How far to look ahead."""

    horizons: Annotated[
        str, Meta(description="Up to 64 durations from now, with commas between them", examples=["1m,1h,1d"])
    ] = "1m,1h,1d"


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The last lines, or those after one."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: Id | UnsetType = UNSET


class AskPurge(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`confirm` says `purge`, unless `dry_run` only asks what would be purged. Without `wait` it goes on after the
    answer."""

    confirm: Literal["purge"] | UnsetType = UNSET
    dry_run: bool = False
    wait: bool = True


class BrokerStats(msgspec.Struct, frozen=True):
    """What the broker holds and does."""

    now: Moment
    tick: Moment
    uptime: str
    messages: int
    scheduled: int
    ready: int
    cancelled: int
    delivered: int
    acked: int
    leased: int
    topics: int
    groups: int
    connections: int
    subscribers: int
    appended_bytes: int
    durable_bytes: int
    disk_bytes: int
    syncs: int
    version: str
    refusals: dict[str, int]


class Horizon(msgspec.Struct, frozen=True):
    """What is due at `until` or before: messages whose time comes, and deliveries whose lease or wait ends."""

    label: str
    until: Moment
    timers: int
    messages: int | None
    leases: int | None


class Horizons(msgspec.Struct, frozen=True):
    """What is due within each of the durations, counted exactly; what is in earlier ones is in later ones, too."""

    now: Moment
    items: list[Horizon]


class Level(msgspec.Struct, frozen=True):
    """One level of the wheel. `heat` counts timers over equal parts of it, from now on."""

    level: int
    slot: str
    slots_occupied: int
    timers: int
    heat: list[int]


class WheelPicture(msgspec.Struct, frozen=True):
    """The wheel: all its timers by level, `gone` of which will do nothing, and what is due when."""

    now: Moment
    tick: Moment
    gone: int
    levels: list[Level]
    forecast: list[Horizon]


class Spread(msgspec.Struct, frozen=True):
    """How values are spread: `counts[i]` had at most `bounds[i]`, the last one more than all bounds."""

    bounds: list[float]
    counts: list[int]
    sum: float


class GroupNumbers(msgspec.Struct, frozen=True):
    """Of a consumer group. `lateness`: its part of `first_delivery_lateness_seconds`, counts of the same buckets."""

    name: str
    delivered: int
    acked: int
    leased: int
    backlog: int
    dead: int
    subscribers: int
    redelivered: int
    lateness: list[int]


class TopicNumbers(msgspec.Struct, frozen=True):
    """Of a topic. `lateness`: its part of `delivery_lateness_seconds`, counts of the same buckets."""

    name: str
    messages: int
    scheduled: int
    ready: int
    cancelled: int
    purged: int
    paused: bool
    lateness: list[int]
    groups: list[GroupNumbers]


class BrokerFigures(msgspec.Struct, frozen=True):
    """Counters, gauges and histograms as the metrics have them, and those of every topic and group."""

    now: Moment
    started: Moment
    counters: dict[str, _Number | dict[str, _Number]]
    gauges: dict[str, _Number | dict[str, _Number]]
    histograms: dict[str, Spread]
    topics: list[TopicNumbers]


class FigureChanges(msgspec.Struct, frozen=True):
    """Those of the broker's figures that are new or have changed since the event before; the first event has all.
    `gone`: topics that are no more."""

    now: Moment
    counters: dict[str, Any]
    gauges: dict[str, Any]
    topics: dict[str, Any]
    gone: list[str]


class LogQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where to begin: behind a place, at the log's beginning, or at its end."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: Annotated[str, Meta(description="`next` of the answer before, or `latest`")] = ""


class LogEntry(msgspec.Struct, frozen=True):
    """Something that happened: to the message `id`, of which null means that it has been purged since. `next`: when it
    is due, its lease ends, or it goes on."""

    event: str
    id: Id | None
    topic: str | None
    group: str | None
    epoch: int
    at: Moment | None
    next: Moment | None
    error: str | None


class LogEntries(msgspec.Struct, frozen=True):
    """What has happened, in the order of the broker's log. `next`: the `after` of what comes later, also when that is
    not there yet; `more`: it is there already; `has_gap`: something before or between these is gone."""

    items: list[LogEntry]
    next: str
    more: bool
    has_gap: bool


class Subscribed(msgspec.Struct, frozen=True):
    """A subscription of a connection; `leases`: how many messages it holds."""

    topic: str
    group: str
    credit: int
    batch: int
    leases: int


class Connection(msgspec.Struct, frozen=True):
    """A connection that is logged in. `queued_bytes`: what waits until the client reads it."""

    id: Id
    peer: str
    name: str
    token: str
    token_name: str
    since: Moment
    queued_bytes: int
    subscriptions: list[Subscribed]
    more_subscriptions: int


class Connections(msgspec.Struct, frozen=True):
    """A part of the connections; `next` is the `after` of the next part, or null."""

    items: list[Connection]
    next: str | None


class Disconnected(msgspec.Struct, frozen=True):
    """The connection that was closed."""

    id: Id


class AuditEntry(msgspec.Struct, frozen=True):
    """One line of the audit log: `fields` has peer, token, code, subject …"""

    id: Id
    timestamp: str
    event: str
    outcome: str
    fields: dict[str, Any]


class AuditEntries(msgspec.Struct, frozen=True):
    """Lines of the audit log, the oldest first. `next`: the `after` of what comes later, also when that is not there
    yet; null: there are none so far. `has_gap`: some came in between that are only in the file."""

    items: list[AuditEntry]
    next: Id | None
    has_gap: bool


class Purged(msgspec.Struct, frozen=True):
    """What a purge has done, or would do."""

    is_done: bool
    segments: int
    freed_bytes: int
    purged_messages: int
    moved_messages: int
    moved_bytes: int
    damaged_messages: int
    kept_messages: int


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    AskPurge: {
        "anyOf": [
            {"required": ["confirm"]},
            {"required": ["dry_run"], "properties": {"dry_run": {"const": True}}},
        ]
    },
}
"""Of their schemas, what msgspec cannot say."""


def stats_of(found: Stats) -> BrokerStats:
    """The broker's figures."""
    return msgspec.convert({**_fields(found), "uptime": format_duration(found.uptime_ms)}, BrokerStats)


def _fields(found: msgspec.Struct) -> dict[str, Any]:
    """Of a frozen object: its fields, and its moments as moments."""
    moments = {name: getattr(found, name) for name in ("now", "tick", "started") if hasattr(found, name)}
    return {**msgspec.structs.asdict(found), **moments}


def horizon_of(found: Forecast) -> Horizon:
    """As it stands in a list."""
    return Horizon(found.label, found.until, found.timers, found.messages, found.leases)


def wheel_of(found: Wheel) -> WheelPicture:
    """With its forecast."""
    levels = [
        Level(one.level, format_duration(one.slot_ms), one.slots_occupied, one.timers, one.heat)
        for one in found.levels
    ]
    return WheelPicture(
        found.now, found.tick, found.gone, levels, [horizon_of(one) for one in found.forecast]
    )


def spread_of(found: Histogram) -> Spread:
    """Of one histogram."""
    return Spread(found.bounds, found.counts, found.sum)


def topic_numbers(found: TopicFigures) -> TopicNumbers:
    """With those of its groups."""
    return msgspec.convert(found, TopicNumbers, from_attributes=True)


def figures_of(found: Figures) -> BrokerFigures:
    """All of them."""
    return BrokerFigures(
        found.now,
        found.started,
        found.counters,
        found.gauges,
        {name: spread_of(one) for name, one in found.histograms.items()},
        [topic_numbers(one) for one in found.topics],
    )


def connection_of(found: ClientInfo) -> Connection:
    """With what it reads."""
    return Connection(
        id=str(found.id),
        peer=found.peer,
        name=found.name,
        token=found.token,
        token_name=found.token_name,
        since=found.since,
        queued_bytes=found.queued_bytes,
        subscriptions=[
            Subscribed(one.topic, one.group, one.credit, one.batch, one.leases) for one in found.subscriptions
        ],
        more_subscriptions=found.more_subscriptions,
    )


def audit_entry(found: AuditLine) -> AuditEntry:
    """As it stands in a list."""
    return AuditEntry(str(found.number), found.timestamp, found.event, found.outcome, found.fields)


def log_entry(found: LoggedEvent) -> LogEntry:
    """As it stands in a list."""
    return LogEntry(
        event=found.event,
        id=str(found.id) if found.id else None,
        topic=found.topic or None,
        group=found.group or None,
        epoch=found.epoch,
        at=found.time,
        next=found.next,
        error=found.error or None,
    )


def purged_of(found: PurgeResult) -> Purged:
    """What became of it."""
    return msgspec.convert(found, Purged, from_attributes=True)
