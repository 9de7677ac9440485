"""The documents name tests as evidence, as `tests/….py::test_…`: each is there, and each guarantee has some. In two
pages they are what the marker `promise` says."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.support.run import evidence
from tests.support.run.cases import table

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"(?<![\w/])(tests/[\w/]+\.py)(?:::(\w+))?")

# What the last section of a guarantee page is about needs no test.
WITHOUT_EVIDENCE = {"What is checked", "Messages in your own database", "Not in this version"}


@cache
def names_in(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


@table("document", DOCUMENTS, label=lambda path: path.relative_to(ROOT).as_posix())
def test_tests_named_in_the_documents_exist(document: Path) -> None:
    missing = [
        match[0]
        for match in NAMED.finditer(document.read_text())
        if not (ROOT / match[1]).is_file() or (match[2] and match[2] not in names_in(match[1]))
    ]
    assert not missing


def test_each_guarantee_names_its_tests() -> None:
    sections = re.split(r"^## ", (ROOT / "docs/guarantees.md").read_text(), flags=re.MULTILINE)[1:]
    titles = {section.partition("\n")[0]: section for section in sections}
    assert titles.keys() >= WITHOUT_EVIDENCE
    bare = [title for title, text in titles.items() if "::test_" not in text]
    assert set(bare) <= WITHOUT_EVIDENCE


def test_the_pages_have_the_tests_that_are_marked() -> None:
    """A difference is a marker or a name that changed: python -m tests.support.run.evidence"""
    marked = evidence.by_promise()
    assert evidence.GUARANTEES.read_text().splitlines() == evidence.guarantees(marked).splitlines()
    assert evidence.PARITY.read_text().splitlines() == evidence.parity(marked).splitlines()


def test_each_promise_has_a_test_and_each_marker_names_a_promise() -> None:
    promised = evidence.promised()
    assert len(promised) > 250
    assert sorted(promised) == sorted(evidence.by_promise())


def test_each_marker_is_read() -> None:
    """None stands at a class, at what is no test, or among parameters, where only pytest would find it."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    named = Counter(name for text in texts if evidence.MARKER in text for name in names_in_markers(text))
    assert named == Counter(name for found in evidence.shown() for name in found.promises)


def names_in_markers(text: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == evidence.MARKER]
    return [ast.literal_eval(name) for mark in marks for name in mark.args]


MARKED = """
pytestmark = [pytest.mark.alone, pytest.mark.promise("V1")]

@pytest.mark.promise("V2", "sending-twice")
@pytest.mark.ci
@pytest.mark.promise("V3")
async def test_x(): ...

@pytest.mark.timeout(limit_s(3))
def test_y(): ...
"""


def test_a_marker_is_for_a_test_or_for_a_file() -> None:
    assert list(evidence.shown_in(ROOT / "tests/test_a.py", MARKED)) == [
        ("tests/test_a.py", ("V1",), {"alone", "promise"}),
        ("tests/test_a.py::test_x", ("V2", "sending-twice", "V3"), {"alone", "promise", "ci"}),
    ]
