"""What a build tells users: no warning of a compiler ends it, and without a compiler it says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

TREE = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("given", "errors"), [(None, []), ("0", []), ("1", ["-Werror"])])
def test_warnings_are_errors_where_make_says_so(
    given: str | None, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TICKWHEEL_WERROR", raising=False)
    if given is not None:
        monkeypatch.setenv("TICKWHEEL_WERROR", given)
    built = run_path(str(TREE / "native" / "extension.py"))
    assert built["WARNING_ERRORS"] == errors
    assert "-Werror" not in built["WARNINGS"]


def test_make_says_so() -> None:
    assert "export TICKWHEEL_WERROR := 1\n" in (TREE / "Makefile").read_text()


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "setup.py",
            "-q",
            "build_ext",
            f"--build-temp={tmp_path}",
            f"--build-lib={tmp_path}/lib",
        ],
        cwd=TREE,
        env={**os.environ, "CC": "/nonexistent/gcc", "TICKWHEEL_NGHTTP2": "off", "TICKWHEEL_COMPILED": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    readme = (TREE / "README.md").read_text()
    line = "sudo apt-get install python3-venv python3-dev gcc libc6-dev"
    assert done.stderr.rstrip().endswith(line), done.stderr
    assert line in readme
