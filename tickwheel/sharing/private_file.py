"""A file with a token on each line, and words before it: read again when it has changed, refused when every user of the
machine could read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tickwheel.errors import ConfigError

OTHERS: Final = stat.S_IRWXO


class PrivateFile:
    """One such file. Empty lines, and lines that begin with ``#``, say nothing."""

    def __init__(self, path: Path, what: str, columns: tuple[str, ...], advice: str) -> None:
        """``what`` it is, and what stands on each of its lines: for people."""
        self.path = path
        self._what = what
        self._columns = columns
        self._advice = advice
        self._seen = (0, 0, 0)

    def has_changed(self) -> bool:
        """Since `lines` was called last. Raises ConfigError."""
        return self._stamp() != self._seen

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """The number of each line, and its words: as many as there are columns. Raises ConfigError."""
        seen = self._stamp()
        try:
            if self.path.stat().st_mode & OTHERS:
                raise self.wrong("can be read by every user of this machine; chmod o= makes it private")
            lines = self.path.read_text("utf-8").splitlines()
        except OSError as error:
            raise self.wrong(f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise self.wrong("is no UTF-8") from None
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != len(self._columns) or not words[-1].isascii():
                raise self.wrong(f"has something else in line {number} than {_listed(self._columns)}")
            yield number, words
        self._seen = seen

    def forget(self) -> None:
        """It counts as changed: what was read of it is of no use."""
        self._seen = (0, 0, 0)

    def wrong(self, problem: str) -> ConfigError:
        """What is raised when it is not as it should be."""
        return ConfigError(f"The {self._what} {self.path} {problem}.", advice=self._advice)

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self.wrong(f"cannot be read: {error.strerror}") from None
        return found.st_mtime_ns, found.st_ino, found.st_size


def _listed(words: tuple[str, ...]) -> str:
    """
    >>> _listed(("a name", "a secret", "a token"))
    'a name, a secret and a token'
    """
    return f"{', '.join(words[:-1])} and {words[-1]}"
