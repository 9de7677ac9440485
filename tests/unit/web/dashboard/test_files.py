"""The files that the dashboard serves: those of others are what they were, and ours stay small and strict."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.support.run.cases import table
from tests.support.run.vendored import FOLDERS, LIST, ROOT, packages
from tickwheel.look import LOOK
from tickwheel_web import dashboard
from tickwheel_web.dashboard.assets import FOLDER as STATIC
from tickwheel_web.dashboard.environment import FOLDER as TEMPLATES

MAX_SCRIPT_LINES = 400
MAX_STYLE_LINES = 600
MAX_TEMPLATE_LINES = 2_000
MAX_PYTHON_LINES = 4_380
"""What docs/decisions/023-the-size-of-the-dashboard.md says was reached; who needs more, takes it from elsewhere."""
PACKAGE = Path(dashboard.__file__).parent
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
PICTURES = ROOT / "docs" / "images" / "dashboard"
MAX_PICTURE_BYTES = 60_000
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=|javascript:|hx-on|[\"']js:|\|\s*safe\b")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: one.relative_to(ROOT).parts[0])
def test_files_of_others_are_what_was_written_down(folder: Path) -> None:
    notice = (ROOT / "NOTICE").read_text()
    listed = {file.name: file.sha256 for package in packages(folder) for file in package.file}
    there = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LIST}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in there.items()} == listed
    for package in packages(folder):
        assert f"{package.name} {package.version}" in notice
        assert any(file.name.endswith(".LICENSE") for file in package.file)
        assert all(file.name in notice for file in package.file if not file.name.endswith(".LICENSE"))


def test_our_own_files_are_small() -> None:
    for suffix, most in ((".js", MAX_SCRIPT_LINES), (".css", MAX_STYLE_LINES)):
        files = [*STATIC.glob(f"*{suffix}"), *([LOOK] if LOOK.suffix == suffix else [])]
        lines = {path.name: path.read_text().count("\n") for path in files}
        assert sum(lines.values()) <= most, lines


def test_properties_of_style_are_defined_once_and_for_both() -> None:
    """In what the dashboard and the report of Spark share."""
    look = LOOK.read_text()
    used = set(re.findall(r"var\((--[\w-]+)\)", look + (STATIC / "app.css").read_text()))
    defined = re.findall(r"(--[\w-]+):", look + (STATIC / "app.css").read_text())
    assert used <= set(defined) == set(re.findall(r"(--[\w-]+):", look))
    assert len(defined) == len(set(defined))


def code_lines(path: Path) -> int:
    """Lines that have code: no blank ones, comments or texts that stand alone, such as docstrings."""
    text = path.read_text()
    alone = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - alone)


def test_the_package_keeps_its_size() -> None:
    python = {path.name: code_lines(path) for path in PACKAGE.rglob("*.py")}
    assert sum(code_lines(path) for path in PACKAGE.rglob("*.py")) <= MAX_PYTHON_LINES, python
    assert sum(path.read_text().count("\n") for path in TEMPLATES.rglob("*.html")) <= MAX_TEMPLATE_LINES


def test_lines_of_code_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('"""One."""\n\n# two\nx = (\n    1,  # one\n)\n"""Of x."""\n\ny = """\na\n"""\n')
    assert code_lines(file) == 6


def test_pictures_are_shown_and_small() -> None:
    """Each dark and light."""
    shown = "".join((ROOT / path).read_text() for path in ("README.md", "docs/how-to/dashboard.md"))
    named = re.findall(r"images/dashboard/([\w-]+)-(dark|light)\.png", shown)
    assert {name for name, _ in named} == {name for name, theme in named if theme == "dark"}
    assert {path.name for path in PICTURES.iterdir()} == {f"{name}-{theme}.png" for name, theme in named}
    sizes = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert {name: size for name, size in sizes.items() if size > MAX_PICTURE_BYTES} == {}


@table("path", sorted(TEMPLATES.rglob("*.html")), label=lambda path: path.name)
def test_templates_have_nothing_inline(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if INLINE.search(line)] == []


def test_what_is_inline_is_found() -> None:
    for line in (
        "<script>x</script>",
        '<p style="x">',
        '<a onclick="x">',
        "{{ body | safe }}",
        "hx-vals='js:x'",
    ):
        assert INLINE.search(line)
    assert not INLINE.search('<script src="{{ asset(1) }}" defer></script>')
