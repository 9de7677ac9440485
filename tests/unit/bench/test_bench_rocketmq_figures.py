"""The comparison with RocketMQ: what is counted, what is said of what is missing, and the table."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.test_bench_rocketmq import programs
from tickwheel_bench.program import Program
from tickwheel_bench.rocketmq import clients, comparison, h2load, raw_loads
from tickwheel_bench.rocketmq.clients import Missing, Programs
from tickwheel_bench.rocketmq.servers import OURS
from tickwheel_bench.rocketmq.stage import CLIENT, Stage, measured
from tickwheel_bench.rocketmq.table import Row, cell, table
from tickwheel_bench.usage import Processes, total_us, us_a_message, used_s
from tickwheel_gateway.wire import schema

PATIENCE_S = 60.0
FINISHED = """
finished in 1.23s, 40650.41 req/s, 1.20MB/s
requests: 50000 total, 50000 started, 50000 done, 50000 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 50000 2xx, 0 3xx, 0 4xx, 0 5xx
"""


class Here:
    """A server that is this process."""

    name = OURS
    address = "127.0.0.1:1"
    broker_url = ""
    processes: Processes = {"gateway": [os.getpid()]}  # noqa: RUF012

    def create(self, topic: str, *, is_delayed: bool = False) -> None:
        """There is nothing to make it in."""


def saying(*lines: dict[str, Any], then: str = "") -> list[str]:
    """A program that says this."""
    said = "\n".join(json.dumps(line) for line in lines)
    return [sys.executable, "-c", f"print({said!r}, flush=True)\n{then}"]


# -- processor time --


def test_costs_are_differences_a_message() -> None:
    before, after = {"gateway": 1.0, "broker": 0.5}, {"gateway": 3.0, "broker": 1.0, "client": 0.25}
    costs = us_a_message(before, after, 100_000)
    assert costs == {"gateway": 20.0, "broker": 5.0, "client": 2.5}
    assert total_us(costs) == 27.5
    assert total_us(costs, "client") == 25.0


def test_processes_of_one_name_count_together() -> None:
    one = used_s({"all": [os.getpid()]})["all"]
    end_s = one + 0.05
    while used_s({"all": [os.getpid()]})["all"] < end_s:
        pass
    assert used_s({"all": [os.getpid()] * 2})["all"] >= 2 * end_s
    assert used_s({"none": []}) == {"none": 0.0}


# -- loads --


def test_what_is_said_before_it_is_warm_does_not_count() -> None:
    lines = [{"messages": 1_000, "seconds": 9.0}, *[{"messages": 50, "seconds": 0.5, "failed": 0}] * 2]
    with Program(saying(*lines), limit_s=PATIENCE_S) as run:
        found = measured(run, Here(), 1)
    assert found.messages == 100
    assert set(found.cpu_us) == {"gateway", CLIENT}
    figures = found.figures()
    assert (figures["per_s"], figures["failed"]) == (100, 0)
    assert figures["servers_us"] == found.cpu_us["gateway"]


def test_a_load_that_fails_is_no_figure() -> None:
    with (
        Program(saying({"messages": 1}, then="raise SystemExit(3)"), limit_s=PATIENCE_S) as run,
        pytest.raises(RuntimeError, match="ended with 3"),
    ):
        list(run.lines())


def test_a_load_that_takes_too_long_is_ended() -> None:
    with (
        Program(saying({"messages": 1}, then="import time; time.sleep(600)"), limit_s=0.5) as run,
        pytest.raises(RuntimeError, match="not done within"),
    ):
        list(run.lines())


def test_a_load_that_says_nothing_is_no_figure() -> None:
    with (
        Program(saying({"messages": 1}), limit_s=PATIENCE_S) as run,
        pytest.raises(RuntimeError, match="nothing"),
    ):
        measured(run, Here(), 1)


def test_a_load_is_told_what_to_do(tmp_path: Path) -> None:
    stage = Stage(Here(), Programs(tmp_path), 0.5, tmp_path)
    echo = [sys.executable, "-c", "import json, sys; print(json.dumps({'said': sys.argv[1:]}))"]
    assert stage.said(echo, "produce", topic="t", count=stage.size(60)) == [
        {"said": ["127.0.0.1:1", "produce", "topic=t", "count=30"]}
    ]
    assert stage.size(1, 5) == 5


# -- what is missing --


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr(clients, "PYTHON", tmp_path / "python")
    wanted = Programs(tmp_path)
    for program, word in (
        (wanted.java, "java"),
        (wanted.go, "golang-go"),
        (wanted.python, "make rocketmq"),
        (wanted.h2load, "nghttp2-client"),
    ):
        with pytest.raises(Missing, match=word):
            program()
    found = comparison._figures(Stage(Here(), wanted, 1.0, tmp_path), "produce")
    assert "java is not on this machine" in found["missing"]
    assert "produce is NOT MEASURED" in capsys.readouterr().err


def test_java_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch, "java", "javac", "mvn", body=f"echo $0 >>{tmp_path}/ran")
    monkeypatch.setattr(clients, "BUILT", tmp_path / "built")
    wanted = Programs(tmp_path)
    command = wanted.java()
    assert wanted.java() is command
    assert command[-1] == "Load"
    assert [Path(line).name for line in (tmp_path / "ran").read_text().split()] == ["mvn", "javac"]


def test_go_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch, "go", body=f"echo $1 >>{tmp_path}/ran")
    wanted = Programs(tmp_path)
    assert wanted.go() == wanted.go()
    assert (tmp_path / "ran").read_text() == "build\n"
    assert wanted.environment["rocketmq.client.enableSsl"] == "false"


def test_a_compiler_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch, "java", "javac", "mvn", body="echo no network; exit 1")
    monkeypatch.setattr(clients, "BUILT", tmp_path / "built")
    with pytest.raises(Missing, match="no network"):
        Programs(tmp_path).java()


def test_a_figure_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stage: Stage) -> dict[str, Any]:
        raise RuntimeError("it broke")

    monkeypatch.setitem(comparison.FIGURES, "produce", comparison.Figure("", "", fails))
    found = comparison._figures(Stage(Here(), Programs(tmp_path), 1.0, tmp_path), "produce")
    assert found == {"failed_with": "it broke"}


# -- h2load --


def test_what_h2load_says() -> None:
    assert h2load.parse(FINISHED) == {"requests": 50_000, "requests_per_s": 40_650}


def test_requests_that_failed_are_no_figure() -> None:
    with pytest.raises(RuntimeError, match="7 of 50000"):
        h2load.parse(FINISHED.replace("50000 succeeded, 0 failed", "49993 succeeded, 7 failed"))
    with pytest.raises(RuntimeError, match="could not resolve"):
        h2load.parse("could not resolve host")


def test_what_h2load_sends_can_be_read() -> None:
    asked = h2load.send("topic", b"body", "01AB")
    assert asked.body[0] == 0
    assert int.from_bytes(asked.body[1:5], "big") == len(asked.body) - 5
    request = schema.SendMessageRequest.FromString(asked.body[5:])
    assert [(one.topic.name, one.body) for one in request.messages] == [("topic", b"body")]
    command = h2load.command(["h2load"], "127.0.0.1:8081", asked, "send.bin", count=10)
    assert command[-1] == "http://127.0.0.1:8081/apache.rocketmq.v2.MessagingService/SendMessage"
    assert command[command.index("-d") + 1] == "send.bin"


def test_a_call_that_costs_too_much_fails() -> None:
    for method, most_us in raw_loads.MOST_US.items():
        raw_loads.check(method, most_us)
        with pytest.raises(RuntimeError, match=method):
            raw_loads.check(method, most_us + 1)


# -- the table --


def test_a_table_has_goal_ours_and_theirs() -> None:
    ours = {"servers_us": 41.2, "cpu_us": {"gateway": 25.1, "broker": 16.1, "client": 60.0}, "per_s": 21_300}
    theirs = {"missing": "no RocketMQ: java is not | on this machine\nat all"}
    row = Row("produce", "Java async producer", "≤ 60 µs", {OURS: ours, "rocketmq-async": theirs})
    lines = table([row], [OURS, "rocketmq-async", "rocketmq-sync"])
    assert [line.count("|") for line in lines] == [7, 7, 7]
    cells = [each.strip() for each in lines[2].split("|")[1:-1]]
    assert cells == [
        "Java async producer",
        "≤ 60 µs",
        "41 µs (gateway 25, broker 16, client 60); 21,300/s",
        "missing: no RocketMQ: java is not / on this machine at all",
        "–",
        "`… rocketmq --only produce`",
    ]


def test_a_cell_says_what_went_wrong() -> None:
    late = {"p50": 0.5, "p99": 1_012.0, "max": 2_000.4}
    assert cell({"late_ms": late, "lost": 0, "twice": 3}) == (
        "late by p50 0.5 ms, p99 1012 ms, max 2000 ms; 3 came twice"
    )
    assert cell({"failed_with": "it broke"}) == "failed with: it broke"


def test_a_cell_has_the_broker_with_and_without() -> None:
    each = {
        "late_ms": {"min": 0.1, "p50": 1.0, "p99": 2.5, "max": 9.0},
        "broker_ms": {"p50": 1.0, "p99": 2.0},
    }
    text = cell({"without": each, "beside": each, "p99_later_ms": -0.2})
    assert text.startswith("without p50 1 ms, p99 2.5 ms, max 9 ms (the broker's own p99 ≤ 2 ms); beside p50")
    assert text.endswith("p99 -0.2 ms later")


def test_each_figure_can_be_chosen() -> None:
    assert set(comparison.SERVERS) >= {
        server for each in comparison.FIGURES.values() for server in each.servers
    }
    assert all(OURS in each.servers for each in comparison.FIGURES.values())
