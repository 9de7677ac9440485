"""Topics and groups added up for metrics: the first so many have figures of their own, the others are one.

Each series costs the database that stores it, so their number is bounded. The oldest topics come first, because the
same ones must have figures of their own at each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from tickwheel_broker.monitoring.figures import Entry, Figures
from timerlog.tables.tables import Tables

OTHER: Final = "other"
"""The label of what has none of its own."""

Labels: TypeAlias = tuple[str, ...]


class TotalMetric(NamedTuple):
    """One family with a label for each topic, or for each group."""

    name: str
    help_text: str
    is_counter: bool
    labels: Labels
    read: Callable[[Entry], int]


def _of_topic(name: str, help_text: str, field: str, *, is_counter: bool = False) -> TotalMetric:
    return TotalMetric(name, help_text, is_counter, ("topic",), lambda entry: int(entry[field]))


def _of_group(name: str, help_text: str, field: str, *, is_counter: bool = False) -> TotalMetric:
    return TotalMetric(name, help_text, is_counter, ("topic", "group"), lambda entry: int(entry[field]))


TOPIC_METRICS: Final = (
    _of_topic("messages_accepted", "Messages that ever came.", "messages", is_counter=True),
    _of_topic("messages_cancelled", "Messages that were cancelled.", "cancelled", is_counter=True),
    _of_topic("messages_purged", "Messages that were purged.", "purged", is_counter=True),
    _of_topic("messages_scheduled", "Messages that wait for their time.", "scheduled"),
    _of_topic("messages_ready", "Messages in the topic: due, done or not, and not purged.", "ready"),
)
GROUP_METRICS: Final = (
    _of_group("messages_delivered", "Deliveries to subscribers, repeated ones included.", "delivered", is_counter=True),
    _of_group("messages_redelivered", "Deliveries since the start but the first ones.", "redelivered", is_counter=True),
    _of_group("messages_acked", "Messages that the group has acknowledged.", "acked", is_counter=True),
    _of_group("messages_dead", "Messages moved to the dead letters after their last attempt.", "dead", is_counter=True),
    _of_group("backlog_messages", "Messages that are due and that the group has not acknowledged.", "backlog"),
    _of_group("leases", "Messages that subscribers hold.", "leased"),
)  # fmt: skip


class Totals:
    """Takes one topic after the other."""

    def __init__(self, limit: int) -> None:
        """At most `limit` topics, and as many groups, have figures of their own."""
        self._limit = limit
        self._topics = self._groups = 0
        self._sums: dict[str, Counter[Labels]] = {
            metric.name: Counter() for metric in (*TOPIC_METRICS, *GROUP_METRICS)
        }
        self.table_bytes = 0
        """Disk space of the tables of these topics and groups."""

    def of(self, metric: TotalMetric) -> Counter[Labels]:
        """The values of a family by their labels."""
        return self._sums[metric.name]

    def take(self, tables: Tables, figures: Figures, topic_id: int) -> None:
        """Add a topic. Shards are counted with the topic that they are a part of."""
        topic = tables.topics[topic_id]
        self.table_bytes += topic.arrivals.region.disk_bytes()
        for group_id in topic.groups.values():
            self.table_bytes += tables.groups[group_id].deliveries.region.disk_bytes()
        if topic.record.parent:
            return
        entry = figures.topic(topic_id)
        is_named = self._topics < self._limit
        self._topics += 1
        label = entry["name"] if is_named else OTHER
        self._add(TOPIC_METRICS, (label,), entry)
        for group_id in topic.groups.values():
            group = figures.group(group_id)
            is_named_group = is_named and self._groups < self._limit
            self._groups += 1
            self._add(GROUP_METRICS, (label, group["name"] if is_named_group else OTHER), group)

    def _add(self, metrics: tuple[TotalMetric, ...], labels: Labels, entry: Entry) -> None:
        for metric in metrics:
            self._sums[metric.name][labels] += metric.read(entry)
