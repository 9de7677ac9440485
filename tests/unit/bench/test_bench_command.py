"""The benchmarks can be started as the documents say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

import tickwheel_bench
from tickwheel_bench import command


def test_the_package_can_be_run() -> None:
    words = [sys.executable, "-m", "tickwheel_bench", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "send-many" in done.stdout


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not looked at, which takes a while."""
    monkeypatch.setattr(command.machine, "describe", lambda _: {})


def test_a_figure_that_was_not_measured_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for failed, code in (([], 0), (["it broke"], 1)):
        found = {"failed": failed}
        monkeypatch.setitem(command.BENCHMARKS, "disk", ("", lambda _, __, found=found: found))
        assert (
            tickwheel_bench.main(["disk", "--directory", str(tmp_path), "--out", str(tmp_path / "out")])
            == code
        )
    assert "failed: it broke" in capsys.readouterr().err


def test_parts_of_a_benchmark_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []

    def rocketmq(_: Path, scale: float, only: tuple[str, ...], servers: tuple[str, ...]) -> dict[str, object]:
        chosen.append((scale, only, servers))
        return {}

    monkeypatch.setattr(command.comparison, "rocketmq", rocketmq)
    words = ["--directory", str(tmp_path), "--out", str(tmp_path / "out"), "--smoke"]
    words += ["rocketmq", "--only", "both", "--only", "retry", "--server", "tickwheel"]
    assert tickwheel_bench.main(words) == 0
    assert chosen == [(command.SMOKE_SCALE, ("both", "retry"), ("tickwheel",))]
    with pytest.raises(click.UsageError, match="rocketmq alone"):
        tickwheel_bench.main(["disk", "--only", "both"])


def test_a_part_of_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []

    def disk(_: Path, scale: float) -> dict[str, object]:
        scales.append(scale)
        return {}

    monkeypatch.setitem(command.BENCHMARKS, "disk", ("", disk))
    words = ["disk", "--directory", str(tmp_path), "--out", str(tmp_path / "out")]
    for more in ([], ["--smoke"], ["--scale", "0.3"]):
        assert tickwheel_bench.main([*words, *more]) == 0
    assert scales == [1.0, command.SMOKE_SCALE, 0.3]
    assert [path.name for path in (tmp_path / "out").glob("*Z-0.3.json")]
    for wrong, says in (
        (["--scale", "0"], "range"),
        (["--scale", "2"], "range"),
        (["--scale", "1", "--smoke"], "one of"),
    ):
        with pytest.raises(click.UsageError, match=says):
            tickwheel_bench.main([*words, *wrong])
