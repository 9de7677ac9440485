"""The page on reliability lists how much each profile tries, and what runs in `ci` only. Files that go first exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.run import profile
from tests.support.run.order import LONG_S
from tests.support.run.profile import AMOUNTS, DATABASES, LOOPS, TAKE_TURNS, TURNS, has_its_day, is_left_out

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
MARKER = "ci"


def test_the_page_has_the_amounts() -> None:
    head = ["| | `make test` | `.ci/run` | `make soak` | variable |", "|---|---|---|---|---|"]
    rows = [
        f"| {one.what} | {one.quick:,} | {one.ci:,} | {one.soak:,} | `TICKWHEEL_{name.upper()}` |"
        for name, one in AMOUNTS.items()
    ]
    assert section("amounts") == head + rows


def test_the_page_has_what_runs_in_ci_only() -> None:
    assert section("only in ci") == sorted(f"- `{one}`" for one in marked())


@pytest.mark.parametrize("databases", [DATABASES, DATABASES[1:]])
def test_a_quick_run_has_each_database_and_each_loop_and_in_two_days_all_pairs(
    databases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {(loop, database) for loop in LOOPS for database in databases}
    monkeypatch.setattr(profile, "PROFILE", profile.QUICK)
    for test in ("test_a.py::test_one", "test_a.py::test_other"):
        days = []
        for day in ("7", "8"):
            monkeypatch.setenv("TICKWHEEL_DAY", day)
            days.append({pair for pair in pairs if not is_left_out(test, [*pair, 17])})
            assert {loop for loop, _ in days[-1]} == set(LOOPS)
            assert sorted(database for _, database in days[-1]) == sorted(databases)
        assert days[0] | days[1] == pairs
    assert not is_left_out("test_a.py::test_one", ["trio", 17])
    assert not is_left_out("test_a.py::test_one", ["mariadb"])
    monkeypatch.setattr(profile, "PROFILE", profile.CI)
    assert not any(is_left_out("test_a.py::test_one", pair) for pair in pairs)


@pytest.mark.parametrize("folder", ["tests/spark", "tests/integration"])
def test_tests_that_take_turns_have_their_days(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{folder}/test_a.py::test_{number}" for number in range(60)]
    days = []
    monkeypatch.setattr(profile, "PROFILE", profile.QUICK)
    turns = TURNS[profile.QUICK]
    for day in map(str, range(7, 8 + turns)):
        monkeypatch.setenv("TICKWHEEL_DAY", day)
        days.append({name for name in names if has_its_day(name)})
        assert all(has_its_day(f"{name}[1]") == has_its_day(f"{name}[2]") for name in names)
        assert has_its_day("tests/unit/test_a.py::test_b")
        assert 5 < len(days[-1]) < 30
    assert days[0] == days[turns]
    assert sum(map(len, days[:turns])) == len(set().union(*days)) == len(names)
    monkeypatch.setattr(profile, "PROFILE", profile.CI)
    (one, other) = (set(filter(has_its_day, names)) for _ in _days(monkeypatch, "7", "8"))
    assert one | other == set(names)
    assert 7 < len(one) < 52
    assert not one & other
    monkeypatch.setattr(profile, "PROFILE", profile.SOAK)
    assert all(map(has_its_day, names))


def _days(monkeypatch: pytest.MonkeyPatch, *days: str) -> Iterator[str]:
    for day in days:
        monkeypatch.setenv("TICKWHEEL_DAY", day)
        yield day


def section(name: str) -> list[str]:
    """The lines of the page between two comments."""
    text = PAGE.read_text().partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    return text.splitlines()


def marked() -> Iterator[str]:
    """The tests with the marker on them, or on some of their parameters; the file where these have a name."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        for node in ast.parse(text).body if f".{MARKER}" in text else ():
            if any(isinstance(one, ast.Attribute) and is_marker(one) for one in ast.walk(node)):
                is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                yield f"{path.relative_to(ROOT)}::{node.name}" if is_test else str(path.relative_to(ROOT))


def is_marker(node: ast.Attribute) -> bool:
    return ast.unparse(node) == f"pytest.mark.{MARKER}"


@pytest.mark.parametrize("amounts", AMOUNTS.values(), ids=AMOUNTS)
def test_a_longer_profile_tries_no_less(amounts: tuple[str, int, int, int]) -> None:
    _, quick, ci, soak = amounts
    assert 0 < quick <= ci <= soak


def test_what_takes_turns_is_there() -> None:
    assert [place for place in TAKE_TURNS if not (ROOT / place).exists()] == []


def test_what_goes_first_is_there() -> None:
    assert [file for file in LONG_S if not (ROOT / file).is_file()] == []
