"""The page: one HTML file that needs nothing else, neither network nor scripts, and forbids itself both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tickwheel.spark.report import charts
from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.elements import (
    FIGURES,
    Column,
    Markup,
    bar,
    card,
    heading,
    instant,
    nothing,
    number,
    plot,
    section,
    table,
    text,
    time_taken,
)
from tickwheel.spark.report.options import STEPS_MS
from tickwheel.spark.report.queries.attempts import MOST
from tickwheel.spark.report.style import CSS
from tickwheel.spark.report.summary import due_totals
from tickwheel.spark.report.text import count, duration, escaped, moment, share, shown

_MEASURES: Final = {"lateness": "Lateness of first deliveries", "ack_latency": "From delivery to ack"}
#: So many names a chart has room for.
_NAMES: Final = 12
_PARTS: Final = 5
_LABEL: Final = 28


def render(answers: Answers) -> str:
    """The whole page as HTML."""
    sections = [make(answers) for make in _SECTIONS.values()]
    links = "".join(
        f'<a href="#{anchor}">{escaped(words)}</a>' for anchor, words in zip(_SECTIONS, _LINKS, strict=True)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Delivery report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{CSS}</style></head>
<body><main>
<h1>Delivery report</h1>
<p class="lead muted">{escaped(_lead(answers))}</p>
<div class="cards">{"".join(_cards(answers))}</div>
<nav>{links}</nav>
{"".join(sections)}
<footer>All figures are exact; percentiles are values that were measured. The same tables lie beside this page
as Parquet files in <code>tables/</code>, the figures above in <code>summary.json</code>. Times are UTC.</footer>
</main></body></html>
"""


def _lead(answers: Answers) -> str:
    options = answers.options
    names = ", ".join(shown(str(one), 200) for one in options.directories)
    period = options.period
    if period.since_ms is None and period.until_ms is None:
        when = "everything that is kept"
    else:
        since = "the beginning" if period.since_ms is None else moment(period.since_ms)
        until = "now" if period.until_ms is None else moment(period.until_ms)
        when = f"from {since} to {until}"
    return f"{names} · {when} · made {moment(answers.now_ms)} UTC"


def _cards(answers: Answers) -> list[Markup]:
    totals, due = answers.totals, due_totals(answers)
    overall = {row["measure"]: row for row in answers.rows("latency")}
    cards = [card(count(totals["messages"]), "messages are kept, cancelled ones and dead letters too")]
    late, acks = overall.get("lateness"), overall.get("ack_latency")
    if late:
        cards += [
            card(count(late["count"]), "first deliveries, once for each group"),
            card(duration(late["p50_ms"]), "median lateness"),
            card(duration(late["p99_ms"]), "p99: 99 % of first deliveries are no later"),
            card(duration(late["max_ms"]), "latest first delivery"),
            card(count(late["early"]), "delivered early", "bad" if late["early"] else "good"),
        ]
    if acks:
        cards += [
            card(duration(acks["p50_ms"]), f"median from delivery to ack, of {count(acks['count'])} acks"),
            card(duration(acks["p99_ms"]), "p99 from delivery to ack"),
        ]
    dead = sum(row["letters"] for row in answers.rows("dead_letters"))
    return [
        *cards,
        card(count(dead), "dead letters", "bad" if dead else "good"),
        card(count(due["scheduled"]), f"scheduled, {count(due['due_next_day'])} of them within a day"),
        _backlog(answers, due["due_backlog"]),
    ]


def _backlog(answers: Answers, number: int) -> Markup:
    since_ms = [row["backlog_due_ms"] for row in answers.rows("due_by_topic") if row["backlog"]]
    if not since_ms:
        return card("0", "due and not taken yet", "good")
    waited = duration(max(0, answers.now_ms - min(since_ms)))
    return card(count(number), f"due and not taken yet, the oldest for {waited}", "bad")


def _of(answers: Answers, name: str, measure: str) -> list[dict[str, Any]]:
    return [row for row in answers.rows(name) if row["measure"] == measure]


def _time(measure: str, title: str, note: str, counted: str) -> Callable[[Answers], Markup]:
    def made(answers: Answers) -> Markup:
        rows = sorted(_of(answers, "latency_by_time", measure), key=lambda row: row["time_ms"])
        if not rows:
            return section(measure, title, note, nothing("Nothing was measured in this period."))
        columns = (instant(answers.step, "time_ms"), *FIGURES)
        listed = table(columns, rows)
        if len(rows) == 1:
            return section(measure, title, f"{note} All of it happened within one {answers.step}.", listed)
        words = f"{title}: median, 99th percentile and slowest for each {answers.step}"
        chart = plot(charts.latency_over_time(rows, STEPS_MS[answers.step], counted), words)
        each = _folded(f"Each {answers.step} as a table", listed)
        return section(measure, title, f"{note} One point a {answers.step}, UTC.", chart, each)

    return made


def _folded(words: str, inside: Markup) -> Markup:
    return Markup(f"<details><summary>{escaped(words)}</summary>{inside}</details>")


def _distribution(answers: Answers) -> Markup:
    rows = answers.rows("distribution")
    note = "How many messages took how long. The classes grow with the time; each label is the least of its class."
    present = {
        name: title for name, title in _MEASURES.items() if any(row["measure"] == name for row in rows)
    }
    if not present:
        return section("distribution", "Distribution", note, nothing("Nothing was measured in this period."))
    labels = [{**row, "measure": _MEASURES[row["measure"]]} for row in answers.rows("latency")]
    return section(
        "distribution", "Distribution", note,
        plot(charts.distribution(rows, present), "Bars: messages by lateness and by time to ack"),
        table((text("", "measure"), *FIGURES), labels),
    )  # fmt: skip


def _by_name(
    name: str, key: str, word: str, title: str, label: Callable[[Mapping[str, Any]], str]
) -> Callable[[Answers], Markup]:
    """A chart of lateness by a name, and tables of both measures."""

    def made(answers: Answers) -> Markup:
        anchor = f"by-{key}"
        note = f"Median, p99 and slowest of each {word}, those with most deliveries first."
        late, acks = _of(answers, name, "lateness"), _of(answers, name, "ack_latency")
        if not late and not acks:
            return section(anchor, title, note, nothing("Nothing was measured in this period."))
        parts: list[Markup] = []
        column = Column(word, "label", shown, number=False)
        for rows, words in ((late, _MEASURES["lateness"]), (acks, _MEASURES["ack_latency"])):
            if rows:
                parts.append(heading(words))
                named = [{**row, "label": label(row)} for row in rows]
                if rows is late:
                    drawn = named[:_NAMES]
                    labels = [shown(row["label"], _LABEL) for row in drawn]
                    parts.append(plot(charts.spread_by_name(drawn, labels, anchor), f"Lateness by {word}"))
                parts.append(table((column, *FIGURES), named[: answers.options.top]))
        return section(anchor, title, note, *parts)

    return made


def _attempts(answers: Answers) -> Markup:
    title, rows = "Attempts", answers.rows("attempts")
    note = (
        "How many attempts it took until a message was acked or became a dead letter, once for each group; open: "
        "not done yet. What a subscriber gave back unseen is no attempt. "
        f"{MOST} stands for {MOST} and more."
    )
    if not rows:
        return section("attempts", title, note, nothing("Nothing was delivered in this period."))
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
    columns = (number("attempts", "attempts"), number("acked", "acked"), number("dead", "dead"), number("open", "open"),
               Column("share", "share", str))  # fmt: skip
    drawn = charts.stacked(series, [str(one) for one in numbers], "attempts", "messages", "attempts")
    return section(
        "attempts", title, note, plot(drawn, "Messages by attempts and outcome"), table(columns, listed)
    )


def _keys(answers: Answers) -> Markup:
    note = (
        "The keys that waited longest from due to done, or, while they are open, to their first delivery; the "
        "greatest value of all groups."
    )
    rows = [{**row, "key": row["key"] if row["key"] is not None else f"(no key, id {row['slowest_id']})"}
            for row in answers.rows("slowest_keys")]  # fmt: skip
    key = Column("key", "key", shown, number=False, wide=True)
    columns = (text("topic", "topic"), key, text("slowest group", "slowest_group"),
               number("attempts", "attempts_max"), time_taken("lateness", "lateness_max_ms"),
               time_taken("to ack", "ack_latency_max_ms"), time_taken("waited", "waited_max_ms"),
               bar("waited_max_ms"))  # fmt: skip
    return section("keys", "Slowest keys", note, table(columns, rows) if rows else nothing("Nothing waited."))


def _tenants(answers: Answers) -> Markup:
    note = (f"Lateness of first deliveries by tenant, the greatest p99 first. A tenant is found by "
            f"{shown(str(answers.options.tenant))} (option --tenant); messages without one are left out.")  # fmt: skip
    rows = answers.rows("slowest_tenants")
    columns = (text("tenant", "tenant"), *FIGURES, bar("p99_ms"))
    none = nothing("No message that was delivered has a tenant.")
    return section("tenants", "Slowest tenants", note, table(columns, rows) if rows else none)


def _due(answers: Answers) -> Markup:
    since = moment(answers.now_ms)
    note = (f"What is scheduled, counted from {since} UTC. Each of hour, day and week holds the one before. Backlog: "
            "due, and no subscriber has taken it; like retries, once for each group.")  # fmt: skip
    rows, hours = answers.rows("due_by_topic"), answers.rows("due_by_hour")
    if not rows:
        return section(
            "due",
            "To come",
            note,
            nothing("Nothing is scheduled, and no delivery waits for a subscriber or another attempt."),
        )
    parts: list[Markup] = []
    if hours:
        parts.append(plot(_due_chart(hours), "Messages by the time until they are due"))
    columns = (text("topic", "topic"), number("overdue", "overdue"), number("next hour", "next_hour"),
               number("next day", "next_day"), number("next week", "next_week"), number("later", "later"),
               number("all", "scheduled"), instant("next", "next_due_ms"), number("retries", "retries"),
               number("backlog", "backlog"), instant("backlog since", "backlog_due_ms"))  # fmt: skip
    return section("due", "To come", note, *parts, table(columns, rows))


def _due_chart(hours: Sequence[Mapping[str, Any]]) -> str:
    """By hours as far as the next two days reach, else by days."""
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


def _letters(answers: Answers) -> Markup:
    note = (
        "What subscribers said last before a message became a dead letter. Letters that were replayed or dropped "
        "count until they are purged."
    )
    rows = [
        {**row, "reason": row["reason"] if row["reason"] is not None else "(none was given: the lease ended)"}
        for row in answers.rows("dead_letters")
    ]
    columns = (text("reason", "reason"), text("topic", "topic"), text("group", "group"), number("letters", "letters"),
               number("still there", "still_there"), number("attempts", "attempts_max"), instant("last", "last_ms"),
               bar("letters"))  # fmt: skip
    shown_rows = rows[: answers.options.top]
    return section(
        "dead", "Dead letters", note, table(columns, shown_rows) if rows else nothing("There are none.")
    )


def _herds(answers: Answers) -> Markup:
    note = "The milliseconds in which most messages are or were due. The topic setting spread smooths them."
    rows = answers.rows("herds")
    columns = (instant("due", "deliver_at_ms", to_ms=True), number("messages", "messages"), number("topics", "topics"),
               text("largest topic", "largest_topic"), bar("messages"))  # fmt: skip
    return section(
        "herds", "Herds", note, table(columns, rows) if rows else nothing("No two messages are due at once.")
    )


def _priority(row: Mapping[str, Any]) -> str:
    return "unknown" if row["priority"] is None else str(row["priority"])


_SECTIONS: Final[dict[str, Callable[[Answers], Markup]]] = {
    "lateness": _time(
        "lateness", "Lateness over time",
        "From the moment a message was due to its first delivery to a group, the wait for a subscriber included.",
        "deliveries",
    ),
    "ack_latency": _time(
        "ack_latency", "Time to ack", "From the last delivery of a message to the ack of its group.", "acks"
    ),
    "distribution": _distribution,
    "by-topic": _by_name("latency_by_topic", "topic", "topic", "By topic", lambda row: str(row["topic"])),
    "by-group": _by_name(
        "latency_by_group", "group", "group", "By group", lambda row: f"{row['group']} of {row['topic']}"
    ),
    "by-priority": _by_name("latency_by_priority", "priority", "priority", "By priority", _priority),
    "attempts": _attempts,
    "keys": _keys,
    "tenants": _tenants,
    "due": _due,
    "dead": _letters,
    "herds": _herds,
}  # fmt: skip
_LINKS: Final = ("Lateness", "Time to ack", "Distribution", "Topics", "Groups", "Priorities", "Attempts",
                 "Slowest keys", "Slowest tenants", "To come", "Dead letters", "Herds")  # fmt: skip
