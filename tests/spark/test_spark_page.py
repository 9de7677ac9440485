"""The programs on the pages about Spark, run as they are written, one after the other."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tickwheel
from tests.spark.conftest import Pipeline
from tests.support.processes.daemon_harness import Daemon
from tests.support.spark.archives import work_off
from tickwheel.spark import archive_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """What stands on a page in a language."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def programs_of(page: str) -> list[str]:
    """What stands on a page in Python."""
    return blocks(page, "python")


def test_the_programs_of_the_page(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Their paths lead to another folder than on the page: Spark's workers do not follow a test that changes folder."""
    programs = programs_of("spark.md")
    assert len(programs) == 4
    rows = spark.sql("select 'k' as key, 'x' as body, timestamp'2031-05-01T12:00:00Z' as deliver_at")
    around: dict[str, Any] = {"rows": rows, "spark": spark}
    with Daemon(tmp_path / "data") as daemon, tickwheel.sync.Client(daemon.url) as client:
        client.send_many("orders", [b"1", b"2", b"3"], delay_ms=3_600_000)
        try:
            for program in programs:
                for name in ("data", "state", "history"):
                    program = re.sub(
                        rf'(load|start|Location",)(\(?) ?"{name}"', rf'\1\2 "{tmp_path}/{name}"', program
                    )
                exec(program.replace("tickwheel://broker:7411", daemon.url), around)
            around["query"].processAllAvailable()
        finally:
            if "query" in around:
                around["query"].stop()
        assert client.query("select topic, key from messages where topic = 'reminders'").rows == [
            ["reminders", "k"]
        ]
    assert around["acked"].count() == 0
    assert around["acked"].columns == ["topic", "deliver_at", "time_acked"]
    history = [row.event for row in spark.read.parquet(str(tmp_path / "history")).collect()]
    assert sorted(history) == ["sent"] * 4
    assert "|orders|    3|" in capfd.readouterr().out


def test_the_program_of_the_page_on_scheduling(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.sql("select 'k' as key, 'x' as body, timestamp'2031-05-01T12:00:00Z' as deliver_at")
    (program,) = programs_of("spark-schedule.md")
    with Daemon(tmp_path / "data") as daemon, tickwheel.sync.Client(daemon.url) as client:
        exec(program.replace("tickwheel://broker:7411", daemon.url), {"rows": rows})
        assert client.query("select topic, key from messages").rows == [["reminders", "k"]]
    assert capsys.readouterr().out == "1 {}\n"


def test_the_program_of_the_page_on_archives(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (program,) = programs_of("spark-archive.md")
    may_ms = 1_714_521_600_000
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        client.send_many("orders", [b"1", b"2", b"3"], deliver_at=may_ms)
        work_off(client, "orders", 3)
        archive_messages(spark, tmp_path / "archive", older_than=timedelta(), url=broker.url)
    program = program.replace('"archive"', repr(str(tmp_path / "archive"))).replace("2031-", "2024-")
    exec(program, {"spark": spark})
    assert "|2024-05-01|    3|" in capfd.readouterr().out


# What a page takes for granted, and which of its words are paths, which the page names from where the reader is.
BEFORE = {
    "spark": ["orders"],
    "spark-archive": ["orders"],
    "spark-report": ["orders"],
    "spark-reschedule": ["orders"],
    "spark-schedule": [],
}
PATHS = ("./data", "./report", "archive/", "reminders.csv", "calls.csv", "rejects")
REMINDERS = "key,deliver_at,body\na,2031-05-01T09:00:00Z,x\nb,2031-05-01 09:00:00,y\n,1935403200000,z\n"


@pytest.mark.parametrize("page", BEFORE)
def test_the_commands_of_a_page(
    page: str, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reminders.csv").write_text(REMINDERS)
    (tmp_path / "calls.csv").write_text("when,text\n2031-05-01 09:00,x\n")
    lines = [line.split("#")[0] for block in blocks(f"{page}.md", "sh") for line in block.splitlines()]
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("tickwheel pipeline ")]
    assert commands
    with Daemon(tmp_path / "data") as daemon, tickwheel.sync.Client(daemon.url) as client:
        monkeypatch.setenv("TICKWHEEL_URL", daemon.url)
        for topic in BEFORE[page]:
            client.send_many(topic, [b"1", b"2", b"3"])
            work_off(client, topic, 2)
        for words in commands:
            assert (
                pipeline(*(str(tmp_path / word) if word in PATHS else word for word in words)).exit_code == 0
            )
