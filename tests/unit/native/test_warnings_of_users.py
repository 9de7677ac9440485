"""A warning of a compiler ends the build of developers, and not that of users."""

from __future__ import annotations

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
