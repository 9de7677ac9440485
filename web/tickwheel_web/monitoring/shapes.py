"""What the broker's figures, its clients and its audit log look like."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel import LoggedEvent
from tickwheel.stats import (
    AuditLine,
    ClientInfo,
    ClientSubscription,
    Figures,
    Forecast,
    GroupFigures,
    Histogram,
    PurgeResult,
    Stats,
    TopicFigures,
    Wheel,
    WheelLevel,
)
from tickwheel_web.answers import Answer, answer
from tickwheel_web.shapes import MAX_PAGE, Id, Moment


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


@answer(
    Stats,
    fields=(
        "now", "tick", "uptime", "messages", "scheduled", "ready", "cancelled", "delivered", "acked", "leased",
        "topics", "groups", "connections", "subscribers", "appended_bytes", "durable_bytes", "disk_bytes", "syncs",
        "version", "refusals",
    ),
)  # fmt: skip
class BrokerStats(Answer, frozen=True):
    """What the broker holds and does."""


@answer(Forecast, fields=("label", "until", "timers", "messages", "leases"))
class Horizon(Answer, frozen=True):
    """What is due at `until` or before: messages whose time comes, and deliveries whose lease or wait ends."""


class Horizons(msgspec.Struct, frozen=True):
    """What is due within each of the durations, counted exactly; what is in earlier ones is in later ones, too."""

    now: Moment
    items: list[Horizon]


@answer(WheelLevel, fields=("level", "slot", "slots_occupied", "timers", "heat"))
class Level(Answer, frozen=True):
    """One level of the wheel. `heat` counts timers over equal parts of it, from now on."""


@answer(
    Wheel,
    fields=("now", "tick", "gone", "levels", "forecast"),
    kinds={"levels": list[Level], "forecast": list[Horizon]},
)
class WheelPicture(Answer, frozen=True):
    """The wheel: all its timers by level, `gone` of which will do nothing, and what is due when."""


@answer(Histogram, fields=("bounds", "counts", "sum"))
class Spread(Answer, frozen=True):
    """How values are spread: `counts[i]` had at most `bounds[i]`, the last one more than all bounds."""


@answer(
    GroupFigures,
    fields=(
        "name", "delivered", "acked", "leased", "backlog", "dead", "subscribers", "redelivered", "lateness",
    ),
)  # fmt: skip
class GroupNumbers(Answer, frozen=True):
    """Of a consumer group. `lateness`: its part of `first_delivery_lateness_seconds`, counts of the same buckets."""


@answer(
    TopicFigures,
    fields=(
        "name", "messages", "scheduled", "ready", "cancelled", "purged", "paused", "lateness", "groups",
    ),
    kinds={"groups": list[GroupNumbers]},
)  # fmt: skip
class TopicNumbers(Answer, frozen=True):
    """Of a topic. `lateness`: its part of `delivery_lateness_seconds`, counts of the same buckets."""


@answer(
    Figures,
    fields=("now", "started", "counters", "gauges", "histograms", "topics"),
    computed={
        "histograms": (
            dict[str, Spread],
            lambda found: {n: Spread.of(h) for n, h in found.histograms.items()},
        ),
        "topics": (list[TopicNumbers], lambda found: [topic_numbers(topic) for topic in found.topics]),
    },
)
class BrokerFigures(Answer, frozen=True):
    """Counters, gauges and histograms as the metrics have them, and those of every topic and group."""


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


@answer(
    LoggedEvent,
    fields=("event", "id", "topic", "group", "epoch", "at", "next", "error"),
    nullable=("id", "topic", "group", "error"),
    sources={"at": "time"},
)
class LogEntry(Answer, frozen=True):
    """Something that happened: to the message `id`, of which null means that it has been purged since. `next`: when it
    is due, its lease ends, or it goes on."""


class LogEntries(msgspec.Struct, frozen=True):
    """What has happened, in the order of the broker's log. `next`: the `after` of what comes later, also when that is
    not there yet; `more`: it is there already; `has_gap`: something before or between these is gone."""

    items: list[LogEntry]
    next: str
    more: bool
    has_gap: bool


@answer(ClientSubscription, fields=("topic", "group", "credit", "batch", "leases"))
class Subscribed(Answer, frozen=True):
    """A subscription of a connection; `leases`: how many messages it holds."""


@answer(
    ClientInfo,
    fields=(
        "id", "peer", "name", "token", "token_name", "since", "queued_bytes", "subscriptions", "more_subscriptions",
    ),
    kinds={"subscriptions": list[Subscribed]},
)  # fmt: skip
class Connection(Answer, frozen=True):
    """A connection that is logged in. `queued_bytes`: what waits until the client reads it."""


class Connections(msgspec.Struct, frozen=True):
    """A part of the connections; `next` is the `after` of the next part, or null."""

    items: list[Connection]
    next: str | None


class Disconnected(msgspec.Struct, frozen=True):
    """The connection that was closed."""

    id: Id


@answer(AuditLine, fields=("id", "timestamp", "event", "outcome", "fields"), sources={"id": "number"})
class AuditEntry(Answer, frozen=True):
    """One line of the audit log: `fields` has peer, token, code, subject …"""


class AuditEntries(msgspec.Struct, frozen=True):
    """Lines of the audit log, the oldest first. `next`: the `after` of what comes later, also when that is not there
    yet; null: there are none so far. `has_gap`: some came in between that are only in the file."""

    items: list[AuditEntry]
    next: Id | None
    has_gap: bool


@answer(
    PurgeResult,
    fields=(
        "is_done", "segments", "freed_bytes", "purged_messages", "moved_messages", "moved_bytes", "damaged_messages",
        "kept_messages",
    ),
)  # fmt: skip
class Purged(Answer, frozen=True):
    """What a purge has done, or would do."""


SAID_BY_HAND: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    AskPurge: {
        "anyOf": [
            {"required": ["confirm"]},
            {"required": ["dry_run"], "properties": {"dry_run": {"const": True}}},
        ]
    },
}
"""Of their schemas, what msgspec cannot say."""


def topic_numbers(found: TopicFigures) -> TopicNumbers:
    """The same as `TopicNumbers.of`, but quickly: there may be thousands of topics."""
    return msgspec.convert(found, TopicNumbers, from_attributes=True)
