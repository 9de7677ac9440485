"""`tickwheel pipeline` where something that it needs is missing: it says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tickwheel.protocol.errors import NotConnected
from tickwheel.spark.doctor import Check, examine
from tickwheel.spark.errors import JavaMissing, SourceError
from tickwheel_cli.main import root
from tickwheel_cli.shared.failures import CommandError


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
    assert "pyspark cannot be imported. pip install 'tickwheel[spark]'" in pyspark["detail"]


COMMANDS = [
    ["sql", "--data", ".", "select 1"],
    ["schedule", "--from", "rows.csv", "--topic", "t"],
    ["report", "--data", ".", "--out", "report"],
    ["archive", "--older-than", "1d", "--to", "archive"],
    ["restore", "--from", ".", "--since", "2026-01-01T00:00Z"],
    ["reschedule", "--where", "true", "--spread", "2h"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
@pytest.mark.parametrize("missing", ["pyarrow", "pyspark"])
def test_a_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str], missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    script = f"import sys; sys.modules[{missing!r}] = None; from tickwheel_cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "pipeline", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error [spark_missing]"), done.stderr
    assert f"{missing} cannot be imported" in done.stderr
    assert "pip install 'tickwheel[spark]'" in done.stderr


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


@pytest.mark.usefixtures("no_java")
def test_no_file_and_no_broker_are_seen_before_spark_starts(tmp_path: Path) -> None:
    command = ["pipeline", "schedule", "--topic", "t", "--url", "tickwheel://127.0.0.1:1", "--from"]
    with pytest.raises(CommandError, match="does not exist"):
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
