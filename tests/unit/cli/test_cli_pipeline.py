"""`tickwheel pipeline` where something that it needs is missing: it says what to install."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import root
from tickwheel.spark.doctor import Check, examine
from tickwheel.spark.errors import JavaMissing, SparkMissing


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


def run_sql(directory: Path) -> None:
    command = ["pipeline", "sql", "--data", str(directory), "select 1"]
    CliRunner().invoke(root, command, standalone_mode=False, catch_exceptions=False)


def test_a_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SparkMissing) as caught:
        CliRunner().invoke(
            root,
            ["pipeline", "sql", "--data", str(tmp_path), "select 1"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert caught.value.code == "spark_missing"
    assert "pyarrow cannot be imported" in caught.value.message


@pytest.mark.usefixtures("no_java")
def test_a_command_says_that_java_is_missing(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing):
        CliRunner().invoke(
            root,
            ["pipeline", "sql", "--data", str(tmp_path), "select 1"],
            standalone_mode=False,
            catch_exceptions=False,
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
