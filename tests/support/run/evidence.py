"""The tests that show what the pages promise, by their marker `promise`.

`@pytest.mark.promise("V12", "sending-twice")` names rows of `docs/parity.md`, by their numbers, and sections of
`docs/guarantees.md`, by their anchors. In `pytestmark` it is for a whole file.
`python -m tests.support.run.evidence` writes the names of the tests into both pages, when a marker or a name changed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]
GUARANTEES: Final = ROOT / "docs" / "guarantees.md"
PARITY: Final = ROOT / "docs" / "parity.md"

MARKER: Final = "pytest.mark.promise"
_SECTION: Final = re.compile(r"^(?=##)", re.MULTILINE)
_SHOWN_BY: Final = re.compile(r"^(\*Shown by\*\n)((?:`.*\n)*)", re.MULTILINE)
_ROW: Final = re.compile(r"^(\| ([A-Z]\d+) \|.*\|)[^|\n]*\|$", re.MULTILINE)


class Shown(NamedTuple):
    """What a test shows, or a file of tests as a whole."""

    test: str
    """Its id, without parameters; or the file."""
    promises: tuple[str, ...]
    marks: frozenset[str]
    """The names of all its markers, with those of its file."""


@cache
def shown() -> tuple[Shown, ...]:
    """What all tests show, in the order of their files. None is imported: that takes half a second."""
    files = ((path, path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("tests/**/test_*.py")))
    return tuple(found for path, text in files if MARKER in text for found in shown_in(path, text))


def shown_in(path: Path, text: str) -> Iterator[Shown]:
    """What a file of this text shows, by each test and as a whole."""
    file = path.relative_to(ROOT).as_posix()
    body = ast.parse(text).body
    whole = _marks(node.value for node in body if isinstance(node, ast.Assign))
    marked = {file: whole}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marked[f"{file}::{node.name}"] = _marks(node.decorator_list)
    for test, marks in marked.items():
        if promises := tuple(map(ast.literal_eval, marks.get(MARKER, ()))):
            yield Shown(test, promises, frozenset(name.rpartition(".")[2] for name in (*marks, *whole)))


def _marks(nodes: Iterable[ast.expr]) -> dict[str, list[ast.expr]]:
    """The markers among these expressions, also in a list of them, with what they are given."""
    found = defaultdict(list)
    for node in nodes:
        for mark in node.elts if isinstance(node, ast.List) else [node]:
            function, given = (mark.func, mark.args) if isinstance(mark, ast.Call) else (mark, [])
            if (name := ast.unparse(function)).startswith("pytest.mark."):
                found[name] += given
    return found


def by_promise() -> dict[str, list[str]]:
    """The tests of each promise that a marker names."""
    found = defaultdict(list)
    for test, promises, _ in shown():
        for promise in promises:
            found[promise].append(test)
    return found


def promised() -> list[str]:
    """What the pages promise: each section that says by what it is shown, and each row."""
    sections = _SECTION.split(GUARANTEES.read_text(encoding="utf-8"))
    rows = _ROW.finditer(PARITY.read_text(encoding="utf-8"))
    return [*(_name(section) for section in sections if _SHOWN_BY.search(section)), *(row[2] for row in rows)]


def guarantees(tests: dict[str, list[str]]) -> str:
    """The page on guarantees with these tests of its sections."""

    def listed(section: str) -> str:
        names = ",\n".join(f"`{test}`" for test in tests.get(_name(section), ()))
        return _SHOWN_BY.sub(lambda found: found[1] + (names and f"{names}.\n"), section)

    return "".join(map(listed, _SECTION.split(GUARANTEES.read_text(encoding="utf-8"))))


def parity(tests: dict[str, list[str]]) -> str:
    """The page on parity with these tests of its rows, in the order in which a row tells of topics and of others."""

    def ended(row: re.Match[str]) -> str:
        are_topics_last = "; topics: " in row[1]
        names = sorted(tests.get(row[2], ()), key=lambda test: ("outbox" in test) != are_topics_last)
        return f"{row[1]} {', '.join(f'`{test}`' for test in names)} |"

    return _ROW.sub(ended, PARITY.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """How links name a heading, on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _name(section: str) -> str:
    return anchor(section.partition("\n")[0].strip("# "))


if __name__ == "__main__":
    marked = by_promise()
    GUARANTEES.write_text(guarantees(marked), encoding="utf-8")
    PARITY.write_text(parity(marked), encoding="utf-8")
