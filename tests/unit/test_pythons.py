"""`.ci/pythons` finds the interpreters that really start, once each, but the one of `.venv`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "pythons"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [version for version in ("3.11", "3.12", "3.13", "3.14") if version != OWN]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of the project, with an environment of this interpreter, on a machine that has no other one."""
    (tmp_path / "tree" / ".ci").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "tree" / ".ci")
    add(tmp_path / "tree" / ".venv" / "bin", "python", f"echo {OWN}")
    (tmp_path / "tools").mkdir()
    for tool in ("bash", "cat", "dirname", "find", "sort"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def add(folder: Path, name: str, does: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(0o755)


def found(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(tree / folder) for folder in ("shims", "bin", "tools"))
    return subprocess.run(
        [tree / "tree" / ".ci" / "pythons", *arguments],
        env={"PATH": path, "PYENV_ROOT": str(tree / "pyenv")},
        capture_output=True,
        text=True,
        check=True,
    )


def test_what_starts_is_found(tree: Path) -> None:
    oldest, middle, newest = OTHERS
    add(tree / "shims", f"python{oldest}", "exit 127")
    add(tree / "bin", f"python{oldest}", f'echo "{oldest} $0"')
    add(tree / "shims", f"python{OWN}", f'echo "{OWN} $0"')
    add(tree / "shims", f"python{middle}", f'echo "{oldest} $0"')  # another version than its name says
    for patch in (9, 10):
        folder = tree / "pyenv" / "versions" / f"{newest}.{patch}" / "bin"
        add(folder, f"python{newest}", f'echo "{newest} $0"')
    lines = dict(line.split() for line in found(tree, "list").stdout.splitlines())
    assert lines[oldest] == str(tree / "bin" / f"python{oldest}")
    assert lines[newest] == str(folder / f"python{newest}")
    assert OWN not in lines
    assert str(tree / "shims" / f"python{middle}") not in lines.values()


def test_it_says_that_there_is_none(tree: Path) -> None:
    add(tree / "shims", f"python{OTHERS[0]}", "exit 127")
    assert found(tree, "list").stdout == ""
    assert "were NOT RUN on other interpreters" in found(tree).stderr


def test_the_gate_tries_less_on_it_than_the_night(tree: Path) -> None:
    middle, newest = OTHERS[1:]
    add(tree / "bin", "make", 'echo "$*"')
    for version in (middle, newest):
        add(tree / "bin", f"python{version}", f'echo "{version} $0"')
    (gate,) = [line for line in found(tree, "newest").stdout.splitlines() if line.startswith("test ")]
    other, whole = (line for line in found(tree).stdout.splitlines() if line.startswith("test "))
    assert f"VENV=build/python{newest}/venv TEST_ARGS=tests/unit tests/integration/" in gate
    assert f"VENV=build/python{middle}/venv TEST_ARGS=tests/unit tests/integration/" in other
    assert whole.endswith(f"VENV=build/python{newest}/venv TEST_ARGS=")
    named = [word.removeprefix("TEST_ARGS=") for word in gate.split() if "tests/" in word]
    assert [name for name in named if not (SCRIPT.parents[1] / name).exists()] == []
