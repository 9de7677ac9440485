"""The page of a report, from answers made by hand: all is shown, what is hostile is text, nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.options import report_options
from tickwheel.spark.report.page import render
from tickwheel.spark.report.summary import summarise
from tickwheel.spark.report.text import duration, shown

NOW_MS = 1_900_000_000_000
FIGURES = ("count", "early", "min_ms", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms")
COLUMNS: dict[str, tuple[str, ...]] = {
    "latency": ("measure", *FIGURES),
    "latency_by_topic": ("measure", "topic", *FIGURES),
    "latency_by_group": ("measure", "topic", "group", *FIGURES),
    "latency_by_priority": ("measure", "priority", *FIGURES),
    "latency_by_time": ("measure", "time_ms", *FIGURES),
    "distribution": ("measure", "from_ms", "count"),
    "attempts": ("attempts", "outcome", "messages"),
    "slowest_keys": ("topic", "key", "waited_max_ms", "lateness_max_ms", "ack_latency_max_ms", "attempts_max",
                     "slowest_group", "slowest_id"),
    "slowest_tenants": ("tenant", *FIGURES),
    "due_by_topic": ("topic", "scheduled", "overdue", "next_hour", "next_day", "next_week", "later", "retries",
                     "backlog", "backlog_due_ms", "next_due_ms", "last_due_ms"),
    "due_by_hour": ("hours_ahead", "topic", "messages"),
    "dead_letters": ("topic", "group", "reason", "letters", "still_there", "attempts_max", "first_ms", "last_ms"),
    "herds": ("deliver_at_ms", "messages", "topics", "largest_topic"),
}  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]></svg><script>alert(1)</script>",
    "$\\frac{1}{$",
    "$x$ & </td>",
    "\x00\x1b[31m\u202egnp.exe",
    "日本語 🚀",
    "var(--ink) #010101",
    "x" * 500,
]
TOTALS = {"messages": 12, "cancelled": 1, "acked": 5, "dead": 2, "deliveries": 9, "lateness_unknown": 0}


def answers(**rows: list[tuple[Any, ...]]) -> Answers:
    made = Answers(report_options("data"), NOW_MS, "hour", dict(TOTALS))
    for name, columns in COLUMNS.items():
        listed = [dict(zip(columns, row, strict=True)) for row in rows.get(name, [])]
        made.tables[name] = pa.Table.from_pylist(listed) if listed else pa.table({one: [] for one in columns})
    return made


def measured(*names: Any) -> list[tuple[Any, ...]]:
    return [
        (measure, *names, 100, 0, 0, 3.5, 1, 5, 70, 400, 9_000) for measure in ("lateness", "ack_latency")
    ]


def full(text: str) -> Answers:
    """All tables have rows, and each text in them is this."""
    return answers(
        latency=measured(),
        latency_by_topic=measured(text) + measured("plain"),
        latency_by_group=measured(text, text),
        latency_by_priority=measured(50) + measured(None),
        latency_by_time=measured(NOW_MS) + measured(NOW_MS + 3_600_000),
        distribution=[("lateness", 0, 60), ("lateness", 7_000, 40), ("ack_latency", -1, 1), ("ack_latency", 5, 99)],
        attempts=[(1, "acked", 90), (2, "dead", 7), (3, "open", 3)],
        slowest_keys=[(text, text, 9_000, 8_000, 1_000, 2, text, 7), (text, None, 5, 5, None, 1, text, 8)],
        slowest_tenants=[(text, 100, 0, 0, 3.5, 1, 5, 70, 400, 9_000)],
        due_by_topic=[(text, 9, 1, 2, 4, 5, 3, 1, 6, NOW_MS - 90_000, NOW_MS + 5, NOW_MS + 9)],
        due_by_hour=[(0, text, 2), (40, f"{text} 2", 2), *((n, f"topic {n}", 1) for n in range(8))],
        dead_letters=[(text, text, text, 5, 4, 2, NOW_MS, NOW_MS), (text, text, None, 1, 1, 2, NOW_MS, NOW_MS)],
        herds=[(NOW_MS, 60, 2, text)],
    )  # fmt: skip


class Seen(HTMLParser):
    """The elements of a page, and whether they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "path", "use", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(page: str) -> Seen:
    found = Seen()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_shown_and_nothing_else(text: str) -> None:
    page = render(full(text))
    found = seen(page)
    assert found.tags <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "div", "b", "span", "nav", "a",
        "section", "table", "thead", "tbody", "tr", "th", "td", "i", "details", "summary", "footer", "code",
        "svg", "g", "path", "use", "text", "defs", "clippath", "rect",
    }  # fmt: skip
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]
    assert shown(text) in found.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)


def test_nothing_is_fetched() -> None:
    found = seen(render(full("plain")))
    links = [
        value or "" for name, value in found.attributes if name in ("href", "xlink:href", "src", "action")
    ]
    assert links
    assert all(link.startswith("#") for link in links)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes
    assert "@import" not in found.text
    ids = [value for name, value in found.attributes if name == "id"]
    assert {link[1:] for link in links} <= set(ids)


def test_charts_follow_the_colours_of_the_page() -> None:
    page = render(full("plain"))
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    # Two over time, the distributions, topics, groups, priorities, attempts, and what is due.
    assert len(charts) == 8
    assert not re.findall("#0101[01][0-9]", page)
    assert all("var(--" in chart for chart in charts)
    assert len(page.encode()) < 400_000


def test_empty_answers_say_so() -> None:
    found = seen(render(answers()))
    assert "svg" not in found.tags
    for words in (
        "Nothing was measured in this period.",
        "Nothing was delivered in this period.",
        "Nothing waited.",
        "No message that was delivered has a tenant.",
        "Nothing is scheduled",
        "There are none.",
        "No two messages are due at once.",
    ):
        assert words in found.text


def test_the_figures_on_top() -> None:
    text = seen(render(full("plain"))).text
    for words in ("12messages are kept", "1 msmedian lateness", "9 slatest first delivery", "6dead letters"):
        assert words in text
    assert "(none was given: the lease ended)" in text
    assert "(no key, id 8)" in text
    assert "unknown" in text


def test_the_summary_names_what_is_cut() -> None:
    made = full("plain")
    made.cut.add("herds")
    summary = summarise(made)
    assert {name for name, table in summary["tables"].items() if not table["complete"]} == {"herds"}
    assert summary["tables"]["herds"]["first_rows"][0]["messages"] == 60
    assert (summary["step_ms"], summary["made_ms"], summary["tenant"]) == (3_600_000, NOW_MS, "key-prefix:/")
    assert (summary["totals"]["scheduled"], summary["totals"]["due_next_hour"]) == (9, 2)
    assert summary["lateness"]["p99_9_ms"] == 400
    assert summary["directories"] == [str(Path("data").absolute())]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (1.5, "1.5 ms"), (999, "999 ms"), (1_000, "1 s"), (59_990, "60 s"), (90_000, "1 min 30 s"),
     (7_200_000, "2 h"), (90_000_000, "1 d 1 h"), (-5, "-5 ms"), (None, "–")],
)  # fmt: skip
def test_durations(ms: float | None, text: str) -> None:
    assert duration(ms) == text
