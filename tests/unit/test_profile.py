"""What each profile holds: the same on every day, and in `quick` a test of each promise. The page on reliability lists
how much each profile tries."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run import evidence, profile
from tests.support.run.order import SECONDS_S
from tests.support.run.profile import AMOUNTS, DATABASES, LOOPS, holds, means_something, some_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def test_the_page_has_the_amounts() -> None:
    head = [
        "| | `make test` | `.ci/run` | `make nightly` | `make soak` | variable |",
        "|---|---|---|---|---|---|",
    ]
    rows = [
        f"| {one.what} | {one.quick:,} | {one.ci:,} | {one.nightly:,} | {one.soak:,} | `TICKWHEEL_{name.upper()}` |"
        for name, one in AMOUNTS.items()
    ]
    assert section("amounts") == head + rows


def section(name: str) -> list[str]:
    """The lines of the page between two comments."""
    text = PAGE.read_text().partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    return text.splitlines()


@pytest.mark.parametrize("amounts", AMOUNTS.values(), ids=AMOUNTS)
def test_a_longer_profile_tries_no_less(amounts: tuple[str, int, int, int, int]) -> None:
    _, quick, ci, nightly, soak = amounts
    assert 0 < quick <= ci <= nightly <= soak


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "PROFILE", profile.QUICK)


def has(test: str, *marks: str, given: tuple[object, ...] = (), is_asked_for: bool = False) -> bool:
    return holds(test, marks, given, is_asked_for=is_asked_for)


@pytest.mark.usefixtures("quick")
def test_quick_has_a_test_of_each_promise() -> None:
    held = {name for test, promises, marks in evidence.shown() if has(test, *marks) for name in promises}
    assert len(held) > 250
    assert set(evidence.promised()) - held == set()


@pytest.mark.usefixtures("quick")
def test_quick_has_of_programs_what_shows_a_promise_or_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "tests/outbox/test_x.py::test_y"
    assert has(other, "promise")
    assert not has(other, "promise", "ci")
    assert not has(other)
    assert has(other, "quick")
    assert has(other, is_asked_for=True)
    assert has("tests/unit/test_x.py::test_y")
    assert not has("tests/unit/test_x.py::test_y", "ci")
    monkeypatch.setattr(profile, "PROFILE", profile.CI)
    assert has(other)
    assert has(other, "ci")
    assert not has(other, "nightly")
    assert has(other, "nightly", is_asked_for=True)
    assert not has(other, "interop")
    assert has(other, "interop", is_asked_for=True)


@pytest.mark.usefixtures("quick")
def test_a_soak_is_in_no_other_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has("tests/unit/test_x.py::test_y", "soak", is_asked_for=True)
    monkeypatch.setattr(profile, "PROFILE", profile.SOAK)
    assert has("tests/unit/test_x.py::test_y", "soak")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("databases", [DATABASES, DATABASES[1:]])
def test_quick_has_each_database_and_each_loop(
    databases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {(loop, database) for loop in LOOPS for database in databases}
    for test in ("tests/unit/test_a.py::test_one", "tests/unit/test_a.py::test_other"):
        held = {pair for pair in pairs if has(f"{test}[x]", given=(*pair, 17))}
        assert {loop for loop, _ in held} == set(LOOPS)
        assert sorted(database for _, database in held) == sorted(databases)
    assert has("tests/unit/test_a.py::test_one", given=("trio", 17))
    assert has("tests/unit/test_a.py::test_one", given=("mariadb",))
    monkeypatch.setattr(profile, "PROFILE", profile.CI)
    assert all(has("tests/unit/test_a.py::test_one", given=pair) for pair in pairs)


@pytest.mark.parametrize(
    ("databases", "given", "means"),
    [
        (None, ["sqlite"], True),
        (("postgresql", "mariadb"), ["sqlite", "trio"], False),
        (("postgresql", "mariadb"), ["mariadb", 5], True),
        (("mariadb",), ["trio"], True),
    ],
)
def test_a_test_of_some_databases_is_not_given_others(
    databases: tuple[str, ...] | None, given: list[object], means: bool
) -> None:
    assert means_something(databases, given) is means


@pytest.mark.parametrize(("count", "one_in"), [(0, 3), (1, 3), (7, 3), (8, 3), (9, 3), (100, 8)])
@pytest.mark.usefixtures("quick")
def test_some_of_the_places_are_the_first_the_last_and_some_between(count: int, one_in: int) -> None:
    chosen = list(some_of(range(count), one_in))
    assert chosen == sorted(set(chosen))
    assert {0, count - 1} & set(range(count)) <= set(chosen)
    assert all(after - before <= one_in for before, after in itertools.pairwise(chosen))


@pytest.mark.parametrize(
    ("name", "draws"), [("quick", False), ("ci", False), ("nightly", True), ("soak", True)]
)
def test_only_a_run_that_draws_has_other_seeds_each_time(name: str, draws: bool) -> None:
    """And the number that it shows repeats them."""
    first, second = seed_of(name), seed_of(name)
    assert (first != second) is draws
    assert seed_of(name, TICKWHEEL_SEED="7") == seed_of("soak", TICKWHEEL_SEED="7")


def seed_of(name: str, **environment: str) -> str:
    script = "from tests.support.run.profile import seed; print(seed('kills'))"
    clean = {name: value for name, value in os.environ.items() if name != "TICKWHEEL_SEED"}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=clean | {"TICKWHEEL_PROFILE": name} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def test_what_goes_first_is_there() -> None:
    assert [file for file in SECONDS_S if not (ROOT / file).is_file()] == []
