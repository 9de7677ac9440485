"""Whose token is whose: a file with a name and a token on each line, for people whom a proxy has let in."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tickwheel.errors import ConfigError
from tickwheel.sharing.private_file import PrivateFile
from tickwheel_web.problems import Refused

_ADVICE: Final = "On each line it has a name, as the proxy writes it, and a token."

_log = logging.getLogger("tickwheel.web")


class People:
    """As the file says; it is read again when it has changed. While it cannot be read, nobody is let in by it."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError."""
        self._file = PrivateFile(file, "file of people", ("a name", "a token"), _ADVICE)
        self._tokens = self._read()

    def token_of(self, person: str) -> str:
        """Raises Refused (403)."""
        try:
            if self._file.has_changed():
                self._tokens = self._read()
        except ConfigError as error:
            self._tokens = {}
            self._file.forget()
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

    def _read(self) -> dict[str, str]:
        """Raises ConfigError."""
        found: dict[str, str] = {}
        for number, (name, token) in self._file.lines():
            if name in found:
                raise self._file.wrong(f"names {name} twice (line {number})")
            found[name] = token
        return found
