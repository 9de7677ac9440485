"""The page of a report, from answers made by hand: all is shown, what is hostile is text, nothing is fetched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.run.cases import table
from tickwheel.look import LOOK
from tickwheel.spark.report import charts
from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.errors import EarlierRefused
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
    "nacks": ("topic", "group", "reason", "nacks", "messages"),
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
        nacks=[(text, text, text, 5, 4), (text, text, None, 1, 1)],
        slowest_keys=[(text, text, 9_000, 8_000, 1_000, 2, text, 7), (text, None, 5, 5, None, 1, text, 8)],
        slowest_tenants=[(text, 100, 0, 0, 3.5, 1, 5, 70, 400, 9_000)],
        due_by_topic=[(text, 9, 1, 2, 4, 5, 3, 1, 6, NOW_MS - 90_000, NOW_MS + 5, NOW_MS + 9)],
        due_by_hour=[(0, text, 2), (40, f"{text} 2", 2), *((n, f"topic {n}", 1) for n in range(8))],
        dead_letters=[(text, text, text, 5, 4, 2, NOW_MS, NOW_MS), (text, text, None, 1, 1, 2, NOW_MS, NOW_MS)],
        herds=[(NOW_MS, 60, 2, text)],
    )  # fmt: skip


def compared(made: Answers, earlier: Answers, folder: Path, target_ms: int = 60) -> Answers:
    """With an earlier report, and with a target."""
    (folder / "summary.json").write_text(json.dumps(summarise(earlier)))
    options = report_options("data", compare=folder, target_p99=timedelta(milliseconds=target_ms))
    return replace(made, options=options, later=2)


@cache
def orders() -> str:
    """The page of everything."""
    return render(full("orders"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of words: charts are empty."""
    for name in ("latency_over_time", "distribution", "spread_by_name", "stacked"):
        monkeypatch.setattr(f"tickwheel.spark.report.charts.{name}", lambda *_: "<svg></svg>")


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


#: Drawing charts takes a second of the processor for each page: all of these run in CI.
_ALWAYS = (2, 5)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=() if number in _ALWAYS else pytest.mark.ci)
        for number, text in enumerate(HOSTILE)
    ],
    ids=range(len(HOSTILE)),
)
def test_hostile_texts_are_shown_and_nothing_else(text: str, tmp_path: Path) -> None:
    page = render(compared(full(text), full(text), tmp_path))
    found = seen(page)
    assert found.tags <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "div", "b", "span", "nav", "a",
        "section", "header", "figure", "dl", "dt", "dd", "ul", "li", "caption",
        "table", "thead", "tbody", "tr", "th", "td", "i", "details", "summary", "footer", "code",
        "svg", "g", "path", "use", "text", "defs", "clippath", "rect",
    }  # fmt: skip
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]
    assert shown(text) in found.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)


def test_nothing_is_fetched() -> None:
    found = seen(orders())
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
    page = orders()
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    # Two over time, the distributions, topics, priorities, attempts, and what is due. There is one group.
    assert len(charts) == 7
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
        "No message that was delivered has a tenant",
        "No delivery was given back.",
        "Nothing is scheduled",
        "There are none.",
        "No two messages are due at once.",
    ):
        assert words in found.text


def test_the_figures_on_top() -> None:
    text = seen(orders()).text
    for words in ("messages kept12", "median lateness1 ms", "p99 of lateness70 ms", "latest first delivery9 s",
                  "nacks6", "dead letters6"):  # fmt: skip
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


@table(
    ("ms", "text"),
    [(0, "0 ms"), (1.5, "1.5 ms"), (999, "999 ms"), (1_000, "1 s"), (59_990, "60 s"), (90_000, "1 min 30 s"),
     (7_200_000, "2 h"), (90_000_000, "1 d 1 h"), (-5, "-5 ms"), (None, "–")],
)  # fmt: skip
def test_durations(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def titled(page: str, anchor: str) -> str:
    """The words of one section."""
    found = re.search(rf'<section id="{anchor}".*?</section>', page, re.DOTALL)
    assert found
    return " ".join(seen(found[0].replace("<", " <")).text.split())


def steps(*seconds: int, p99_ms: int = 70) -> list[tuple[Any, ...]]:
    return [
        (measure, NOW_MS + 1_000 * one, 100, 0, 0, 3.5, 1, 5, p99_ms, 400, 9_000)
        for one in seconds
        for measure in ("lateness", "ack_latency")
    ]


def with_steps(*seconds: int, **options: Any) -> Answers:
    made = full("orders")
    made.step, made.options = "second", report_options("data", **options)
    made.tables["latency_by_time"] = answers(latency_by_time=steps(*seconds)).tables["latency_by_time"]
    return made


def test_the_page_has_the_look_of_the_dashboard() -> None:
    page = orders()
    assert LOOK.read_text() in page
    rest = page.replace(LOOK.read_text(), "")
    assert re.findall(r": ?#[0-9a-f]{3,8}\b", rest) == []  # all colours are the look's
    used = set(re.findall(r"var\((--[\w-]+)\)", page))
    assert used <= set(re.findall(r"(--[\w-]+):", LOOK.read_text()))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("target_ms", "tone", "words"),
    [
        (70, "good", "Target met: 99 % of 100 first deliveries were at most 70 ms late; 70 ms were allowed."),
        (69, "bad", "Target missed: p99 of 100 first deliveries is 70 ms; 69 ms were allowed."),
        (None, "", "99 % of 100 first deliveries were at most 70 ms late."),
    ],
)
def test_the_verdict_stands_on_top(target_ms: int | None, tone: str, words: str) -> None:
    target = None if target_ms is None else timedelta(milliseconds=target_ms)
    made = with_steps(0, 1, 5, target_p99=target)
    made.later = None if target is None else 1
    page, summary = render(made), summarise(made)
    assert f'<section id="verdict" class="notice {tone}"' in page
    assert page.index('id="verdict"') < page.index('class="figures"')
    told = titled(page, "verdict")
    assert words in told
    assert "6 deliveries that are due and not taken by a subscriber yet, the oldest for 1 min 30 s" in told
    assert ("no target was given" in told) == (target is None)
    verdict = summary["verdict"]
    assert (verdict["met"], verdict["target_p99_ms"]) == (
        None if target is None else tone == "good",
        target_ms,
    )
    assert (verdict["p99_ms"], verdict["waiting"], verdict["later"]) == (70, 6, made.later)
    if target_ms == 69:
        assert "1 of 100 (1 %) came later than that, the latest 9 s late." in told
        assert "In 3 of 3 seconds with deliveries p99 was above it" in told
        assert (
            "Topics above it: orders (p99 70 ms, 100 deliveries), plain (p99 70 ms, 100 deliveries)." in told
        )
        assert [one["topic"] for one in verdict["topics_above"]] == ["orders", "plain"]
    if target_ms == 70:
        assert "No topic and no group is above it." in told


def test_without_deliveries_there_is_no_verdict() -> None:
    made = answers()
    made.options = report_options("data", target_p99=timedelta(milliseconds=100))
    told = titled(render(made), "verdict")
    assert "so the target of 100 ms is neither met nor missed" in told
    assert summarise(made)["verdict"]["met"] is None


def test_time_without_data_is_a_gap() -> None:
    whole, broken = render(with_steps(*range(9))), render(with_steps(0, 1, 2, 6, 8))
    lines = [re.findall(r'd="([^"]*)"[^>]*stroke: var\(--line-3\)', page)[0] for page in (whole, broken)]
    assert [line.count("M") for line in lines] == [1, 3]
    # 0 to 2, then two points alone: nothing leads to them, and nothing goes down to zero.
    assert lines[1].count("L") <= 2
    assert ("no deliveries" in whole, "no deliveries" in broken) == (False, True)
    assert "Where the ground is shaded there were no deliveries." in titled(broken, "lateness")
    rows = re.findall(r'<tr class="gap"><td>(.*?)</td><td colspan="6">no deliveries</td>', broken)
    assert rows == [
        "2030-03-17 17:46:43 to 2030-03-17 17:46:46",
        "2030-03-17 17:46:47 to 2030-03-17 17:46:48",
    ]


def test_p99_median_and_slowest_are_told_apart_on_an_axis_of_magnitudes() -> None:
    chart = re.findall(
        r"<svg.*?</svg>", render(with_steps(0, 1, 2, target_p99=timedelta(milliseconds=100))), re.DOTALL
    )[0]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    for words in ("half are no later (p50)", "99 % are no later (p99)", "latest", "target 100 ms"):
        assert words in texts
    assert not [one for one in texts if "faster" in one or "slow" in one], "what is late is not fast"
    acks = charts.latency_over_time(
        [{"time_ms": 0, "p50_ms": 1, "p99_ms": 2, "max_ms": 3, "count": 4}], 1_000, "acks"
    )
    assert "half are no slower (p50)" in acks
    assert [one for one in texts if one in ("0 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s")] == [
        "0 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s",
    ]  # fmt: skip


def test_each_chart_has_a_table() -> None:
    page = orders()
    for section in re.findall(r"<section id=.*?</section>", page, re.DOTALL):
        assert section.count("<svg") <= section.count("<table")


@pytest.mark.usefixtures("undrawn")
def test_steps_without_number_are_no_chart() -> None:
    made = with_steps(*range(0, 4_004, 2))
    told = titled(page := render(made), "lateness")
    assert "2,002 points are too many for a chart; a coarser step (--by) makes one." in told
    assert len(page) < 2_000_000


@pytest.mark.usefixtures("undrawn")
def test_what_is_no_problem_is_told_as_a_fact() -> None:
    page = orders()
    assert not re.search(r'class="[^"]*\b(bad|warn)\b', page)
    made = full("plain")
    early = [(measure, 100, 3, -5, 3.5, 1, 5, 70, 400, 9_000) for measure in ("lateness",)]
    made.tables["latency"] = answers(latency=early).tables["latency"]
    page = render(made)
    assert re.findall(r'<div class="figure (\w+)"><dt>(.*?)</dt>', page) == [("warn", "delivered early")]
    assert "3 first deliveries came before the message was due." in titled(page, "verdict")


def test_one_row_is_a_sentence() -> None:
    figures = (1, 0, 0, 3.5, 1, 5, 70, 400, 9_000)
    page = render(
        answers(
            latency=[("lateness", *figures)],
            latency_by_topic=[("lateness", "orders", *figures)],
            latency_by_group=[("lateness", "orders", "billing", *figures)],
            latency_by_priority=[("lateness", 50, *figures)],
            latency_by_time=[("lateness", NOW_MS, *figures)],
            distribution=[("lateness", 7_000, 1)],
            attempts=[(2, "dead", 1)],
            nacks=[("orders", "billing", "no paper", 1, 1)],
            dead_letters=[("orders", "billing", "no ink", 1, 1, 2, NOW_MS, NOW_MS)],
            slowest_keys=[("orders", "acme/1", 9_000, 8_000, 1_000, 2, "billing", 7)],
            slowest_tenants=[("acme", *figures)],
            due_by_topic=[("orders", 1, 0, 0, 0, 1, 0, 0, 0, None, NOW_MS + 5, NOW_MS + 5)],
            herds=[(NOW_MS, 60, 1, "orders")],
        )
    )
    assert "<table" not in page
    assert "<svg" not in page
    for anchor, words in {
        "lateness": "All of it happened within one hour, from 2030-03-17 17:46:40 UTC on, in 1 delivery: median 1 ms, "
        "p99 70 ms, slowest 9 s.",
        "distribution": "all 1 are in one class, which begins at 7 s",
        "by-topic": "All is of the topic orders; lateness: median 1 ms, p99 70 ms, slowest 9 s.",
        "by-group": "All is of the group billing of orders",
        "by-priority": "All is of the priority 50",
        "attempts": "Each took 2 attempts: 0 acked, 1 dead letters, 0 not done yet",
        "nacks": "1 delivery of 1 message came back, from billing of orders. What was said: no paper.",
        "dead": "1 message became dead letters, in billing of orders; 1 of them are still there. "
        "What was said last: no ink.",
        "keys": "There is one: acme/1 of orders, done 9 s after it was due.",
        "tenants": "There is one, found by key-prefix:/ (--tenant): acme, with 1 first delivery: median 1 ms",
        "due": "Only the topic orders has something: 1 scheduled message, the next due at 2030-03-17 17:46:40 UTC",
        "herds": "60 messages at 2030-03-17 17:46:40 UTC, most of orders.",
    }.items():
        assert words in titled(page, anchor)


@pytest.mark.usefixtures("undrawn")
def test_reasons_are_counted_by_their_text() -> None:
    made = answers(
        nacks=[
            ("orders", "billing", "no paper", 5, 4),
            ("orders", "billing", None, 4, 4),
            ("mails", "sender", "no paper", 2, 2),
            *(("mails", f"more {n}", "no paper", 1, 1) for n in range(3)),
        ],
        dead_letters=[
            ("orders", "billing", "no ink", 5, 4, 2, NOW_MS, NOW_MS),
            ("mails", "sender", "no ink", 2, 0, 7, NOW_MS, NOW_MS + 60_000),
            ("mails", "sender", None, 1, 1, 2, NOW_MS, NOW_MS),
        ],
    )
    page, summary = render(made), summarise(made)
    nacks, dead = titled(page, "nacks"), titled(page, "dead")
    assert "no paper 10 9 billing of orders, sender of mails, more 0 of mails and 2 others" in nacks
    assert "(none was given, or the lease ended) 4 4 billing of orders" in nacks
    assert "no ink 7 4 7 2030-03-17 17:47:40 billing of orders, sender of mails" in dead
    assert "(none was given: the lease ended) 1 1 2" in dead
    assert (summary["nacks"], summary["dead_letters"]) == (14, 8)


@pytest.mark.usefixtures("undrawn")
def test_an_earlier_report_is_compared(tmp_path: Path) -> None:
    earlier = full("orders")
    slower = [(measure, 80, 0, 0, 3.5, 1, 5, 140, 400, 9_000) for measure in ("lateness", "ack_latency")]
    earlier.tables["latency"] = answers(latency=slower).tables["latency"]
    made = compared(full("orders"), earlier, tmp_path, target_ms=100)
    made.tables["nacks"] = answers(nacks=[("orders", "orders", "jam", 9, 9)]).tables["nacks"]
    page, found = render(made), summarise(made)["compared_with"]
    told = titled(page, "compared")
    for words in (
        "That of 2030-03-17 17:46:40 UTC, on the same directories, everything that is kept.",
        "p99 of lateness 140 ms 70 ms -70 ms (-50 %)",
        "first deliveries 80 100 +20 (+25 %)",
        "The same as then: median lateness 1 ms, p99.9 of lateness 400 ms",
        "nacks 6 9 +3 (+50 %)",
        "New reasons of nacks: “jam”.",
        "Reasons of nacks that are not there any more: (none was given); “orders”.",
    ):
        assert words in told
    assert "missed this target with a p99 of 140 ms" in titled(page, "verdict")
    changes = {one["name"]: (one["before"], one["after"]) for one in found["changes"]}
    assert changes["lateness.p99_ms"] == (140, 70)
    assert changes["dead_letters"] == (6, 6)
    assert (found["made_ms"], found["new_reasons"]["nacks"]) == (NOW_MS, ["jam"])
    assert summarise(full("orders"))["compared_with"] is None
    same = titled(render(compared(full("orders"), full("orders"), tmp_path)), "compared")
    assert "The same as then: first deliveries 100, " in same
    assert "change" not in same
    (tmp_path / "summary.json").write_text(json.dumps(summarise(earlier)))
    # What the earlier report tells only a part of is not said to be new.
    cut = json.loads((tmp_path / "summary.json").read_text())
    cut["tables"]["nacks"]["rows"] = 900
    (tmp_path / "summary.json").write_text(json.dumps(cut))
    made.options = report_options("data", compare=tmp_path / "summary.json")
    assert "New reasons" not in titled(render(made), "compared")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not the summary of a report"),
        (b"\xff\x00", "is not the summary of a report"),
        (b"[]", "is not the summary of a report"),
        (b'{"format": "other", "version": 1}', "is not the summary of a report"),
        (
            b'{"format": "tickwheel-report", "version": 2}',
            "is of version 2, and only version 1 can be compared",
        ),
        (b'{"format": "tickwheel-report", "version": 1}', "is damaged: Object missing required field"),
        ({"made_ms": -1}, "is damaged: Expected `int` >= 0"),
        ({"made_ms": 10**30}, "is damaged"),
        ({"lateness": {"count": "many"}}, "is damaged"),
        ({"tables": {"latency_by_topic": {"rows": 1, "first_rows": [{"measure": 1}]}}}, "is damaged"),
        ({"tables": {"nacks": {"rows": 1, "first_rows": [{"reason": []}]}}}, "is damaged"),
    ],
)
def test_what_is_no_earlier_report_is_refused(
    content: bytes | dict[str, Any], message: str, tmp_path: Path
) -> None:
    if isinstance(content, dict):
        content = json.dumps(summarise(full("orders")) | content).encode()
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(EarlierRefused, match=re.escape(message)) as caught:
        report_options("data", compare=tmp_path)
    assert caught.value.advice
    assert caught.value.code == "earlier_refused"


def test_an_earlier_report_that_is_not_there(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(EarlierRefused, match="cannot be read: No such file"):
            report_options("data", compare=place)
