"""The page: what ``page.html.jinja`` shows of a report's answers. The words are there, the figures are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2

from tickwheel.spark.report import charts
from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.options import STEPS_MS
from tickwheel.spark.report.queries.attempts import MOST
from tickwheel.spark.report.summary import due_totals
from tickwheel.spark.report.text import count, duration, moment, share, shown

_MEASURES: Final = {"lateness": "Lateness of first deliveries", "ack_latency": "From delivery to ack"}
#: What their charts count.
_COUNTED: Final = {"lateness": "deliveries", "ack_latency": "acks"}
#: So many names a chart has room for.
_NAMES: Final = 12
_PARTS: Final = 5
_LABEL: Final = 28

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and how a row's value is shown. ``kind``, its class on the page: ``n`` numbers,
    ``t`` texts (``t k`` long ones), ``bar`` a bar as long as the value's part of the largest."""

    heading: str
    name: str
    show: Callable[[Any], str] = shown
    kind: str = "t"


def _number(heading: str, name: str) -> Column:
    return Column(heading, name, count, "n")


def _time_taken(heading: str, name: str) -> Column:
    return Column(heading, name, duration, "n")


def _instant(heading: str, name: str) -> Column:
    return Column(heading, name, moment)


def _bar(name: str) -> Column:
    return Column("", name, kind="bar")


#: What latency tables have behind the names.
_FIGURES: Final = (
    _number("count", "count"), _time_taken("median", "p50_ms"), _time_taken("p90", "p90_ms"),
    _time_taken("p99", "p99_ms"), _time_taken("p99.9", "p99_9_ms"), _time_taken("slowest", "max_ms"),
)  # fmt: skip
_COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "measures": (Column("", "measure"), *_FIGURES),
    "attempts": (_number("attempts", "attempts"), _number("acked", "acked"), _number("dead", "dead"),
                 _number("open", "open"), Column("share", "share", str, "n")),
    "keys": (Column("topic", "topic"), Column("key", "key", kind="t k"), Column("slowest group", "slowest_group"),
             _number("attempts", "attempts_max"), _time_taken("lateness", "lateness_max_ms"),
             _time_taken("to ack", "ack_latency_max_ms"), _time_taken("waited", "waited_max_ms"),
             _bar("waited_max_ms")),
    "tenants": (Column("tenant", "tenant"), *_FIGURES, _bar("p99_ms")),
    "due": (Column("topic", "topic"), _number("overdue", "overdue"), _number("next hour", "next_hour"),
            _number("next day", "next_day"), _number("next week", "next_week"), _number("later", "later"),
            _number("all", "scheduled"), _instant("next", "next_due_ms"), _number("retries", "retries"),
            _number("backlog", "backlog"), _instant("backlog since", "backlog_due_ms")),
    "letters": (Column("reason", "reason"), Column("topic", "topic"), Column("group", "group"),
                _number("letters", "letters"), _number("still there", "still_there"),
                _number("attempts", "attempts_max"), _instant("last", "last_ms"), _bar("letters")),
    "herds": (Column("due", "deliver_at_ms", lambda time_ms: moment(time_ms, to_ms=True)),
              _number("messages", "messages"), _number("topics", "topics"), Column("largest topic", "largest_topic"),
              _bar("messages")),
}  # fmt: skip


def render(answers: Answers) -> str:
    """The whole page as HTML."""
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"count": count, "duration": duration, "moment": moment, "part": _part}
    return environment.get_template("page.html.jinja").render(_shown_of(answers))


def _part(value: float | None, rows: Sequence[Row], name: str) -> str:
    """Of the largest in its column."""
    largest = max((row[name] or 0 for row in rows), default=0)
    return f"{100 * (value or 0) / (largest or 1):.1f}%"


def _shown_of(answers: Answers) -> dict[str, Any]:
    """By the names that the template has for it."""
    options = answers.options
    overall = {row["measure"]: row for row in answers.rows("latency")}
    since_ms = [row["backlog_due_ms"] for row in answers.rows("due_by_topic") if row["backlog"]]
    return {
        "directories": ", ".join(shown(str(one), 200) for one in options.directories),
        "period": _period(answers),
        "now_ms": answers.now_ms,
        "step": answers.step,
        "top": options.top,
        "tenant": shown(str(options.tenant)),
        "most_attempts": MOST,
        "columns": _COLUMNS | {"by_time": (_instant(answers.step, "time_ms"), *_FIGURES)},
        "messages": answers.totals["messages"],
        "late": overall.get("lateness"),
        "acks": overall.get("ack_latency"),
        "dead": sum(row["letters"] for row in answers.rows("dead_letters")),
        "due": due_totals(answers),
        "waited_ms": max(0, answers.now_ms - min(since_ms)) if since_ms else None,
        "over_time": [_over_time(answers, measure) for measure in _MEASURES],
        "distribution": _distribution(answers),
        "by_name": [
            _by_name(answers, "topic", lambda row: str(row["topic"])),
            _by_name(answers, "group", lambda row: f"{row['group']} of {row['topic']}"),
            _by_name(answers, "priority", _priority),
        ],
        "attempts": _attempts(answers.rows("attempts")),
        "keys": [
            {**row, "key": row["key"] if row["key"] is not None else f"(no key, id {row['slowest_id']})"}
            for row in answers.rows("slowest_keys")
        ],
        "tenants": answers.rows("slowest_tenants"),
        "coming": {"rows": answers.rows("due_by_topic"), "chart": _due_chart(answers.rows("due_by_hour"))},
        "letters": [
            {**row, "reason": row["reason"] if row["reason"] is not None else "(none was given: the lease ended)"}
            for row in answers.rows("dead_letters")
        ],
        "herds": answers.rows("herds"),
    }  # fmt: skip


def _period(answers: Answers) -> str:
    period = answers.options.period
    if period.since_ms is None and period.until_ms is None:
        return "everything that is kept"
    since = "the beginning" if period.since_ms is None else moment(period.since_ms)
    until = "now" if period.until_ms is None else moment(period.until_ms)
    return f"from {since} to {until}"


def _of(answers: Answers, name: str, measure: str) -> list[dict[str, Any]]:
    return [row for row in answers.rows(name) if row["measure"] == measure]


def _over_time(answers: Answers, measure: str) -> dict[str, Any]:
    rows = sorted(_of(answers, "latency_by_time", measure), key=lambda row: row["time_ms"])
    chart = ""
    if len(rows) > 1:
        chart = charts.latency_over_time(rows, STEPS_MS[answers.step], _COUNTED[measure])
    return {"measure": measure, "rows": rows, "chart": chart}


def _distribution(answers: Answers) -> dict[str, Any]:
    rows = answers.rows("distribution")
    present = {
        name: title for name, title in _MEASURES.items() if any(row["measure"] == name for row in rows)
    }
    return {
        "chart": charts.distribution(rows, present) if present else "",
        "rows": [{**row, "measure": _MEASURES[row["measure"]]} for row in answers.rows("latency")],
    }


def _by_name(answers: Answers, word: str, label: Callable[[Row], str]) -> dict[str, Any]:
    """A chart of lateness by a name, and tables of both measures."""
    late, acks = (
        [{**row, "label": label(row)} for row in _of(answers, f"latency_by_{word}", measure)]
        for measure in _MEASURES
    )
    drawn = late[:_NAMES]
    labels = [shown(row["label"], _LABEL) for row in drawn]
    return {
        "word": word,
        "columns": (Column(word, "label"), *_FIGURES),
        "late": late,
        "acks": acks,
        "chart": charts.spread_by_name(drawn, labels, f"by-{word}") if drawn else "",
    }


def _priority(row: Row) -> str:
    return "unknown" if row["priority"] is None else str(row["priority"])


def _attempts(rows: Sequence[Row]) -> dict[str, Any]:
    if not rows:
        return {"rows": [], "chart": ""}
    numbers = sorted({row["attempts"] for row in rows})
    found = {(row["attempts"], row["outcome"]): row["messages"] for row in rows}
    outcomes = [name for name in ("acked", "dead", "open") if any(name == row["outcome"] for row in rows)]
    series = {name: [found.get((one, name), 0) for one in numbers] for name in outcomes}
    total = sum(row["messages"] for row in rows)
    listed = [
        {"attempts": one, **{name: found.get((one, name), 0) for name in ("acked", "dead", "open")},
         "share": share(sum(found.get((one, name), 0) for name in outcomes), total)}
        for one in numbers
    ]  # fmt: skip
    drawn = charts.stacked(series, [str(one) for one in numbers], "attempts", "messages", "attempts")
    return {"rows": listed, "chart": drawn}


def _due_chart(hours: Sequence[Mapping[str, Any]]) -> str:
    """By hours as far as the next two days reach, else by days; empty: nothing is due."""
    if not hours:
        return ""
    last = max(row["hours_ahead"] for row in hours)
    size, word = (1, "hours from now") if last < 48 else (24, "days from now")
    sums: dict[str, int] = {}
    for row in hours:
        sums[row["topic"]] = sums.get(row["topic"], 0) + row["messages"]
    largest = sorted(sums, key=lambda topic: (-sums[topic], topic))[:_PARTS]
    places = last // size + 1
    series: dict[str, list[float]] = {}
    for row in hours:
        topic = row["topic"]
        name = shown(topic, _LABEL) if topic in largest else f"{len(sums) - _PARTS:,} other topics"
        series.setdefault(name, [0] * places)[row["hours_ahead"] // size] += row["messages"]
    ordered = dict(sorted(series.items(), key=lambda one: -sum(one[1])))
    return charts.stacked(
        ordered, [str(place + 1) for place in range(places)], f"within … {word}", "messages", "due"
    )
