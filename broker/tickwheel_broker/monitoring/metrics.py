"""The broker's figures in the form that Prometheus reads; everything is read when it is asked for.

Nothing here runs while messages travel. A scrape works in pieces of about a millisecond, between which the broker goes
on: first the topics and groups are added up, then each family of metrics is read and written by itself. What needs the
disk or the kernel is asked in another thread.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
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

from tickwheel_broker.monitoring.figures import Distribution, Figure
from tickwheel_broker.monitoring.metric_totals import GROUP_METRICS, OTHER, TOPIC_METRICS, Totals
from tickwheel_broker.monitoring.vitals import Disk, DiskSight
from tickwheel_broker.monitoring.watched import Sight, Watched
from tickwheel_broker.sharedlog.node import Role
from tickwheel_broker.sharedlog.standing import Standing

_TOPICS_AT_ONCE: Final = 20
"""So many topics, with their groups, are added up before others have their turn."""

_SAMPLES_AT_ONCE: Final = 100
"""So many lines are written before others have theirs."""

_MS_PER_S: Final = 1_000
_EOF: Final = b"# EOF\n"

__all__ = ["OTHER", "Metrics"]


class Metrics:
    """Writes what Prometheus scrapes. One scrape at a time; others wait."""

    def __init__(self, sight: Sight, disk: DiskSight) -> None:
        self._sight = sight
        self._disk = disk
        self._figures: _Figures | None = None
        self._process = ProcessCollector(registry=None)
        self._turn = trio.Lock()

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """(the text, its content type), in the form that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        async with self._turn:
            process = await trio.to_thread.run_sync(lambda: list(self._process.collect()))
            disk = await self._disk.look_now()
            parts = await _encoded(process, encode)
            with self._sight.look() as watched:
                figures = self._figures_of(watched)
                if figures is not None:
                    figures.disk = disk
                    await figures.add_up()
                    parts += await _encoded(figures.collect(), encode)
            parts += await _encoded(cluster_families(self._sight.standing), encode)
        is_open_metrics = content_type.startswith("application/openmetrics-text")
        return b"".join(parts) + (_EOF if is_open_metrics else b""), content_type

    def _figures_of(self, watched: Watched | None) -> _Figures | None:
        """Of the broker that serves: in a cluster it is another one each time that the node owns the log."""
        if watched is None:
            self._figures = None
        elif self._figures is None or self._figures.watched is not watched:
            self._figures = _Figures(watched)
        return self._figures


async def _encoded(families: Iterable[Metric], encode: Callable[[CollectorRegistry], bytes]) -> list[bytes]:
    parts = []
    for family in families:
        for piece in _pieces(family, encode):
            parts.append(piece)
            await trio.lowlevel.checkpoint()
    return parts


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


class _Figures:
    """Reads the broker's state. `add_up` comes first; then `collect` gives one family after the other."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._totals = Totals(0)
        self._wheel: dict[str, Any] = {"levels": [], "forecast": [], "gone": 0}
        self.disk: Disk | None = None

    async def add_up(self) -> None:
        """Go through topics and groups, some at a time."""
        watched, engine = self.watched, self.watched.engine
        totals = Totals(watched.settings.metrics_topics)
        for number, topic_id in enumerate(sorted(engine.tables.topics)):
            if number % _TOPICS_AT_ONCE == _TOPICS_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            if topic_id in engine.tables.topics:  # else it was deleted meanwhile
                totals.take(engine.tables, watched.figures, topic_id)
        self._totals = totals
        self._wheel = await watched.forecasts.recent()

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield from self._broker_families()
        yield from self._totals_families()
        yield from self._wheel_families()
        yield from self._disk_families()

    def _broker_families(self) -> Iterator[Metric]:
        watched = self.watched
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
        for figure in watched.figures.numbers():
            yield _family(figure)
        for spread in watched.figures.distributions():
            yield _histogram(spread)

    def _totals_families(self) -> Iterator[Metric]:
        for metric in (*TOPIC_METRICS, *GROUP_METRICS):
            family_type = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = family_type(f"tickwheel_{metric.name}", metric.help_text, labels=metric.labels)
            for labels, count in self._totals.of(metric).items():
                family.add_metric(labels, count)
            yield family

    def _wheel_families(self) -> Iterator[Metric]:
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

    def _disk_families(self) -> Iterator[Metric]:
        engine = self.watched.engine
        tables_bytes = (
            self._totals.table_bytes + engine.tables.shared_disk_bytes() + engine.wheel.disk_bytes()
        )
        yield _gauge("table_bytes", "Disk space of the tables that are derived from the log.", tables_bytes)
        if self.disk is not None:
            yield _gauge("disk_size_bytes", "Size of the data directory's file system.", self.disk.size_bytes)
            yield _gauge("disk_free_bytes", "What is free there for the broker.", self.disk.free_bytes)


def cluster_families(standing: Standing | None) -> Iterator[Metric]:
    """How a node of a cluster stands; nothing for a broker of its own."""
    if standing is None:
        return
    roles = GaugeMetricFamily(
        "tickwheel_cluster_role", "1 for the role that the node has now.", labels=["cluster", "node", "role"]
    )
    for role in Role:
        roles.add_metric([standing.cluster, str(standing.node), role.value], float(role is standing.role))
    yield roles
    yield _gauge("cluster_joined", "1 if the node may be chosen to own the log.", standing.has_joined)
    yield _gauge(
        "cluster_held_off",
        "1 if the node was chosen and could not own the log, and does not stand for a while.",
        standing.gave_up_s is not None,
    )
    yield _gauge(
        "cluster_log_dangers",
        "Settings of the topic in Kafka under which the log is not safe, or cannot be written.",
        len(standing.dangers),
    )
    yield _gauge("cluster_term", "The highest term that the node has read of.", standing.term)
    if standing.records_behind is not None:
        yield _gauge(
            "cluster_records_behind",
            "Records of the shared log that the replica does not have yet.",
            standing.records_behind,
        )
    if standing.unconfirmed_s is not None:
        yield _gauge(
            "cluster_unconfirmed_seconds",
            "Of the owner: how long ago it began the last record that is known to count.",
            standing.unconfirmed_s,
        )
    if standing.clock_skew_ms is not None:
        yield _gauge(
            "cluster_clock_skew_seconds",
            "How far the node's clock is ahead of the owner's; negative: behind.",
            standing.clock_skew_ms / 1_000,
        )
    yield _counter("cluster_fences", "Terms that the node has begun, or tried to.", standing.fences)
    yield _counter(
        "cluster_append_failures",
        "Appends of which the shared log did not say that it has them.",
        standing.appends_failed,
    )
    yield _counter(
        "cluster_records_healed",
        "Damaged records of the replica that were fetched again from the shared log.",
        standing.healing.healed,
    )
    yield _counter(
        "cluster_records_lost", "Records that the shared log has damaged, too.", standing.healing.lost
    )
    yield _histogram(
        Distribution(
            "cluster_append_seconds", "How long appends to the shared log took.", standing.append_seconds
        )
    )


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tickwheel_{name}", help_text, float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tickwheel_{name}", help_text, float(value))


def _family(figure: Figure) -> Metric:
    family_type = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
    name = f"tickwheel_{figure.name}"
    if isinstance(figure.value, Mapping):
        family = family_type(name, figure.help_text, labels=[figure.label])
        for label, value in figure.value.items():
            family.add_metric([label], value)
        return family
    return family_type(name, figure.help_text, float(figure.value))


def _histogram(spread: Distribution) -> Metric:
    values, per_unit = spread.values, spread.per_unit
    bounds = [*(bound / per_unit for bound in values.bounds), float("inf")]
    counts = values.counts.cumsum().tolist()
    buckets = [(_bound_text(bound), count) for bound, count in zip(bounds, counts, strict=True)]
    return HistogramMetricFamily(f"tickwheel_{spread.name}", spread.help_text, buckets, values.sum / per_unit)


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
