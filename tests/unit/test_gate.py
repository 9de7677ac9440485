"""`make test`: what fails once of the tests that start programs is a flake, and is kept; other failures are final."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tests.support.run import gate
from tests.support.run.lanes import ALONE, FUNCTIONS, PROGRAMS, holds, may_hold
from tests.support.run.outcomes import ENDED, SECONDS

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/outbox/test_x.py::test_y[1]"
FUNCTION = "tests/unit/test_x.py::test_y"


class Pytest:
    """In place of pytest: each run ends tests as its turn says."""

    def __init__(self, *turns: dict[str, bool]) -> None:
        self.turns = list(turns)
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *words: str) -> int:
        self.calls.append(words)
        ended = self.turns.pop(0)
        folder = Path(next(word for word in words if word.startswith("--outcomes=")).partition("=")[2])
        folder.mkdir(parents=True)
        lines = [{"test": test, "failed": failed, "output": f"of {test}"} for test, failed in ended.items()]
        (folder / ENDED).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return gate.FAILED if any(ended.values()) else gate.PASSED if ended else gate.NOTHING_RAN


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "OUTCOMES", tmp_path / "outcomes")
    monkeypatch.setattr(gate, "FLAKY", tmp_path / "build" / "flaky.jsonl")


def gated(monkeypatch: pytest.MonkeyPatch, *turns: dict[str, bool]) -> tuple[int, Pytest]:
    fake = Pytest(*turns)
    monkeypatch.setattr(gate, "pytest", fake)
    return gate.main(["--jobs", "3"]), fake


def test_all_lanes_run_also_behind_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    code, fake = gated(monkeypatch, {FUNCTION: True}, {PROGRAM: False}, {})
    assert code == gate.FAILED
    assert [words[:2] for words in fake.calls] == [
        ("--numprocesses=4", "--lane=functions"),
        ("--numprocesses=6", "--lane=programs"),
        ("--numprocesses=0", "--lane=alone"),
    ]


def test_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code, fake = gated(monkeypatch, {FUNCTION: False}, {PROGRAM: False}, {})
    assert code == gate.PASSED
    assert len(fake.calls) == 3


def test_a_flake_of_a_program_is_said_and_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, fake = gated(monkeypatch, {FUNCTION: False}, {PROGRAM: True}, {}, {PROGRAM: False})
    assert code == gate.PASSED
    assert fake.calls[-1][0] == "--numprocesses=0"
    assert fake.calls[-1][2:] == (PROGRAM,)
    assert f"FLAKY {PROGRAM}" in capsys.readouterr().out.splitlines()
    (line,) = map(json.loads, gate.FLAKY.read_text().splitlines())
    assert line["test"] == PROGRAM
    assert line["failed"]
    assert line["passed"]


def test_what_fails_again_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = PROGRAM.replace("[1]", "[2]")
    code, _ = gated(monkeypatch, {}, {PROGRAM: True, other: True}, {}, {PROGRAM: True, other: False})
    assert code == gate.FAILED
    assert [line for line in capsys.readouterr().out.splitlines() if "FLAKY" in line] == [f"FLAKY {other}"]


def test_failures_of_functions_are_final(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, fake = gated(monkeypatch, {FUNCTION: True}, {PROGRAM: True}, {})
    assert code == gate.FAILED
    assert len(fake.calls) == 3
    assert FUNCTION in capsys.readouterr().out


def test_many_failures_are_no_flakes(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"tests/outbox/test_x.py::test_{number}": True for number in range(gate.MANY + 1)}
    code, fake = gated(monkeypatch, {}, many, {})
    assert code == gate.FAILED
    assert len(fake.calls) == 3


def test_pytest_that_ends_otherwise_is_told_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a conftest, a signal: no test failed, and yet nothing was shown."""
    monkeypatch.setattr(gate, "pytest", lambda *_words: 3)
    assert gate.main([]) == 3


def test_what_is_asked_for_runs_once_and_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(gate, "pytest", lambda *words: calls.append(words) or 4)
    assert gate.main(["--jobs", "2", "-k", "wheel", "-x"]) == 4
    assert calls == [("--numprocesses=2", "-k", "wheel", "-x")]


@pytest.mark.parametrize(
    ("node", "marks", "lane"),
    [
        (FUNCTION, set(), FUNCTIONS),
        (PROGRAM, set(), PROGRAMS),
        (PROGRAM, {ALONE}, ALONE),
        (FUNCTION, {ALONE}, ALONE),
    ],
)
def test_each_test_has_one_lane(node: str, marks: set[str], lane: str, tmp_path: Path) -> None:
    assert [each for each in gate.LANES if holds(node, marks, each)] == [lane]
    assert holds(node, marks, None)
    file = tmp_path / "test_x.py"
    file.write_text("pytest.mark.alone" if marks else "")
    assert may_hold(node.partition("::")[0], file, lane)


TESTS = """
import subprocess, sys
import pytest

def test_that_passes():
    print("it says this")
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"], check=True)

def test_that_fails():
    print("it says that")
    assert 1 == 2

@pytest.fixture
def broken():
    raise OSError("no room")

def test_whose_fixture_fails(broken): ...
"""


@pytest.mark.parametrize(("processes", "with_passed"), [(0, True), (2, False)])
def test_outcomes_are_written(tmp_path: Path, processes: int, with_passed: bool) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests.support.run.outcomes import Outcomes\n"
        "def pytest_configure(config):\n"
        "    folder = None if hasattr(config, 'workerinput') else Path('.')\n"
        f"    config.pluginmanager.register(Outcomes(folder, with_passed={with_passed}))\n"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(processes),
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            ".",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == gate.FAILED, ran.stdout + ran.stderr
    ended = {end.test.partition("::")[2]: end for end in gate.ends(tmp_path)}
    failed = {"test_that_fails": True, "test_whose_fixture_fails": True}
    passed = {"test_that_passes": False} if with_passed else {}
    assert {name: end.failed for name, end in ended.items()} == failed | passed
    if with_passed:
        assert "it says this" in ended["test_that_passes"].output
    assert "it says that" in ended["test_that_fails"].output
    assert "assert 1 == 2" in ended["test_that_fails"].output
    assert "no room" in ended["test_whose_fixture_fails"].output
    (seconds,) = json.loads((tmp_path / SECONDS).read_text()).values()
    assert seconds >= 0.3


def test_a_table_by_folder_and_the_order_of_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "DURATIONS", tmp_path / "durations.json")
    for lane, seconds in (
        ("functions", {"tests/unit/a/b/test_x.py": 2.0}),
        ("programs", {"tests/spark/test_y.py": 40.0}),
    ):
        (tmp_path / "outcomes" / lane).mkdir(parents=True)
        (tmp_path / "outcomes" / lane / SECONDS).write_text(json.dumps(seconds))
    assert gate.write_durations().splitlines()[2:] == [
        "| `tests/spark` | 40 |",
        "| `tests/unit/a` | 2 |",
        "| all | 42 |",
    ]
    assert json.loads(gate.DURATIONS.read_text()) == {"tests/spark/test_y.py": 40}


@pytest.fixture
def flaky(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "flaky.toml"
    path.write_text('[[flaky]]\ntest = "tests/a.py::test_b"\nsince = 2026-11-28\nwhy = "it waits"\n')
    return path


def test_a_flake_may_be_in_the_list_for_two_weeks(flaky: Path) -> None:
    assert gate.overdue(date(2026, 12, 12), flaky) == []
    (wrong,) = gate.overdue(date(2026, 12, 13), flaky)
    assert "tests/a.py::test_b" in wrong
    assert "it waits" in wrong


def test_an_entry_without_its_words_is_wrong(flaky: Path) -> None:
    flaky.write_text('[[flaky]]\ntest = "tests/a.py::test_b"\n')
    assert len(gate.overdue(date(2026, 11, 28), flaky)) == 1


def test_the_list_is_read() -> None:
    assert gate.overdue(date(2026, 11, 28)) == []
