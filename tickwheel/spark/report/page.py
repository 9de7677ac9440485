"""The page: what ``page.html.jinja`` shows of a report's answers. The words are there, the figures are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import jinja2

from tickwheel.look import LOOK
from tickwheel.spark.report import charts
from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.comparison import Change
from tickwheel.spark.report.options import STEPS_MS
from tickwheel.spark.report.queries.attempts import MOST
from tickwheel.spark.report.summary import comparison, dead_letters, due_totals, nacks
from tickwheel.spark.report.text import changed, count, counted, duration, moment, share, shown
from tickwheel.spark.report.verdict import judge

_MEASURES: Final = {"lateness": "Lateness of first deliveries", "ack_latency": "From delivery to ack"}
#: What their charts count.
_COUNTED: Final = {"lateness": charts.DELIVERIES, "ack_latency": "acks"}
#: So many names a chart has room for.
_NAMES: Final = 12
_PARTS: Final = 5
_LABEL: Final = 28
#: More steps of time than these are no chart any more, and more than those no table on a page.
MAX_STEPS: Final = 2_000
_LISTED_STEPS: Final = 1_000
#: So many groups are named that said the same.
_SAID_BY: Final = 3
#: Of fewer than these p99 is the latest one.
_FEW: Final = 100

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and how a row's value is shown. ``kind``, its class on the page: ``num``
    numbers, ``time`` times, ``name`` texts, ``wide`` long ones, ``bar`` a bar as long as the value's part of the
    largest."""

    heading: str
    name: str
    show: Callable[[Any], str] = shown
    kind: str = "name"


def _number(heading: str, name: str) -> Column:
    return Column(heading, name, count, "num")


def _time_taken(heading: str, name: str) -> Column:
    return Column(heading, name, duration, "num")


def _instant(heading: str, name: str) -> Column:
    return Column(heading, name, moment, "time")


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
                 _number("open", "open"), Column("share", "share", str, "num")),
    "keys": (Column("topic", "topic"), Column("key", "key", kind="wide"), Column("slowest group", "slowest_group"),
             _number("attempts", "attempts_max"), _time_taken("lateness", "lateness_max_ms"),
             _time_taken("to ack", "ack_latency_max_ms"), _time_taken("waited", "waited_max_ms"),
             _bar("waited_max_ms")),
    "tenants": (Column("tenant", "tenant"), *_FIGURES, _bar("p99_ms")),
    "due": (Column("topic", "topic"), _number("overdue", "overdue"), _number("next hour", "next_hour"),
            _number("next day", "next_day"), _number("next week", "next_week"), _number("later", "later"),
            _number("all", "scheduled"), _instant("next", "next_due_ms"), _number("retries", "retries"),
            _number("backlog", "backlog"), _instant("backlog since", "backlog_due_ms")),
    "hours": (Column("due within", "within"), Column("topic", "topic"), _number("messages", "messages")),
    "classes": (Column("", "measure"), Column("at least", "from_ms", lambda edge_ms: charts.edge(edge_ms), "num"),
                _number("count", "count")),
    "nacks": (Column("reason", "reason", kind="wide"), _number("nacks", "nacks"), _number("messages", "messages"),
              Column("of", "groups", str, "wide"), _bar("nacks")),
    "changes": (Column("", "label"), Column("then", "before", str, "num"), Column("now", "after", str, "num"),
                Column("change", "change", str, "num")),
    "topic_changes": (Column("topic", "topic"), _time_taken("p99 then", "before_p99_ms"),
                      _time_taken("p99 now", "after_p99_ms"), _number("deliveries then", "before_count"),
                      _number("deliveries now", "after_count")),
    "letters": (Column("reason", "reason", kind="wide"), _number("letters", "letters"),
                _number("still there", "still_there"), _number("attempts", "attempts_max"), _instant("last", "last_ms"),
                Column("of", "groups", str, "wide"), _bar("letters")),
    "herds": (Column("due", "deliver_at_ms", lambda time_ms: moment(time_ms, to_ms=True)),
              _number("messages", "messages"), _number("topics", "topics"), Column("largest topic", "largest_topic"),
              _bar("messages")),
}  # fmt: skip


#: What the figures of a comparison are called, and how they are shown.
_COMPARED: Final[dict[str, tuple[str, Callable[[float | None], str]]]] = {
    "lateness.count": ("first deliveries", count), "lateness.p50_ms": ("median lateness", duration),
    "lateness.p99_ms": ("p99 of lateness", duration), "lateness.p99_9_ms": ("p99.9 of lateness", duration),
    "lateness.max_ms": ("latest first delivery", duration), "lateness.early": ("delivered early", count),
    "ack_latency.count": ("acks", count), "ack_latency.p50_ms": ("median from delivery to ack", duration),
    "ack_latency.p99_ms": ("p99 from delivery to ack", duration),
    "ack_latency.max_ms": ("slowest ack", duration), "nacks": ("nacks", count),
    "dead_letters": ("dead letters", count), "totals.messages": ("messages kept", count),
    "totals.deliveries": ("deliveries of these", count), "totals.acked": ("acked of these", count),
    "totals.cancelled": ("cancelled of these", count), "totals.scheduled": ("scheduled", count),
    "totals.due_backlog": ("due and not taken yet", count),
}  # fmt: skip
_REASON_WORDS: Final = {"nacks": "nacks", "dead_letters": "dead letters"}


def render(answers: Answers) -> str:
    """The whole page as HTML."""
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "count": count, "counted": counted, "duration": duration, "moment": moment, "part": _part, "share": share,
        "shown": shown,
    }  # fmt: skip
    return environment.get_template("page.html.jinja").render(_shown_of(answers))


def _part(value: float | None, rows: Sequence[Row], name: str) -> str:
    """Of the largest in its column."""
    largest = max((row[name] or 0 for row in rows), default=0)
    return f"{100 * (value or 0) / (largest or 1):.1f}%"


def _shown_of(answers: Answers) -> dict[str, Any]:
    """By the names that the template has for it."""
    options = answers.options
    overall = {row["measure"]: row for row in answers.rows("latency")}
    return {
        "look": LOOK.read_text(encoding="utf-8"),
        "directories": ", ".join(shown(str(one), 200) for one in options.directories),
        "period": _period(answers),
        "now_ms": answers.now_ms,
        "step": answers.step,
        "top": options.top,
        "tenant": shown(str(options.tenant)),
        "most_attempts": MOST,
        "most_steps": MAX_STEPS,
        "few": _FEW,
        "columns": _COLUMNS | {"by_time": (_instant(answers.step, "time_ms"), *_FIGURES)},
        "verdict": judge(answers),
        "compared": _compared(answers),
        "messages": answers.totals["messages"],
        "lateness_unknown": answers.totals["lateness_unknown"],
        "late": overall.get("lateness"),
        "acks": overall.get("ack_latency"),
        "nacked": nacks(answers),
        "dead": dead_letters(answers),
        "due": due_totals(answers),
        "over_time": [_over_time(answers, measure) for measure in _MEASURES],
        "distribution": _distribution(answers),
        "by_name": [
            _by_name(answers, "topic", lambda row: str(row["topic"])),
            _by_name(answers, "group", lambda row: f"{row['group']} of {row['topic']}"),
            _by_name(answers, "priority", _priority),
        ],
        "attempts": _attempts(answers.rows("attempts")),
        "nacks": _by_reason(answers.rows("nacks"), ("nacks", "messages"), "(none was given, or the lease ended)"),
        "keys": [
            {**row, "key": row["key"] if row["key"] is not None else f"(no key, id {row['slowest_id']})"}
            for row in answers.rows("slowest_keys")
        ],
        "tenants": answers.rows("slowest_tenants"),
        "coming": _coming(answers),
        "letters": _by_reason(
            answers.rows("dead_letters"), ("letters", "still_there"), "(none was given: the lease ended)"
        ),
        "herds": answers.rows("herds"),
    }  # fmt: skip


def _by_reason(rows: Sequence[Row], sums: Sequence[str], none: str) -> list[dict[str, Any]]:
    """One row for each text, those with most of the first sum first, with the groups that said it."""
    found: dict[str | None, dict[str, Any]] = {}
    for row in rows:
        named = f"{shown(row['group'], _LABEL)} of {shown(row['topic'], _LABEL)}"
        one = found.setdefault(row["reason"], {**row, **dict.fromkeys(sums, 0), "names": []})
        one["names"].append(named)
        for name in sums:
            one[name] += row[name]
        for name in ("attempts_max", "last_ms"):
            if row.get(name) is not None:
                one[name] = max(one[name] or 0, row[name])
    for reason, one in found.items():
        names, rest = one["names"][:_SAID_BY], len(one["names"]) - _SAID_BY
        one["reason"] = none if reason is None else reason
        one["groups"] = ", ".join(names) + (f" and {counted(rest, 'other')}" if rest > 0 else "")
    return sorted(found.values(), key=lambda one: (-one[sums[0]], one["reason"]))


def _compared(answers: Answers) -> dict[str, Any] | None:
    """None: there is no earlier report."""
    found = comparison(answers)
    if found is None:
        return None
    earlier, target_ms = found.earlier, answers.options.target_p99_ms
    then = None if earlier.lateness is None else earlier.lateness.p99_ms
    return {
        "made_ms": earlier.made_ms,
        "period": _period_of(earlier.since_ms, earlier.until_ms),
        "directories": ", ".join(shown(one, 200) for one in earlier.directories),
        "is_same_source": found.is_same_source,
        "p99_ms": then,
        "met": None if then is None or target_ms is None else then <= target_ms,
        "changes": [_change(one) for one in found.changes if one.before != one.after],
        "same": [_change(one) for one in found.changes if one.before == one.after and one.after is not None],
        "topics": [asdict(one) for one in found.topics if one.is_changed],
        "new": [(_REASON_WORDS[name], reasons) for name, reasons in found.new_reasons.items() if reasons],
        "gone": [(_REASON_WORDS[name], reasons) for name, reasons in found.gone_reasons.items() if reasons],
    }


def _change(one: Change) -> dict[str, str]:
    label, show = _COMPARED[one.name]
    return {
        "label": label, "before": show(one.before), "after": show(one.after),
        "change": changed(one.before, one.after, show),
    }  # fmt: skip


def _period(answers: Answers) -> str:
    return _period_of(answers.options.period.since_ms, answers.options.period.until_ms)


def _period_of(since_ms: int | None, until_ms: int | None) -> str:
    if since_ms is None and until_ms is None:
        return "everything that is kept"
    since = "the beginning" if since_ms is None else moment(since_ms)
    until = "when it was made" if until_ms is None else moment(until_ms)
    return f"from {since} to {until}"


def _of(answers: Answers, name: str, measure: str) -> list[dict[str, Any]]:
    return [row for row in answers.rows(name) if row["measure"] == measure]


def _over_time(answers: Answers, measure: str) -> dict[str, Any]:
    """``listed``: the first of the steps, with a row for each time in which there is nothing."""
    rows = sorted(_of(answers, "latency_by_time", measure), key=lambda row: row["time_ms"])
    step_ms, counts = STEPS_MS[answers.step], _COUNTED[measure]
    chart = ""
    if 1 < len(rows) <= MAX_STEPS:
        target_ms = answers.options.target_p99_ms if measure == "lateness" else None
        chart = charts.latency_over_time(rows, step_ms, counts, target_ms)
    found = {
        until_ms: since_ms for since_ms, until_ms in charts.gaps([row["time_ms"] for row in rows], step_ms)
    }
    listed: list[Row] = []
    for row in rows[:_LISTED_STEPS]:
        if (since_ms := found.get(row["time_ms"])) is not None:
            listed.append({"gap": f"{moment(since_ms)} to {moment(row['time_ms'])}", "words": f"no {counts}"})
        listed.append(row)
    return {
        "measure": measure,
        "rows": rows,
        "listed": listed,
        "chart": chart,
        "gaps": len(found),
        "counted": counts,
    }


def _distribution(answers: Answers) -> dict[str, Any]:
    rows = answers.rows("distribution")
    present = {
        name: title for name, title in _MEASURES.items() if any(row["measure"] == name for row in rows)
    }
    return {
        "chart": charts.distribution(rows, present) if present else "",
        "rows": [{**row, "measure": _MEASURES[row["measure"]]} for row in answers.rows("latency")],
        "classes": [{**row, "measure": _MEASURES[row["measure"]]} for row in rows],
    }


def _by_name(answers: Answers, word: str, label: Callable[[Row], str]) -> dict[str, Any]:
    """A chart of lateness by a name, and tables of both measures. One name needs no chart."""
    late, acks = (
        [{**row, "label": label(row)} for row in _of(answers, f"latency_by_{word}", measure)]
        for measure in _MEASURES
    )
    drawn = late[:_NAMES]
    labels = [shown(row["label"], _LABEL) for row in drawn]
    target_ms = answers.options.target_p99_ms
    return {
        "word": word,
        "columns": (Column(word, "label"), *_FIGURES),
        "late": late,
        "acks": acks,
        "only": _only(late, acks),
        "chart": charts.spread_by_name(drawn, labels, f"by-{word}", target_ms) if len(late) > 1 else "",
    }


def _only(late: Sequence[Row], acks: Sequence[Row]) -> str | None:
    """The one name that there is; None: there are none, or several."""
    names = {row["label"] for row in (*late, *acks)}
    return names.pop() if len(names) == 1 else None


def _priority(row: Row) -> str:
    return "unknown" if row["priority"] is None else str(row["priority"])


def _attempts(rows: Sequence[Row]) -> dict[str, Any]:
    if not rows:
        return {"rows": [], "chart": "", "messages": 0}
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
    drawn = ""
    if len(numbers) > 1:
        drawn = charts.stacked(series, [str(one) for one in numbers], "attempts", "messages", "attempts")
    return {"rows": listed, "chart": drawn, "messages": total}


def _coming(answers: Answers) -> dict[str, Any]:
    """By hours as far as the next two days reach, else by days."""
    hours = answers.rows("due_by_hour")
    found: dict[str, Any] = {"rows": answers.rows("due_by_topic"), "chart": "", "hours": []}
    if not hours:
        return found
    last = max(row["hours_ahead"] for row in hours)
    size, word = (1, "hour") if last < 48 else (24, "day")
    sums: dict[str, int] = {}
    within: dict[tuple[int, str], int] = {}
    for row in hours:
        place, topic = row["hours_ahead"] // size, row["topic"]
        sums[topic] = sums.get(topic, 0) + row["messages"]
        within[place, topic] = within.get((place, topic), 0) + row["messages"]
    found["hours"] = [
        {"within": counted(place + 1, word), "topic": topic, "messages": messages}
        for (place, topic), messages in within.items()
    ]
    if len(within) > 1:
        found["chart"] = _due_chart(within, sums, last // size + 1, f"within … {word}s from now")
    return found


def _due_chart(
    within: Mapping[tuple[int, str], int], sums: Mapping[str, int], places: int, x_label: str
) -> str:
    """Parts of the topics that have most."""
    largest = sorted(sums, key=lambda topic: (-sums[topic], topic))[:_PARTS]
    series: dict[str, list[float]] = {}
    for (place, topic), messages in within.items():
        name = shown(topic, _LABEL) if topic in largest else f"{len(sums) - _PARTS:,} other topics"
        series.setdefault(name, [0] * places)[place] += messages
    ordered = dict(sorted(series.items(), key=lambda one: -sum(one[1])))
    return charts.stacked(ordered, [str(place + 1) for place in range(places)], x_label, "messages", "due")
