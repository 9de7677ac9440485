"""The documents name tests as evidence, as `tests/….py::test_…`: each is there, and each guarantee has some."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

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
