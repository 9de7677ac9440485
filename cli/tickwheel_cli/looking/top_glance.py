"""What `tickwheel top` shows, asked for and worked out; as JSON it is printed as it stands here."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import msgspec

from tickwheel import sync
from tickwheel.stats import Figures, Stats, Wheel
from tickwheel.watching.activity import Activities
from tickwheel.watching.attention import remarks
from tickwheel.watching.between import DELIVERED, REACHED, SHARES, Between, Sample, between, sample_of
from tickwheel.watching.coming import HORIZONS, coming
from tickwheel.watching.numbers import disk_share, gauge, numbers_of

MINUTE_S: Final = 60
_COUNT_COST: Final = 50
"""A count of what is due that took a while is used again for so many times as long."""
_MS: Final = 1_000


class Rates(msgspec.Struct, frozen=True):
    """In a second; null: not known yet."""

    sent: float | None
    delivered: float | None
    acked: float | None


class TopicRow(msgspec.Struct, frozen=True):
    """A topic, with its shards and groups together."""

    name: str
    scheduled: int
    backlog: int
    in_flight: int
    dead: int
    consumers: int
    paused: bool
    per_second: Rates


class Health(msgspec.Struct, frozen=True):
    """Of journal and disk."""

    log_bytes: int
    unsynced_bytes: int
    sync_running_s: float
    checkpoint_age_s: float
    disk_size_bytes: int | None
    disk_free_bytes: int | None
    disk_used_share: float | None


class Attention(msgspec.Struct, frozen=True):
    """Something that somebody should look at; without a topic it is about the broker."""

    severity: str
    text: str
    topic: str
    group: str


class Glance(msgspec.Struct, frozen=True):
    """One look."""

    now_ms: int
    version: str
    uptime_ms: int
    connections: int
    subscribers: int
    due_now: int
    coming: dict[str, int]
    """Each message once."""
    scheduled: int
    in_flight: int
    backlog: int
    dead: int
    per_second: Rates
    lateness_ms: dict[str, float | None]
    """From when a message was due to its first delivery: bounds that so many messages did not exceed; null: nothing was
    delivered, or it is more than a day."""
    to_topic_ms: dict[str, float | None]
    """The part of it until a message is in its topic, which is the broker's."""
    lateness_over_s: float
    """For so long that was observed: a minute at most."""
    health: Health
    attention: list[Attention]
    topics: list[TopicRow]


class Looks:
    """One after the other, at one broker: what happens between them is known."""

    def __init__(self, client: sync.Client) -> None:
        self._client = client
        self._before: Figures | None = None
        self._minute: deque[Sample] = deque()
        self._wheel: Wheel | None = None
        self._wheel_until_s = float("-inf")

    def look(self) -> Glance:
        """Raises what the client raises."""
        found, stats, wheel = self._client.figures(), self._client.stats(), self._wheel_now()
        sample = sample_of(found)
        if self._minute and between(self._minute[-1], sample) is None:
            self._minute.clear()
        lately = between(self._minute[-1] if self._minute else None, sample)
        minute = between(self._minute[0] if self._minute else None, sample)
        self._minute.append(sample)
        while self._minute[0].now_ms < found.now_ms - MINUTE_S * _MS:
            self._minute.popleft()
        before, self._before = self._before, found
        return _glance(found, stats, wheel, lately, minute, _topics(found, before))

    def _wheel_now(self) -> Wheel:
        began_s = time.monotonic()
        if self._wheel is None or began_s >= self._wheel_until_s:
            self._wheel = self._client.wheel(horizons=list(HORIZONS.values()))
            self._wheel_until_s = began_s + _COUNT_COST * (time.monotonic() - began_s)
        return self._wheel


def _glance(
    found: Figures,
    stats: Stats,
    wheel: Wheel,
    lately: Between | None,
    minute: Between | None,
    topics: list[TopicRow],
) -> Glance:
    numbers = numbers_of(found)
    rates = {name: None if lately is None else lately.per_s(name) for name in ("sent", "delivered", "acked")}
    return Glance(
        now_ms=found.now_ms,
        version=stats.version,
        uptime_ms=stats.uptime_ms,
        connections=stats.connections,
        subscribers=stats.subscribers,
        due_now=int(numbers.due_backlog),
        coming={one.label: one.messages for one in coming(wheel, stats.scheduled)},
        scheduled=int(numbers.scheduled),
        in_flight=int(numbers.in_flight),
        backlog=int(numbers.backlog),
        dead=int(numbers.dead),
        per_second=Rates(**rates),
        lateness_ms=_bounds_ms(minute, DELIVERED),
        to_topic_ms=_bounds_ms(minute, REACHED),
        lateness_over_s=0.0 if minute is None else minute.seconds,
        health=_health(found, stats),
        attention=[Attention(one.tone, one.text, one.topic, one.group) for one in remarks(found, minute)],
        topics=topics,
    )


def _bounds_ms(minute: Between | None, of: str) -> dict[str, float | None]:
    bounds_s = {
        name: None if minute is None else minute.quantile(share, of) for name, share in SHARES.items()
    }
    return {name: None if bound_s is None else bound_s * _MS for name, bound_s in bounds_s.items()}


def _health(found: Figures, stats: Stats) -> Health:
    size_bytes = found.gauges.get("disk_size_bytes")
    return Health(
        log_bytes=int(gauge(found, "log_bytes")),
        unsynced_bytes=stats.appended_bytes - stats.durable_bytes,
        sync_running_s=gauge(found, "sync_running_seconds"),
        checkpoint_age_s=gauge(found, "checkpoint_age_seconds"),
        disk_size_bytes=None if size_bytes is None else int(gauge(found, "disk_size_bytes")),
        disk_free_bytes=None if size_bytes is None else int(gauge(found, "disk_free_bytes")),
        disk_used_share=disk_share(found),
    )


def _topics(found: Figures, before: Figures | None) -> list[TopicRow]:
    lately = Activities(found, before)
    rows = []
    for topic in found.topics:
        if topic.shard_of:
            continue
        sums: dict[str, Any] = {
            name: sum(getattr(group, field) for group in topic.groups)
            for name, field in (
                ("backlog", "backlog"),
                ("in_flight", "leased"),
                ("dead", "dead"),
                ("consumers", "subscribers"),
            )
        }
        rows.append(
            TopicRow(
                name=topic.name,
                scheduled=topic.scheduled,
                paused=topic.paused,
                per_second=Rates(*lately.of_topic(topic.name)),
                **sums,
            )
        )
    return rows
