"""The programs on the pages about Spark, run as they are written, one after the other."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import tickwheel
from tests.spark.conftest import Pipeline
from tests.support.clients.certificates import Files
from tests.support.flight.calling import flight_url
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Place
from tests.support.spark.archives import work_off
from tests.support.spark.object_store import object_store
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
PATHS = ("./data", "./report", "archive/", "reminders.csv", "calls.csv", "rejects", "reminders.parquet")
REMINDERS = "key,deliver_at,body\na,2031-05-01T09:00:00Z,x\nb,2031-05-01 09:00:00,y\n,1935403200000,z\n"
CALLS = "when,text\n2031-05-01 09:00,x\n"
BROKER, BUCKET = "tickwheels://broker.example:7411", "history"


def commands_of(page: str) -> list[list[str]]:
    """The words of each `tickwheel pipeline` on a page, whose long lines go on with a backslash."""
    text = "\n".join(blocks(f"{page}.md", "sh")).replace("\\\n", " ")
    return [
        shlex.split(line, comments=True)[2:]
        for line in text.splitlines()
        if line.startswith("tickwheel pipeline ")
    ]


@contextmanager
def elsewhere(folder: Path) -> Iterator[dict[str, str]]:
    """A broker on another machine, with tokens, TLS and Arrow Flight: what its words on the pages are here."""
    files, place, token = Files(folder / "certificates"), Place(folder), folder / "token"
    token.write_text(place.create("pipeline", "publish:*", "query:*", "consume:*", "admin:*"))
    token.chmod(0o600)
    tls = {"tls_certificate": files.certificate_path, "tls_key": files.key_path}
    with place.daemon(flight=True, flight_listen="127.0.0.1:0", **tls) as daemon:
        flight_url(daemon, tls_root_certs=Path(files.ca_path).read_bytes())
        tokens = dict.fromkeys(("pipeline.token", "archivist.token"), str(token))
        yield {BROKER: daemon.tls_url, "ca.pem": files.ca_path, **tokens}


@contextmanager
def history() -> Iterator[list[str]]:
    """The bucket of the pages, and the words that lead to where it is here beside the region, which the page names."""
    with object_store() as store:
        store.bucket(BUCKET)
        yield store.words("region")


@pytest.mark.parametrize("page", BEFORE)
def test_the_commands_of_a_page(
    page: str, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reminders.csv").write_text(REMINDERS)
    (tmp_path / "calls.csv").write_text(CALLS)
    reminders = {"key": ["a"], "deliver_at": [datetime(2031, 5, 1, tzinfo=UTC)], "body": ["x"]}
    parquet.write_table(pa.table(reminders), tmp_path / "reminders.parquet")
    commands = commands_of(page)
    assert commands
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path / "data"))
        client = stack.enter_context(tickwheel.sync.Client(daemon.url))
        monkeypatch.setenv("TICKWHEEL_URL", daemon.url)
        here = {path: str(tmp_path / path) for path in PATHS} | {"30d": "0s"}
        if any(BROKER in words for words in commands):
            here |= stack.enter_context(elsewhere(tmp_path / "elsewhere"))
        store: list[str] = []
        if any(f"s3://{BUCKET}" in word for words in commands for word in words):
            store = stack.enter_context(history())
        for words in commands:
            for topic in BEFORE[page]:
                client.send_many(topic, [b"1", b"2", b"3"])
                work_off(client, topic, 2)
            more = store if any("s3://" in word for word in words) else []
            assert pipeline(*(here.get(word, word) for word in words), *more).exit_code == 0
