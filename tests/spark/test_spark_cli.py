"""`tickwheel pipeline`: once as a user's shell runs it, and all that it prints, on the session of these tests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import tickwheel
from tests.spark.conftest import Pipeline
from tests.support.processes.cli_harness import Shell
from tests.support.run.warned import filters_of_a_process
from tickwheel.spark import SourceError
from tickwheel.spark.answers import BadSql

FAST = (
    "--master",
    "local[1]",
    "--conf",
    "spark.driver.memory=1g",
    "--conf",
    "spark.sql.shuffle.partitions=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory with ten messages, two of them acked, that no broker uses is in it."""
    folder = tmp_path_factory.mktemp("cli")
    with tickwheel.embedded(folder / "data") as broker, broker.sync_client() as client:
        client.send_many("orders", [b"due"] * 4, keys=[f"k{n}" for n in range(4)])
        client.send_many("orders", [b"\xff\x00"] * 6, delay_ms=3_600_000)
        with client.subscribe("orders", "billing") as subscription:
            for _ in range(2):
                next(iter(subscription)).ack(confirm=True)
    return folder


@pytest.mark.timeout(600)
def test_a_shell_runs_it(folder: Path) -> None:
    shell = Shell(folder)
    # PySpark leaves sockets and pipes to the interpreter's end.
    shell.environment["PYTHONWARNINGS"] = filters_of_a_process("ignore::ResourceWarning")
    sql = "select state, count(*) as n, min(time_created) as since from messages where state in ('acked', 'scheduled')"
    done = shell.run(
        "pipeline", "sql", "--data", "data", f"{sql} group by state order by state", "--json", *FAST
    )
    rows = json.loads(done.stdout)
    assert [(row["state"], row["n"]) for row in rows] == [("acked", 2), ("scheduled", 6)]
    assert rows[0]["since"].endswith("Z")
    assert [line for line in done.stderr.decode().splitlines() if not line.startswith("WARNING: ")] == []


@pytest.fixture
def sql(pipeline: Pipeline, folder: Path) -> Any:
    """Runs `tickwheel pipeline sql` on a directory beside ours."""

    def run(statement: str, *options: str, data: str = "data") -> Any:
        return pipeline("sql", "--data", str(folder / data), statement, *options)

    return run


def test_csv(sql: Any) -> None:
    statement = "select event, body, e.time from events e join messages m on e.id = m.id"
    done = sql(f"{statement} where m.id = 9 and e.event = 'sent'", "--csv")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["event"], row["body"]) == ("sent", "/wA=")
    assert row["time"].endswith("Z")


def test_a_table_and_its_limit(sql: Any) -> None:
    done = sql("select id, key, body, time_acked from messages order by id", "--limit", "5")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["id", "key", "body", "time_acked"]
    assert lines[1].split()[:3] == ["1", "k0", "due"]
    assert lines[5].split() == ["5", "-", "(2", "bytes,", "ff", "00)", "-"]
    assert len(lines) == 6
    assert "more rows than these: add" in done.stderr


def test_json_says_what_is_no_text(sql: Any) -> None:
    (row,) = json.loads(sql("select id, body from messages where id = 9", "--json").stdout)
    assert row == {"id": 9, "body": {"base64": "/wA="}}


def test_errors_are_typed_and_short(sql: Any, folder: Path) -> None:
    with pytest.raises(BadSql, match="`nothing` cannot be resolved") as caught:
        sql("select nothing from messages")
    assert "RelationV2" not in caught.value.message
    with pytest.raises(BadSql, match="NONDETERMINISTIC") as caught:
        sql("select count(distinct spark_partition_id()) from messages")
    assert "RelationV2" not in caught.value.message
    with pytest.raises(BadSql, match="Syntax error"):
        sql("selec 1")
    (folder / "empty").mkdir(exist_ok=True)
    with pytest.raises(SourceError, match="not a data directory"):
        sql("select * from messages", data="empty")
