"""`tickwheel pipeline` where something that it needs is missing: it says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tickwheel.arrow.errors import SourceError
from tickwheel.protocol.errors import NotConnected
from tickwheel.spark.doctor import Check, examine
from tickwheel.spark.errors import JavaMissing
from tickwheel.spark.reach import CLOCK_LIMIT_MS, Reach, worst_of_hosts
from tickwheel_cli.main import root


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwheel.spark.java.USUAL_FOLDERS", ())
    monkeypatch.setattr("tickwheel.spark.java._candidates", lambda environment, folders: iter(()))


def test_the_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, no_java: None) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = CliRunner().invoke(root, ["pipeline", "doctor", "--json"])
    assert done.exit_code == 1
    java, pyspark = json.loads(done.stdout)
    assert (java["name"], java["ok"]) == ("java", False)
    assert "none was found. Install Java 17 or newer" in java["detail"]
    assert (pyspark["name"], pyspark["ok"]) == ("pyspark", False)
    assert "pyspark cannot be imported. Install it: pip install 'tickwheel[spark]'" in pyspark["detail"]


COMMANDS = [
    ["sql", "--data", ".", "select 1"],
    ["schedule", "--from", "rows.csv", "--topic", "t"],
    ["report", "--data", ".", "--out", "report"],
    ["archive", "--older-than", "1d", "--to", "archive"],
    ["restore", "--from", ".", "--since", "2026-01-01T00:00Z"],
    ["reschedule", "--where", "true", "--spread", "2h"],
]


#: Each command in a fork of a process that has imported the commands, and nothing that is missing.
WITHOUT = """
import json, os, sys
sys.modules[sys.argv[1]] = None
from tickwheel_cli.main import main
for number, words in enumerate(json.loads(sys.argv[2])):
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        continue
    os.dup2(os.open(f"{number}.stderr", os.O_WRONLY | os.O_CREAT), 2)
    sys.argv[1:] = ["pipeline", *words]
    main()
"""


@pytest.mark.parametrize("missing", ["pyarrow", "pyspark"])
def test_a_command_says_what_is_missing(tmp_path: Path, missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, missing, json.dumps(COMMANDS)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["1"] * len(COMMANDS)
    for number, command in enumerate(COMMANDS):
        said = (tmp_path / f"{number}.stderr").read_text()
        assert said.startswith("error [extra_missing]"), (command, said)
        assert f"{missing} cannot be imported" in said
        assert "pip install 'tickwheel[spark]'" in said


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "rows.xlsx", "--topic", "t"], "does not say its format"),
        (["--from", "rows.csv", "--topic", "no topic"], "cannot be the name"),
        (["--from", "rows.csv", "--topic", "t", "--job", " "], "empty name"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(options: list[str], message: str) -> None:
    """There is no Java here."""
    with pytest.raises(SourceError, match=message):
        CliRunner().invoke(
            root, ["pipeline", "schedule", *options], standalone_mode=False, catch_exceptions=False
        )


@pytest.mark.usefixtures("no_java")
def test_a_command_says_that_java_is_missing(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing):
        CliRunner().invoke(
            root,
            ["pipeline", "sql", "--data", str(tmp_path), "select 1"],
            standalone_mode=False,
            catch_exceptions=False,
        )


@pytest.mark.usefixtures("no_java", "impatient")
def test_no_file_and_no_broker_are_seen_before_spark_starts(tmp_path: Path) -> None:
    command = ["pipeline", "schedule", "--topic", "t", "--url", "tickwheel://127.0.0.1:1", "--from"]
    with pytest.raises(SourceError, match="does not exist"):
        CliRunner().invoke(
            root, [*command, str(tmp_path / "rows.csv")], standalone_mode=False, catch_exceptions=False
        )
    (tmp_path / "rows.csv").write_text("deliver_at,body\n")
    with pytest.raises(NotConnected):
        CliRunner().invoke(
            root, [*command, str(tmp_path / "rows.csv")], standalone_mode=False, catch_exceptions=False
        )


def test_usage() -> None:
    runner = CliRunner()
    for arguments in (["sql", "select 1"], ["sql", "--data", "/nowhere", "select 1"]):
        assert runner.invoke(root, ["pipeline", *arguments], standalone_mode=False).exception is not None
    shown = runner.invoke(root, ["pipeline", "--help"]).stdout
    assert "doctor" in shown
    assert "sql" in shown


def test_a_job_that_fails_is_a_check_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise JavaMissing("Java went away.", advice="Bring it back.")

    checks = examine("local[1]", fails)  # type: ignore[arg-type]
    assert [one.ok for one in checks][:2] == [True, True]
    assert checks[2] == Check("job", False, "Java went away. Bring it back.")


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_cannot_be_read_is_told_of_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*words: Any, **more: Any) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr("tickwheel_cli.pipeline.doctor.open_spark", never)
    words = ["pipeline", "doctor", "--url", "tickwheel://127.0.0.1:1", "--json"]
    done = CliRunner().invoke(root, words)
    assert done.exit_code == 1
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert not found["driver"]["ok"]
    assert "127.0.0.1:1" in found["driver"]["detail"]
    assert "job" not in found


def test_the_worst_of_each_host_is_shown() -> None:
    well = Reach("a", "v", query="all topics", clock_ms=3, rows=10, bytes=100, seconds=0.5)
    slow = replace(well, rows=4)
    late = replace(well, host="b", clock_ms=-CLOCK_LIMIT_MS - 1)
    blind = replace(well, host="b", error="No way.", rows=0, seconds=0.0)
    assert worst_of_hosts([well, slow, late, blind, late]) == [slow, blind]
    assert slow.told() == (
        "a: v; may query all topics; a stream of 8 rows/s, 0 MB/s; the clock is 3 ms ahead of the broker's"
    )
    assert "1001 ms behind the broker's: set it" in late.told()
    assert [one.is_well for one in (well, slow, late, blind)] == [True, True, False, False]


SUMMARY: dict[str, Any] = {
    "lateness": None,
    "ack_latency": None,
    "totals": {"scheduled": 1, "due_next_day": 1},
    "verdict": {"target_p99_ms": None, "met": None, "p99_ms": None},
}


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a report says that is made without Spark, in one step."""
    pytest.importorskip("pyspark")
    made = dict(SUMMARY)

    @contextmanager
    def nothing(master: str, conf: tuple[str, ...], *, progress: bool | None = None) -> Iterator[None]:
        assert progress is False
        yield

    def make(spark: None, *places: Any, progress: Callable[[str], None] | None, **options: Any) -> Any:
        if progress is not None:
            progress("counting")
        return made

    monkeypatch.setattr("tickwheel_cli.pipeline.report.open_spark", nothing)
    monkeypatch.setattr("tickwheel.spark.make_report", make)
    return made


@pytest.mark.parametrize(
    ("options", "is_terminal", "shows"),
    [
        ([], False, False),
        ([], True, True),
        (["--json"], True, False),
        (["--no-progress"], True, False),
        (["--progress"], False, True),
        (["--progress", "--json"], False, True),
    ],
)
def test_a_report_tells_of_its_progress_where_somebody_looks(
    options: list[str],
    is_terminal: bool,
    shows: bool,
    summary: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tickwheel_cli.pipeline.report.is_terminal", lambda: is_terminal)
    words = ["pipeline", "report", "--data", str(tmp_path), "--out", str(tmp_path / "report"), *options]
    done = CliRunner().invoke(root, words, standalone_mode=False, catch_exceptions=False)
    steps = [line.split(" s  ")[1] for line in done.stderr.splitlines()]
    assert steps == (["starting Spark", "counting"] if shows else [])
    if "--json" in options:
        assert json.loads(done.stdout) == summary


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        ({"met": True, "p99_ms": 70}, "target    met: p99 of lateness is 70 ms, 100 ms were allowed"),
        ({"met": False, "p99_ms": 700}, "target    missed: p99 of lateness is 700 ms, 100 ms were allowed"),
        (
            {"met": None, "p99_ms": None},
            "target    neither met nor missed: nothing was delivered for the first time",
        ),
    ],
)
def test_a_report_ends_with_its_verdict(
    verdict: dict[str, Any], line: str, summary: dict[str, Any], tmp_path: Path
) -> None:
    summary["verdict"] = {"target_p99_ms": 100, **verdict}
    words = ["pipeline", "report", "--data", str(tmp_path), "--out", str(tmp_path / "report")]
    done = CliRunner().invoke(root, words, standalone_mode=False, catch_exceptions=False)
    assert done.stdout.splitlines()[0] == line
