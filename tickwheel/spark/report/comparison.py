"""What is different from an earlier report, figure by figure. What it means is for the reader to say: the period, the
load and the subscribers may have been others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.earlier import Earlier

#: In the order of the page. ``totals.…``: of everything that is kept; the others: of the period.
COMPARED: Final = (
    "lateness.count", "lateness.p50_ms", "lateness.p99_ms", "lateness.p99_9_ms", "lateness.max_ms", "lateness.early",
    "ack_latency.count", "ack_latency.p50_ms", "ack_latency.p99_ms", "ack_latency.max_ms",
    "nacks", "dead_letters", "totals.messages", "totals.deliveries", "totals.acked", "totals.cancelled",
    "totals.scheduled", "totals.due_backlog",
)  # fmt: skip
#: Tables that have a column ``reason``.
_REASONS: Final = ("nacks", "dead_letters")


@dataclass(frozen=True, slots=True)
class Change:
    """A figure, then and now. None: it was not measured. Names that end in ``_ms`` are times."""

    name: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class TopicChange:
    """p99 of lateness and the number of first deliveries of a topic, then and now; None: it had none."""

    topic: str
    before_p99_ms: int | None
    after_p99_ms: int | None
    before_count: int
    after_count: int

    @property
    def is_changed(self) -> bool:
        return (self.before_p99_ms, self.before_count) != (self.after_p99_ms, self.after_count)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``new_reasons`` and ``gone_reasons`` by the table that has them. A table of which the earlier report does not
    tell all is not there."""

    earlier: Earlier
    is_same_source: bool
    changes: list[Change]
    topics: list[TopicChange]
    new_reasons: dict[str, list[str | None]]
    gone_reasons: dict[str, list[str | None]]

    def plain(self, most: int) -> dict[str, Any]:
        """As plain values, with so many topics and reasons."""
        return {
            "made_ms": self.earlier.made_ms,
            "directories": self.earlier.directories,
            "since_ms": self.earlier.since_ms,
            "until_ms": self.earlier.until_ms,
            "changes": [asdict(one) for one in self.changes],
            "topics": [asdict(one) for one in self.topics[:most]],
            "new_reasons": {name: found[:most] for name, found in self.new_reasons.items()},
            "gone_reasons": {name: found[:most] for name, found in self.gone_reasons.items()},
        }


def compare(answers: Answers, now: Mapping[str, int], earlier: Earlier) -> Comparison:
    """``now``: the figures of the new report, by the names in ``COMPARED``."""
    new, gone = _reasons(answers, earlier)
    return Comparison(
        earlier=earlier,
        is_same_source=earlier.directories == [str(one) for one in answers.options.directories],
        changes=[Change(name, _then(earlier, name), now.get(name)) for name in COMPARED],
        topics=_topics(answers, earlier),
        new_reasons=new,
        gone_reasons=gone,
    )


def _then(earlier: Earlier, name: str) -> int | None:
    part, _, field = name.partition(".")
    match part:
        case "totals":
            return earlier.totals.get(field)
        case "lateness" | "ack_latency":
            figures = earlier.lateness if part == "lateness" else earlier.ack_latency
            return None if figures is None else msgspec.structs.asdict(figures)[field]
        case "nacks":
            return earlier.nacks
        case _:
            return earlier.dead_letters


def _topics(answers: Answers, earlier: Earlier) -> list[TopicChange]:
    """Those of now, and then those that are only in the earlier report."""
    rows = [row for row in answers.rows("latency_by_topic") if row["measure"] == "lateness"]
    now, before = {row["topic"]: row for row in rows}, earlier.topics()
    listed = earlier.tables.get("latency_by_topic")
    tells_all = listed is not None and listed.rows == len(listed.first_rows)
    changes = []
    for topic in [*now, *(one for one in before if one not in now)]:
        was, one = before.get(topic), now.get(topic)
        if was is None and not tells_all:
            continue
        changes.append(
            TopicChange(
                topic=topic,
                before_p99_ms=None if was is None else was.p99_ms,
                after_p99_ms=None if one is None else one["p99_ms"],
                before_count=0 if was is None else was.count,
                after_count=0 if one is None else one["count"],
            )
        )
    return changes


def _reasons(
    answers: Answers, earlier: Earlier
) -> tuple[dict[str, list[str | None]], dict[str, list[str | None]]]:
    new: dict[str, list[str | None]] = {}
    gone: dict[str, list[str | None]] = {}
    for name in _REASONS:
        before = earlier.reasons(name)
        if before is None or name in answers.cut:
            continue
        now = {row["reason"] for row in answers.rows(name)}
        new[name] = sorted(now - before, key=_in_order)
        gone[name] = sorted(before - now, key=_in_order)
    return new, gone


def _in_order(reason: str | None) -> tuple[bool, str]:
    return reason is not None, reason or ""
