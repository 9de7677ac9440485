"""The broker's figures in the form that Prometheus reads; everything is read when it is asked for.

Nothing here runs while messages travel. A scrape works in pieces of about a millisecond, between which the broker goes
on: first the topics and groups are added up, then each family of metrics is read and written by itself. What needs the
disk or the kernel is asked in another thread.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tickwheel_broker.monitoring.metric_totals import GROUP_METRICS, OTHER, TOPIC_METRICS, Totals
from tickwheel_broker.monitoring.vitals import Disk, look_at_disk
from tickwheel_broker.monitoring.watched import Watched
from tickwheel_broker.services import CHANNEL_BATCHES, Queue
from timerlog.tables.lateness import Histogram

_TOPICS_AT_ONCE: Final = 20
"""So many topics, with their groups, are added up before others have their turn."""

_SAMPLES_AT_ONCE: Final = 100
"""So many lines are written before others have theirs."""

_WATCHED_REFUSALS: Final = (
    *("disk_full", "too_many_connections", "too_many_connections_from_address"),
    *("login_required", "bad_token", "token_revoked", "token_expired", "too_many_attempts"),
)
"""These are 0 before the first one: of a series that begins with 1, Prometheus sees no increase."""

_MS_PER_S: Final = 1_000
_EOF: Final = b"# EOF\n"

__all__ = ["OTHER", "Metrics"]


class Metrics:
    """Writes what Prometheus scrapes. One scrape at a time; others wait."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._figures = _Figures(watched)
        self.registry = CollectorRegistry()
        self.registry.register(self._figures)
        self._process = ProcessCollector(registry=None)
        self._turn = trio.Lock()

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """(the text, its content type), in the form that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        async with self._turn:
            process, self._figures.disk = await trio.to_thread.run_sync(self._ask_the_system)
            await self._figures.add_up()
            parts = []
            for family in chain(process, self.registry.collect()):
                for piece in _pieces(family, encode):
                    parts.append(piece)
                    await trio.lowlevel.checkpoint()
        is_open_metrics = content_type.startswith("application/openmetrics-text")
        return b"".join(parts) + (_EOF if is_open_metrics else b""), content_type

    def _ask_the_system(self) -> tuple[list[Metric], Disk | None]:
        process = list(self._process.collect())
        try:
            return process, look_at_disk(self._watched.settings.data_dir)
        except OSError:
            return process, None


def _pieces(family: Metric, encode: Callable[[CollectorRegistry], bytes]) -> Iterator[bytes]:
    """A family as text, some lines at a time; the first ones are those that say what it is."""
    samples = family.samples
    for start in range(0, max(1, len(samples)), _SAMPLES_AT_ONCE):
        family.samples = samples[start : start + _SAMPLES_AT_ONCE]
        text = encode(_Single(family)).removesuffix(_EOF)
        yield text if start == 0 else b"".join(line for line in text.splitlines(True) if line[:1] != b"#")


class _Single(CollectorRegistry):
    """The encoders take a registry: this is one of a single family."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterable[Metric]:
        yield self._family


class _Figures(Collector):
    """Reads the broker's state. `add_up` comes first; then `collect` gives one family after the other."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._engine = watched.engine
        self._totals = Totals(0)
        self._wheel: dict[str, Any] = {"levels": [], "forecast": [], "gone": 0}
        self.disk: Disk | None = None

    async def add_up(self) -> None:
        """Go through topics and groups, some at a time."""
        watched, engine = self._watched, self._engine
        totals = Totals(watched.settings.metrics_topics)
        for number, topic_id in enumerate(sorted(engine.tables.topics)):
            if number % _TOPICS_AT_ONCE == _TOPICS_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            if topic_id in engine.tables.topics:  # else it was deleted meanwhile
                totals.take(engine.tables, engine.look, engine.groups, topic_id)
        self._totals = totals
        self._wheel = await watched.forecasts.recent()

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        yield from self._broker_families()
        yield from self._totals_families()
        yield from self._timing_families()
        yield from self._wheel_families()
        yield from self._queue_families()
        yield from self._log_families()
        yield from self._disk_families()

    def _broker_families(self) -> Iterator[Metric]:
        watched = self._watched
        info = {"version": watched.lifetime.version, "python": platform.python_version()}
        yield InfoMetricFamily("tickwheel_build", "The version of the broker, and of its Python.", info)
        yield _gauge(
            "start_time_seconds",
            "When the broker started, in seconds since 1970.",
            watched.lifetime.started_ms / _MS_PER_S,
        )
        yield _gauge(
            "ready", "1 if the broker takes sends, as /readyz says.", not watched.vitals.reasons(self.disk)
        )
        yield _gauge(
            "hanging_parts",
            "Parts of the broker that have work and do not move.",
            len(watched.vitals.hanging),
        )
        yield _gauge("connections", "Clients that are connected.", watched.counters.connections)
        yield _gauge("subscribers", "Subscriptions of all clients.", watched.delivery.subscribers)
        yield _gauge("topics", "Topics, shards included.", len(self._engine.tables.topics))
        yield _gauge("groups", "Consumer groups, those of shards included.", len(self._engine.tables.groups))
        yield _counter(
            "clock_set_back", "How often the wall clock was set back.", watched.housekeeping.clock_set_back
        )
        yield _counter(
            "messages_damaged", "Messages set aside, for their record is damaged.", watched.services.damaged
        )
        refusals = CounterMetricFamily(
            "tickwheel_refusals", "What was refused to clients, by error code.", labels=["code"]
        )
        counts = dict.fromkeys(_WATCHED_REFUSALS, 0) | watched.counters.refusals
        for code, count in sorted(counts.items()):
            refusals.add_metric([code], count)
        yield refusals

    def _totals_families(self) -> Iterator[Metric]:
        for metric in (*TOPIC_METRICS, *GROUP_METRICS):
            family_type = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = family_type(f"tickwheel_{metric.name}", metric.help_text, labels=metric.labels)
            for labels, count in self._totals.of(metric).items():
                family.add_metric(labels, count)
            yield family

    def _timing_families(self) -> Iterator[Metric]:
        services, figures = self._watched.services, self._watched.commit.figures
        yield _histogram(
            "delivery_lateness_seconds",
            "How late messages reached their topics: the time then, less the time for which they were sent.",
            services.lateness_ms,
            per_unit=_MS_PER_S,
        )
        yield _histogram(
            "first_delivery_lateness_seconds",
            "How late messages were handed to a subscriber of a group for the first time.",
            self._engine.deliver.first_lateness_ms,
            per_unit=_MS_PER_S,
        )
        yield _histogram("sync_seconds", "How long fdatasync of the log took.", figures.seconds)
        yield _histogram(
            "group_commit_replies",
            "Answers and deliveries that one sync of the log released.",
            figures.replies,
        )
        running_s = 0.0 if figures.began_s is None else trio.current_time() - figures.began_s
        yield _gauge(
            "sync_running_seconds", "For how long the present sync has been waiting for the disk.", running_s
        )
        yield _gauge(
            "sync_waiting_replies",
            "Answers and deliveries that wait for a sync of the log.",
            self._watched.commit.waiting,
        )

    def _wheel_families(self) -> Iterator[Metric]:
        now_ms = self._watched.clock.now_ms()
        backlog, late_ms = self._watched.services.overdue(now_ms)
        yield _gauge(
            "due_backlog",
            "Messages, and ends of leases, that are due and not where they belong; while the wheel is behind, about.",
            backlog,
        )
        yield _gauge("oldest_overdue_seconds", "By how much the oldest of them is late.", late_ms / _MS_PER_S)
        timers = GaugeMetricFamily(
            "tickwheel_wheel_timers", "Timers on each level of the wheel.", labels=["level"]
        )
        slots = GaugeMetricFamily(
            "tickwheel_wheel_occupied_slots", "Slots of each level that hold timers.", labels=["level"]
        )
        for level in self._wheel["levels"]:
            timers.add_metric([str(level["level"])], level["timers"])
            slots.add_metric([str(level["level"])], level["slots_occupied"])
        yield timers
        yield slots
        ahead = GaugeMetricFamily(
            "tickwheel_timers_due",
            "Messages that become due within a time, and leases that end; the longer ones hold the shorter ones.",
            labels=["within"],
        )
        messages = GaugeMetricFamily(
            "tickwheel_messages_due", "Of these, the messages that become due.", labels=["within"]
        )
        for horizon in self._wheel["forecast"]:
            ahead.add_metric([horizon["label"]], horizon["timers"])
            messages.add_metric([horizon["label"]], horizon["messages"])
        yield ahead
        yield messages
        yield _gauge(
            "timers_gone",
            "Timers on the wheel that will do nothing: their message is gone, or has another one.",
            self._wheel["gone"],
        )

    def _queue_families(self) -> Iterator[Metric]:
        services = self._watched.services
        queues: dict[str, Queue[Any]] = {
            "pending": services.pending,
            "due": services.due,
            "ready": services.ready,
        }
        batches = GaugeMetricFamily(
            "tickwheel_queue_batches", "Batches between two of the five services, the one at work included.",
            labels=["queue"],
        )  # fmt: skip
        messages = GaugeMetricFamily(
            "tickwheel_queue_messages", "Messages, and ends of leases, in these batches.", labels=["queue"]
        )
        for name, queue in queues.items():
            batches.add_metric([name], len(queue.batches))
            messages.add_metric([name], queue.messages)
        yield batches
        yield messages
        yield _gauge(
            "queue_capacity_batches", "How many batches may wait between two services.", CHANNEL_BATCHES
        )
        yield _gauge(
            "enqueue_backlog_messages",
            "Messages accepted and not on the wheel yet.",
            self._engine.enqueue_get.pending,
        )
        yield _gauge(
            "enqueue_backlog_limit_messages",
            "With more than so many, producers wait.",
            self._watched.settings.max_backlog_messages,
        )
        yield _counter(
            "full_disk_waits", "Steps of the services that were put off for a full disk.", services.full_disks
        )

    def _log_families(self) -> Iterator[Metric]:
        engine, log = self._engine, self._engine.log
        yield _gauge("log_bytes", "Disk space of the log's segments.", log.disk_bytes())
        yield _gauge("log_segments", "Segments of the log.", len(log.segments))
        if engine.purger.live_bytes is not None:
            yield _gauge(
                "log_live_bytes",
                "What was needed of the log when the purge looked last.",
                engine.purger.live_bytes,
            )
        yield _counter("log_appended_bytes", "What was ever appended to the log.", log.appended_position)
        yield _counter("log_durable_bytes", "How far of that is surely on the disk.", log.durable_position)
        age_s = engine.checkpoints.age_ms(self._watched.clock.now_ms()) / _MS_PER_S
        yield _gauge(
            "checkpoint_age_seconds", "Since when changes are in no checkpoint; 0: there are none.", age_s
        )

    def _disk_families(self) -> Iterator[Metric]:
        engine = self._engine
        tables_bytes = (
            self._totals.table_bytes + engine.tables.shared_disk_bytes() + engine.wheel.disk_bytes()
        )
        yield _gauge("table_bytes", "Disk space of the tables that are derived from the log.", tables_bytes)
        held_bytes = engine.reserve.size_bytes
        yield _gauge("disk_reserve_bytes", "Held for what accepted messages still need.", held_bytes)
        yield _gauge(
            "disk_reserve_limit_bytes", "The most that is held.", self._watched.settings.disk_reserve_bytes
        )
        yield _gauge("disk_spare_bytes", "Held for the purge.", engine.spare.size_bytes)
        if self.disk is not None:
            yield _gauge("disk_size_bytes", "Size of the data directory's file system.", self.disk.size_bytes)
            yield _gauge("disk_free_bytes", "What is free there for the broker.", self.disk.free_bytes)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tickwheel_{name}", help_text, float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tickwheel_{name}", help_text, float(value))


def _histogram(name: str, help_text: str, values: Histogram, *, per_unit: int = 1) -> Metric:
    """`per_unit`: how many of the histogram's units are one of the metric's."""
    bounds = [*(bound / per_unit for bound in values.bounds), float("inf")]
    counts = values.counts.cumsum().tolist()
    buckets = [(_bound_text(bound), count) for bound, count in zip(bounds, counts, strict=True)]
    return HistogramMetricFamily(f"tickwheel_{name}", help_text, buckets, values.sum / per_unit)


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
