"""The page on reliability lists how much each profile tries, and what runs in `ci` only. Files that go first exist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.order import LONG_S
from tests.support.profile import AMOUNTS

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


def test_what_goes_first_is_there() -> None:
    assert [file for file in LONG_S if not (ROOT / file).is_file()] == []
