"""What users notice is a file each, and the files make a section of the change log."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "newsfragments"
MOST_CHARS = 400
LINES = 80
"""Of the change log before version 0.1.0, which had all that there is."""
_NAME = re.compile(r"\+[a-z0-9-]+\.(added|changed|fixed)\.md")


def draft(folder: Path) -> str:
    words = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--config"]
    done = subprocess.run(
        [*words, str(folder / "pyproject.toml"), "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_change_is_told_in_a_file() -> None:
    fragments = [path for path in sorted(FOLDER.iterdir()) if path.name not in ("README.md", ".gitignore")]
    told = draft(ROOT)
    for path in fragments:
        text = path.read_text()
        assert _NAME.fullmatch(path.name), f"{path.name} is no `+name.added.md`, `.changed.md` or `.fixed.md`"
        assert 0 < len(text) <= MOST_CHARS, path.name
        assert text[0].isupper() or text[0] in "`[", path.name
        assert " ".join(text.split()) in " ".join(told.split()), path.name


def test_a_section_of_the_change_log(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "newsfragments").mkdir()
    for kind in ("fixed", "added"):
        (tmp_path / "newsfragments" / f"+it.{kind}.md").write_text(f"It was {kind}.\n")
    lines = [line for line in draft(tmp_path).splitlines() if line]
    assert lines[1:] == ["### Added", "- It was added.", "### Fixed", "- It was fixed."]
    assert lines[0].startswith("## [9.9.9] - ")


@pytest.mark.parametrize("marker", ["<!-- Newer changes: newsfragments/ -->\n", "## [Unreleased]\n"])
def test_there_is_a_place_for_it(marker: str) -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.count(marker) == 1
    before = text.partition("## [0.1.0]")[0]
    assert before.count("\n") <= LINES
