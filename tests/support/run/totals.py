"""Totals of figures that tests make by hand."""

from __future__ import annotations

from collections.abc import Iterable

from tickwheel.stats import FigureTotals, TopicFigures


def totals_of(topics: Iterable[TopicFigures] = ()) -> FigureTotals:
    """As a broker tells them: a topic with shards counts what they hold together."""
    wholes = [topic for topic in topics if not topic.shard_of]
    groups = [group for topic in wholes for group in topic.groups]
    of_topics = {
        name: sum(getattr(topic, name) for topic in wholes)
        for name in ("messages", "scheduled", "ready", "cancelled")
    }
    of_groups = {
        name: sum(getattr(group, name) for group in groups)
        for name in ("delivered", "acked", "leased", "dead", "redelivered", "backlog")
    }
    return FigureTotals(**of_topics, **of_groups)
