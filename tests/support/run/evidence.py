"""The promises that the pages make, and the tests that the pages name for each.

`docs/guarantees.md` ends each section with the tests that show it; each row of `docs/parity.md` has a cell of tests.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
TEST: Final = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")


@cache
def promises() -> dict[str, tuple[str, ...]]:
    """Ids of tests, without parameters, by promise: a title of a section, or the number of a row."""
    return {name: tests for name, text in [*_sections(), *_rows()] if (tests := tuple(TEST.findall(text)))}


@cache
def evidence() -> frozenset[str]:
    """All tests that show a promise."""
    return frozenset(test for tests in promises().values() for test in tests)


@cache
def files() -> frozenset[str]:
    """The files of these tests."""
    return frozenset(test.partition("::")[0] for test in evidence())


def _sections() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    return [(part.partition("\n")[0], part) for part in re.split(r"^(?=##)", text, flags=re.MULTILINE)[1:]]


def _rows() -> list[tuple[str, str]]:
    lines = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8").splitlines()
    return [(line.split("|")[1].strip(), line) for line in lines if line.startswith("|")]
