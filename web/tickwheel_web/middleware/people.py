"""Whose token is whose: a file with a name and a token on each line, for people whom a proxy has let in."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from tickwheel.errors import ConfigError
from tickwheel_web.problems import Refused

_OTHERS: Final = stat.S_IRWXO

_log = logging.getLogger("tickwheel.web")


class People:
    """As the file says; it is read again when it has changed. While it cannot be read, nobody is let in by it."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError."""
        self._file = file
        self._seen = _stamp(file)
        self._tokens = _read(file)

    def token_of(self, person: str) -> str:
        """Raises Refused (403)."""
        try:
            seen = _stamp(self._file)
            if seen != self._seen:
                self._tokens, self._seen = _read(self._file), seen
        except ConfigError as error:
            self._tokens, self._seen = {}, (0, 0, 0)
            _log.error("%s", error)
        token = self._tokens.get(person)
        if token is None:
            raise Refused(
                403,
                "forbidden",
                f"There is no token here for {person!r}. Who runs this process can add one to the file that "
                "web_trusted_users names.",
            )
        return token


def _stamp(file: Path) -> tuple[int, int, int]:
    """Raises ConfigError."""
    try:
        found = os.stat(file)
    except OSError as error:
        raise _wrong(file, f"cannot be read: {error.strerror}") from None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(file: Path) -> dict[str, str]:
    """Raises ConfigError."""
    found: dict[str, str] = {}
    try:
        if file.stat().st_mode & _OTHERS:
            raise _wrong(file, "can be read by every user of this machine; chmod o= makes it private")
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise _wrong(file, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _wrong(file, "is no UTF-8") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not words[1].isascii():
            raise _wrong(file, f"has something else in line {number} than a name and a token")
        if words[0] in found:
            raise _wrong(file, f"names {words[0]} twice (line {number})")
        found[words[0]] = words[1]
    return found


def _wrong(file: Path, what: str) -> ConfigError:
    return ConfigError(
        f"The file of people {file} {what}.",
        advice="On each line it has a name, as the proxy writes it, and a token.",
    )
