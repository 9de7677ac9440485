"""Files with tokens in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickwheel.errors import ConfigError
from tickwheel.sharing.private_file import PrivateFile


def file_with(path: Path, text: str, mode: int = 0o600) -> PrivateFile:
    path.write_text(text)
    path.chmod(mode)
    return PrivateFile(path, "file of names", ("a name", "a token"), "Write a name and a token.")


def test_its_lines(tmp_path: Path) -> None:
    file = file_with(tmp_path / "names", "# all\n\nann  one\n  #none\nbob two\n")
    assert file.has_changed()
    assert list(file.lines()) == [(3, ["ann", "one"]), (5, ["bob", "two"])]
    assert not file.has_changed()
    file.path.write_text("ann other\n")
    assert file.has_changed()
    assert list(file.lines()) == [(1, ["ann", "other"])]
    file.forget()
    assert file.has_changed()


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [
        ("ann one\n", 0o604, "can be read by every user"),
        ("ann\n", 0o600, "something else in line 1 than a name and a token"),
        ("ann one two\n", 0o640, "something else in line 1"),
        ("ann \u00fc\n", 0o600, "something else in line 1"),
    ],
)
def test_what_is_wrong_with_one(tmp_path: Path, text: str, mode: int, what: str) -> None:
    file = file_with(tmp_path / "names", text, mode)
    with pytest.raises(ConfigError, match=what) as caught:
        list(file.lines())
    assert caught.value.advice == "Write a name and a token."
    assert file.has_changed()


def test_one_that_is_no_text_or_is_not_there(tmp_path: Path) -> None:
    file = file_with(tmp_path / "names", "")
    file.path.write_bytes(b"\xff one\n")
    with pytest.raises(ConfigError, match="is no UTF-8"):
        list(file.lines())
    file.path.unlink()
    for ask in (file.has_changed, lambda: list(file.lines())):
        with pytest.raises(ConfigError, match="cannot be read"):
            ask()
