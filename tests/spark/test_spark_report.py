"""A report on what a real broker did, held against a recount of the same events in plain Python, which shares no
code."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import tickwheel
from tests.support.spark.rows import rows_of
from tickwheel.spark import SourceError, make_report
from tickwheel.spark.report.queries.journeys import journeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE = "<script>alert('key')</script>/$\\frac{1}{0}$"
REASON = "<img src=x onerror=alert(1)>"
PATIENCE_S = 60.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "spark-report.md"


def now() -> datetime:
    return datetime.now(UTC)


def work(client: tickwheel.sync.Client) -> None:
    """Two groups, priorities, nacks, dead letters, reschedules, cancels, shards, and something for later."""
    client.create_topic("orders")
    client.create_topic("mails", max_attempts=2)
    client.create_topic("split", shards=2)
    with (
        client.subscribe("orders", "billing", credit=200) as billing,
        client.subscribe("orders", "audit", credit=200) as audit,
    ):
        soon = now() + timedelta(milliseconds=200)
        client.send_many("lonely", [b"l"] * 4)  # nobody listens
        client.send_many("orders", [b"o"] * 60, keys=[f"acme/{n}" for n in range(60)], deliver_at=soon)
        client.send("orders", b"h", key=HOSTILE, deliver_at=now() - timedelta(days=3))
        client.send_many("orders", [b"p"] * 20, priority=7)
        for number in range(5):
            client.send("orders", b"r", key=f"moved/{number}", delay=timedelta(hours=1))
            client.reschedule(
                "orders", key=f"moved/{number}", deliver_at=now() + timedelta(milliseconds=150 + number)
            )
        client.send("orders", b"x", key="never", delay=timedelta(hours=1))
        assert client.cancel("orders", key="never") == "cancelled"
        for subscription, nacked in ((billing, 4), (audit, 0)):
            for number in range(86 + nacked):
                message = subscription.receive(PATIENCE_S)
                assert message is not None
                if number < nacked:
                    message.nack(timedelta(0), error="not now")
                else:
                    message.ack(confirm=True)
    client.send_many("mails", [b"m"] * 6, keys=[f"globex/{n}" for n in range(6)])
    with client.subscribe("mails", "sender") as sender:
        for _ in range(12):
            message = sender.receive(PATIENCE_S)
            assert message is not None
            message.nack(timedelta(0), error=REASON if message.key != "globex/0" else "bounced")
    client.send_many("split", [b"s"] * 30, keys=[f"k{n}" for n in range(30)])
    with client.subscribe("split", "readers") as readers:
        for _ in range(30):
            message = readers.receive(PATIENCE_S)
            assert message is not None
            message.ack(confirm=True)
    client.send_many("orders", [b"f"] * 9, delay=timedelta(minutes=30))
    client.send_many("orders", [b"f"] * 5, delay=timedelta(hours=10))
    client.send_many(
        "later", [b"f"] * 3, deliver_at=now() + timedelta(days=3), headers={"customer": "initech"}
    )
    client.send_many("later", [b"f"] * 2, delay=timedelta(days=30))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report") / "data"
    with tickwheel.embedded(directory) as broker, broker.sync_client() as client:
        work(client)
    return directory


@pytest.fixture(scope="module")
def report(spark: SparkSession, data: Path) -> tuple[dict[str, Any], Path]:
    """The summary, and where the report is."""
    out = data.parent / "report"
    target = timedelta(minutes=1)  # which a busy machine keeps, too
    told: list[str] = []
    summary = make_report(spark, data, out, by="second", target_p99=target, progress=told.append)
    assert told[0] == "looking at the directories"
    assert told[-1] == "writing the report"
    assert {f"making the table {name}" for name in summary["tables"]} <= set(told)
    return summary, out


@pytest.fixture(scope="module")
def recount(spark: SparkSession, data: Path) -> Recount:
    source = spark.read.format("tickwheel")
    return Recount(
        rows_of(source.option("table", "events").load(str(data))),
        rows_of(spark.read.format("tickwheel").load(str(data))),
    )


class Recount:
    """The same figures, event by event."""

    def __init__(self, events: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.lateness: list[tuple[dict[str, Any], int]] = []
        self.acks: list[tuple[dict[str, Any], int]] = []
        self.attempts: Counter[tuple[str, int]] = Counter()
        self.outcomes: dict[tuple[str, int], str] = {}
        self.waited: dict[tuple[str, int], int] = {}
        self.nacks = Counter(
            (plain_topic(event["topic"]), event["group"], event["error"] or None)
            for event in events
            if event["event"] == "nacked"
        )
        self.moments: dict[tuple[str, int], int] = {}  #: of the last delivery, or of the end
        due: dict[int, int] = {}
        created: dict[int, int] = {}
        given: dict[tuple[str, int], int] = {}
        for event in sorted(events, key=lambda event: (event["position"], event["place"])):
            message, one = event["id"], (event["group"], event["id"])
            match event["event"]:
                case "sent":
                    created[message] = event["time"]
                    due[message] = max(event["time_next"], event["time"])
                case "rescheduled":
                    due[message] = max(event["time_next"], created[message])
                case "delivered":
                    self.attempts[one] += 1
                    self.outcomes[one] = "open"
                    given[one] = self.moments[one] = event["time"]
                    if event["epoch"] == 1:
                        self.lateness.append((event, event["time"] - due[message]))
                        self.waited[one] = event["time"] - due[message]
                case "returned":
                    self.attempts[one] -= 1
                case "acked" | "dead":
                    self.outcomes[one], self.moments[one] = event["event"], event["time"]
                    self.waited[one] = event["time"] - due[message]
                    if event["event"] == "acked":
                        self.acks.append((event, event["time"] - given[one]))


def plain_topic(name: str) -> str:
    return name.split("/")[0]


def figures(values: list[int]) -> dict[str, Any]:
    """By nearest rank, with whole numbers."""
    ordered = sorted(values)

    def at(thousandths: int) -> int:
        return ordered[math.ceil(len(ordered) * thousandths / 1_000) - 1]

    return {
        "count": len(ordered), "early": sum(value < 0 for value in ordered), "min_ms": ordered[0],
        "mean_ms": pytest.approx(sum(ordered) / len(ordered)), "p50_ms": at(500), "p90_ms": at(900),
        "p99_ms": at(990), "p99_9_ms": at(999), "max_ms": ordered[-1],
    }  # fmt: skip


def table(out: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / "tables" / f"{name}.parquet").to_pylist()
    return rows


def expected_by(recount: Recount, *names: str) -> list[dict[str, Any]]:
    found = []
    for measure, samples in (("lateness", recount.lateness), ("ack_latency", recount.acks)):
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for event, value in samples:
            told = {**event, "topic": plain_topic(event["topic"]), "time_ms": event["time"] // 1_000 * 1_000}
            groups[tuple(told[name] for name in names)].append(value)
        found += [
            {"measure": measure, **dict(zip(names, key, strict=True)), **figures(values)}
            for key, values in groups.items()
        ]
    return found


def in_order(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in ("measure", *names)))


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("latency", ()),
        ("latency_by_topic", ("topic",)),
        ("latency_by_group", ("topic", "group")),
        ("latency_by_priority", ("priority",)),
        ("latency_by_time", ("time_ms",)),
    ],
)
def test_percentiles(
    report: tuple[dict[str, Any], Path], recount: Recount, name: str, by: tuple[str, ...]
) -> None:
    found, expected = table(report[1], name), expected_by(recount, *by)
    assert in_order(found, *by) == in_order(expected, *by)


def test_what_was_measured_is_what_was_done(report: tuple[dict[str, Any], Path], recount: Recount) -> None:
    summary, _ = report
    # 86 to each of two groups, 6 mails, 30 of the shards; the mails were never acked.
    assert (summary["lateness"]["count"], summary["ack_latency"]["count"]) == (2 * 86 + 6 + 30, 2 * 86 + 30)
    assert summary["lateness"]["early"] == 0
    # Neither the message of three days ago nor those that were moved by an hour count as late or early by that.
    assert summary["lateness"]["max_ms"] < 60_000
    assert summary["totals"]["messages"] == len({row["id"] for row in recount.messages})
    assert summary["totals"]["cancelled"] == 1
    assert summary["totals"]["deliveries"] == sum(recount.attempts.values()) == 2 * 86 + 4 + 12 + 30
    assert summary["totals"]["lateness_unknown"] == 0
    assert (summary["format"], summary["version"], summary["step_ms"]) == ("tickwheel-report", 1, 1_000)


def test_attempts_and_dead_letters(report: tuple[dict[str, Any], Path], recount: Recount) -> None:
    _, out = report
    expected = Counter((count, recount.outcomes[one]) for one, count in recount.attempts.items())
    assert {(row["attempts"], row["outcome"]): row["messages"] for row in table(out, "attempts")} == expected
    assert expected == {(1, "acked"): 2 * 86 + 30 - 4, (2, "acked"): 4, (2, "dead"): 6}
    letters = {(row["topic"], row["group"], row["reason"]): row for row in table(out, "dead_letters")}
    assert {key: row["letters"] for key, row in letters.items()} == {
        ("mails", "sender", REASON): 5,
        ("mails", "sender", "bounced"): 1,
    }
    assert all((row["attempts_max"], row["still_there"]) == (2, row["letters"]) for row in letters.values())


def test_nacks_by_reason(report: tuple[dict[str, Any], Path], recount: Recount) -> None:
    summary, out = report
    rows = table(out, "nacks")
    found = {(row["topic"], row["group"], row["reason"]): row["nacks"] for row in rows}
    assert found == recount.nacks
    assert found == {
        ("orders", "billing", "not now"): 4,
        ("mails", "sender", REASON): 10,
        ("mails", "sender", "bounced"): 2,
    }
    assert {row["reason"]: row["messages"] for row in rows} == {"not now": 4, REASON: 5, "bounced": 1}
    assert (summary["nacks"], summary["dead_letters"]) == (16, 6)


def test_the_verdict(report: tuple[dict[str, Any], Path], recount: Recount) -> None:
    verdict = report[0]["verdict"]
    values = sorted(value for _, value in recount.lateness)
    assert (verdict["target_p99_ms"], verdict["met"]) == (60_000, True)
    assert (verdict["count"], verdict["p99_ms"]) == (len(values), figures(values)["p99_ms"])
    assert verdict["later"] == sum(value > 60_000 for value in values)
    assert verdict["steps"] == len({event["time"] // 1_000 for event, _ in recount.lateness})
    assert verdict["waiting"] == report[0]["totals"]["due_backlog"] > 0


def test_the_slowest(report: tuple[dict[str, Any], Path], recount: Recount) -> None:
    _, out = report
    keys = {row["id"]: (plain_topic(row["topic"]), row["key"] or row["id"]) for row in recount.messages}
    waited: dict[Any, int] = {}
    for (_, message), value in recount.waited.items():
        waited[keys[message]] = max(waited.get(keys[message], value), value)
    found = table(out, "slowest_keys")
    assert len(found) == 50
    assert {
        (row["topic"], row["key"] or row["slowest_id"]): row["waited_max_ms"] for row in found
    }.items() <= (waited.items())
    assert [row["waited_max_ms"] for row in found] == sorted(waited.values(), reverse=True)[:50]
    by_tenant: dict[str, list[int]] = defaultdict(list)
    for event, value in recount.lateness:
        if event["key"] and "/" in event["key"]:
            by_tenant[event["key"].split("/")[0]].append(value)
    tenants = {row.pop("tenant"): row for row in table(out, "slowest_tenants")}
    assert tenants == {tenant: figures(values) for tenant, values in by_tenant.items()}
    assert {"acme", "globex", "moved", "<script>alert('key')<"} == set(tenants)


def test_what_is_to_come(report: tuple[dict[str, Any], Path], recount: Recount) -> None:
    summary, out = report
    columns = ("scheduled", "overdue", "next_hour", "next_day", "next_week", "later", "retries")
    rows = {row["topic"]: row for row in table(out, "due_by_topic")}
    found = {name: tuple(row[one] for one in columns) for name, row in rows.items()}
    left: dict[str, list[int]] = defaultdict(list)
    for row in recount.messages:
        if row["state"] == "ready" and not row["topic"].endswith(".dead"):
            left[plain_topic(row["topic"])].append(row["deliver_at"])
    assert {
        name: (row["backlog"], row["backlog_due_ms"]) for name, row in rows.items() if row["backlog"]
    } == {name: (len(times), min(times)) for name, times in left.items()}
    assert summary["totals"]["due_backlog"] == sum(map(len, left.values())) > 0
    found = {name: counts for name, counts in found.items() if any(counts)}
    assert found == {"orders": (14, 0, 9, 14, 14, 0, 0), "later": (5, 0, 0, 0, 3, 2, 0)}
    hours = {(row["hours_ahead"], row["topic"]): row["messages"] for row in table(out, "due_by_hour")}
    assert hours == {(0, "orders"): 9, (9, "orders"): 5, (71, "later"): 3}
    assert (summary["totals"]["scheduled"], summary["totals"]["due_next_week"]) == (19, 17)
    instants = Counter(
        {row["id"]: row["deliver_at"] for row in recount.messages if row["state"] != "cancelled"}.values()
    )
    herds = table(out, "herds")
    assert [(row["messages"], row["deliver_at_ms"]) for row in herds] == sorted(
        ((count, instant) for instant, count in instants.items() if count > 1),
        key=lambda one: (-one[0], one[1]),
    )
    # One that was sent "now" may happen to be due in the same millisecond.
    assert herds[0]["messages"] >= 60
    assert herds[0]["largest_topic"] == "orders"


def test_page_and_summary_agree_and_nothing_is_taken_as_html(
    report: tuple[dict[str, Any], Path], data: Path
) -> None:
    summary, out = report
    assert json.loads((out / "summary.json").read_text()) == summary
    assert {path.name for path in out.iterdir()} == {"index.html", "summary.json", "tables"}
    assert {f"{name}.parquet" for name in summary["tables"]} == {
        path.name for path in (out / "tables").iterdir()
    }
    assert all(one["complete"] for one in summary["tables"].values())
    page = (out / "index.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "&lt;script&gt;alert(&#39;key&#39;)&lt;" in page
    assert f">{summary['lateness']['count']:,}<" in page


def test_the_program_of_the_page_on_several_directories(
    spark: SparkSession, data: Path, recount: Recount, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    with tickwheel.embedded(other) as broker, broker.sync_client() as client:
        client.send_many("orders", [b"1"] * 4, headers={"customer": "initech"})
        with client.subscribe("orders", "billing") as subscription:
            for _ in range(4):
                message = subscription.receive(PATIENCE_S)
                assert message is not None
                message.ack(confirm=True)
    (program,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    directories, out = [str(data), str(other)], tmp_path / "report"
    around: dict[str, Any] = {}
    exec(program.replace('["data"], "report"', f"{directories}, {str(out)!r}"), around)
    both = around["summary"]
    assert capsys.readouterr().out == f"{both['lateness']['p99_ms']}\n"
    assert both["tenant"] == "header:customer"
    assert (out / "index.html").is_file()
    assert both["lateness"]["count"] == len(recount.lateness) + 4
    (tenant,) = both["tables"]["slowest_tenants"]["first_rows"]
    assert (tenant["tenant"], tenant["count"]) == ("initech", 4)


def test_a_period_in_place_of_an_earlier_report(
    spark: SparkSession, data: Path, recount: Recount, tmp_path: Path
) -> None:
    with tickwheel.embedded(tmp_path / "empty"):
        nothing = make_report(
            spark, tmp_path / "empty", tmp_path / "report", target_p99=timedelta(milliseconds=1)
        )
    assert nothing["verdict"]["met"] is None
    assert (nothing["lateness"], nothing["ack_latency"]) == (None, None)
    assert set(nothing["totals"].values()) == {0}
    assert "Nothing was measured in this period." in (tmp_path / "report" / "index.html").read_text()
    times = sorted(event["time"] for event, _ in recount.lateness)
    since = times[50]
    # On a busy machine all of these may have been delivered before the first ack.
    until = max(times[150], 1 + min(event["time"] for event, _ in recount.acks if event["time"] >= since))
    within = make_report(
        spark,
        data,
        tmp_path / "report",  # the earlier report is replaced
        since=datetime.fromtimestamp(since / 1_000, UTC),
        until=datetime.fromtimestamp(until / 1_000, UTC),
        tenant="order-key",
        top=3,
        compare=tmp_path / "report",
    )
    changes = {one["name"]: (one["before"], one["after"]) for one in within["compared_with"]["changes"]}
    assert changes["lateness.count"] == (None, within["lateness"]["count"])
    assert changes["nacks"] == (0, within["nacks"])
    assert within["compared_with"]["directories"] == [str(tmp_path / "empty")]
    assert within["lateness"]["count"] == sum(since <= one < until for one in times)
    assert within["ack_latency"]["count"] == sum(since <= event["time"] < until for event, _ in recount.acks)
    messages = {message for (_, message), moment in recount.moments.items() if since <= moment < until}
    assert within["tables"]["slowest_keys"]["rows"] == min(3, len(messages)) > 0
    assert within["tables"]["slowest_tenants"]["rows"] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_page_of_the_documentation_lists_every_table_and_column(
    report: tuple[dict[str, Any], Path],
) -> None:
    summary, out = report
    told = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    columns = {name for path in (out / "tables").iterdir() for name in pq.read_schema(path).names}
    assert {*summary, *summary["totals"], *summary["tables"], *columns, *summary["lateness"]} <= told


def test_a_directory_that_is_none_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(SourceError, match="not a data directory"):
        make_report(spark, tmp_path / "data", tmp_path / "report")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


EVENTS = (
    "log int, id bigint, `group` string, topic string, priority int, position bigint, place int, event string, "
    "happened_ms bigint, next_ms bigint, epoch bigint, deliver_at_ms bigint"
)


def test_each_delivery_is_judged_by_what_was_promised_before_it(spark: SparkSession) -> None:
    """What was given back unseen may be rescheduled: `deliver_at` then lies behind the first delivery."""
    told = [
        (None, "sent", 900, 1_000, None),
        ("g", "delivered", 1_010, 2_000, 1),
        ("g", "returned", 1_020, None, 1),
        (None, "rescheduled", None, 5_000, None),
        ("g", "delivered", 5_005, 6_000, 2),
        ("g", "acked", 5_009, None, 2),
        ("late", "delivered", 5_100, 6_000, 1),
    ]
    rows = [
        (0, 1, group, "t", 50, position, 0, event, happened, following, epoch, 5_000)
        for position, (group, event, happened, following, epoch) in enumerate(told)
    ]
    # Of a message whose sending was purged only the last time is known, of one that is gone nothing.
    rows += [(0, 2, "g", "t", 50, 90, 0, "delivered", 5_001, 9_000, 1, 5_000)]
    rows += [(0, None, "g", "t", None, 91, 0, "delivered", 5_001, 9_000, 1, None)]
    found = {(row["id"], row["group"]): row for row in rows_of(journeys(spark.createDataFrame(rows, EVENTS)))}
    assert set(found) == {(1, "g"), (1, "late"), (2, "g")}
    names = ("lateness_ms", "ack_latency_ms", "attempts", "deliveries", "outcome", "done_after_ms")
    assert [found[1, "g"][name] for name in names] == [10, 4, 1, 2, "acked", 9]
    assert [found[1, "late"][name] for name in names] == [100, None, 1, 1, "open", None]
    assert found[2, "g"]["lateness_ms"] == 1
