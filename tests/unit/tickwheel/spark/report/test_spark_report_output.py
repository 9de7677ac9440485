"""The options of a report, and where it is written: whole or not at all, and never over something else."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tickwheel.spark.report.errors import EarlierRefused, OutputRefused, PlottingMissing, ReportError
from tickwheel.spark.report.make import make_report
from tickwheel.spark.report.options import choose_step, parse_tenant, report_options
from tickwheel.spark.report.output import check_output, write_report
from tickwheel.spark.storage import DirectoryFiles
from tickwheel_cli.main import root


def fill(folder: Path, mark: str = "new") -> None:
    (folder / "tables").mkdir()
    (folder / "tables" / "latency.parquet").write_text(mark)
    (folder / "index.html").write_text(mark)
    (folder / "summary.json").write_text(json.dumps({"format": "tickwheel-report", "mark": mark}))


def at(out: Path) -> DirectoryFiles:
    return DirectoryFiles(out)


def mark(out: Path) -> str:
    return str(json.loads((out / "summary.json").read_text())["mark"])


def test_a_report_is_written_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    write_report(at(out), fill)
    assert mark(out) == "new"
    other = tmp_path / "other"
    other.mkdir()
    assert out.stat().st_mode == other.stat().st_mode, (
        "it is as other new directories, and not as a temporary one"
    )
    write_report(at(out), lambda folder: fill(folder, "newer"))
    assert mark(out) == "newer"
    assert [path.name for path in out.parent.iterdir()] == ["report"]
    empty = tmp_path / "empty"
    empty.mkdir()
    write_report(at(empty), fill)
    assert mark(empty) == "new"


def test_what_fails_leaves_the_earlier_report(tmp_path: Path) -> None:
    out = tmp_path / "report"

    def fails(folder: Path) -> None:
        (folder / "index.html").write_text("half")
        raise RuntimeError("the disk is on fire")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            write_report(at(out), fails)
        assert not out.exists() or mark(out) == "new"
        write_report(at(out), fill)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_other_files_are_never_lost(tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputRefused, match="not a report"):
        check_output(at(out))
    (out / "thesis.txt").rename(tmp_path / "thesis.txt")
    fill(out)
    check_output(at(out))
    for place in (out / "notes.txt", out / "tables" / "notes.txt"):
        place.write_text("mine")
        with pytest.raises(OutputRefused, match="other files"):
            write_report(at(out), lambda folder: fill(folder, "newer"))
        assert (mark(out), place.read_text()) == ("new", "mine")
        place.unlink()
    (out / "summary.json").write_text("[]")
    with pytest.raises(OutputRefused, match="not a report"):
        check_output(at(out))
    with pytest.raises(OutputRefused, match="not a directory"):
        check_output(at(tmp_path / "thesis.txt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "thesis.txt"]


def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be written"):
        write_report(at(tmp_path / "file" / "report"), fill)


def test_a_link_to_a_directory_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_report(at(tmp_path / "link"), fill)
    assert (tmp_path / "link").is_symlink()
    assert mark(tmp_path / "real") == "new"


@pytest.mark.parametrize("text", ["", "header", "header:", "key-prefix:", "order-key:x", "customer"])
def test_a_tenant_that_is_none(text: str) -> None:
    with pytest.raises(ReportError, match="does not say how a tenant is found"):
        parse_tenant(text)


def test_tenants() -> None:
    assert [str(parse_tenant(text)) for text in ("header:a:b", "key-prefix::", "order-key")] == [
        "header:a:b",
        "key-prefix::",
        "order-key",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directories": []}, "No data directory"),
        ({"by": "week"}, "no step 'week'"),
        ({"top": 0}, "no number of rows"),
        ({"since": datetime(2031, 1, 1)}, "UTC offset"),
        (
            {"since": datetime(2031, 1, 2, tzinfo=UTC), "until": datetime(2031, 1, 1, tzinfo=UTC)},
            "before it begins",
        ),
        ({"target_p99": timedelta(milliseconds=-5)}, "A target of -5 ms cannot be met"),
        ({"target_p99": timedelta(microseconds=900)}, "A target of 0 ms cannot be met"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=message) as caught:
        report_options(**{"directories": "data", **options})
    assert caught.value.advice


def test_the_step_of_time_fits_the_chart() -> None:
    spans = (
        0,
        199_000,
        200_000,
        3_600_000 * 3,
        3_600_000 * 4,
        86_400_000 * 8,
        86_400_000 * 9,
        86_400_000 * 900,
    )
    assert [choose_step(span) for span in spans] == [
        "second", "second", "minute", "minute", "hour", "hour", "day", "day",
    ]  # fmt: skip


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_without_matplotlib_nothing_is_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    nothing: Any = None
    with pytest.raises(PlottingMissing, match="cannot be imported") as caught:
        make_report(nothing, report_options(tmp_path), at(tmp_path / "report"))
    assert caught.value.advice == "Install it: pip install 'tickwheel[spark]'."
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickwheel.spark.sessions.make_session", None)  # would be missed
    (tmp_path / "mine.txt").write_text("")
    for arguments, error in (
        (["--out", str(tmp_path)], OutputRefused),
        (["--out", str(tmp_path / "new"), "--tenant", "nobody"], ReportError),
        (["--out", str(tmp_path / "new"), "--target-p99", "0ms"], ReportError),
        (["--out", str(tmp_path / "new"), "--target-p99=-5ms"], click.BadParameter),
        (["--out", str(tmp_path / "new"), "--compare", str(tmp_path)], EarlierRefused),
    ):
        command = ["pipeline", "report", "--data", str(tmp_path), *arguments]
        with pytest.raises(error):
            CliRunner().invoke(root, command, standalone_mode=False, catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
