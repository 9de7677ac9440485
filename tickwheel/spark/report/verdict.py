"""Whether the deliveries were as punctual as they should have been, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tickwheel.spark.report.build import Answers


@dataclass(frozen=True, slots=True)
class Above:
    """What has a p99 above the target: a topic, or one of its groups."""

    topic: str
    group: str | None
    p99_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``met`` None: there is no target, or nothing was delivered. ``later``: first deliveries that were later than the
    target; ``steps_above`` of ``steps`` of time had a p99 above it, the worst one at ``worst_ms``. ``waiting``: due,
    not delivered yet, and so not in any figure; the oldest for ``waited_ms``."""

    target_p99_ms: int | None
    met: bool | None
    count: int = 0
    p99_ms: int | None = None
    max_ms: int | None = None
    later: int | None = None
    steps: int = 0
    steps_above: int = 0
    worst_ms: int | None = None
    worst_p99_ms: int | None = None
    topics_above: list[Above] = field(default_factory=list)
    groups_above: list[Above] = field(default_factory=list)
    waiting: int = 0
    waited_ms: int | None = None

    def plain(self, most: int) -> dict[str, Any]:
        """As plain values, with so many of what is above the target."""
        values = asdict(self)
        return values | {name: values[name][:most] for name in ("topics_above", "groups_above")}


def judge(answers: Answers) -> Verdict:
    """Of lateness alone: how fast acks are is the subscribers' affair."""
    target_ms = answers.options.target_p99_ms
    due = answers.rows("due_by_topic")
    since_ms = [row["backlog_due_ms"] for row in due if row["backlog"]]
    waiting = sum(row["backlog"] for row in due)
    waited_ms = max(0, answers.now_ms - min(since_ms)) if since_ms else None
    overall = _of_lateness(answers, "latency")
    if not overall:
        return Verdict(target_ms, None, waiting=waiting, waited_ms=waited_ms)
    (whole,) = overall
    steps = _of_lateness(answers, "latency_by_time")
    worst = max(steps, key=lambda row: (row["p99_ms"], -row["time_ms"]))
    return Verdict(
        target_p99_ms=target_ms,
        met=None if target_ms is None else whole["p99_ms"] <= target_ms,
        count=whole["count"],
        p99_ms=whole["p99_ms"],
        max_ms=whole["max_ms"],
        later=answers.later,
        steps=len(steps),
        steps_above=len(_above(steps, target_ms)),
        worst_ms=worst["time_ms"],
        worst_p99_ms=worst["p99_ms"],
        topics_above=_named(_of_lateness(answers, "latency_by_topic"), target_ms),
        groups_above=_named(_of_lateness(answers, "latency_by_group"), target_ms),
        waiting=waiting,
        waited_ms=waited_ms,
    )


def _of_lateness(answers: Answers, name: str) -> list[dict[str, Any]]:
    return [row for row in answers.rows(name) if row["measure"] == "lateness"]


def _above(rows: Sequence[Mapping[str, Any]], target_ms: int | None) -> list[Mapping[str, Any]]:
    return [] if target_ms is None else [row for row in rows if row["p99_ms"] > target_ms]


def _named(rows: Sequence[Mapping[str, Any]], target_ms: int | None) -> list[Above]:
    """The worst first."""
    found = [
        Above(row["topic"], row.get("group"), row["p99_ms"], row["count"]) for row in _above(rows, target_ms)
    ]
    return sorted(found, key=lambda one: (-one.p99_ms, one.topic, one.group or ""))
