"""The words of a filter in SQL.

They are read one at a time, because RocketMQ stops reading where the condition is complete: what follows it, but for
the next word, may be anything.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from tickwheel_gateway.filters.refusals import refusal


class Kind(Enum):
    """Of a word."""

    WORD = auto()
    """A keyword or a symbol."""
    NAME = auto()
    TEXT = auto()
    INTEGER = auto()
    FLOAT = auto()
    END = auto()


KEYWORDS: Final = {
    *("NOT", "AND", "OR", "BETWEEN", "IN", "IS"),
    *("TRUE", "FALSE", "NULL"),
    *("CONTAINS", "STARTSWITH", "ENDSWITH"),
}
_BLANKS: Final = re.compile(r"[ \t\n\r\f]*")
_LINE_END: Final = re.compile(r"\r\n?|\n")
_EXPONENT: Final = "[eE][+-]?[0-9]+"
_TOKEN: Final = re.compile(
    rf"(?P<FLOAT>[0-9]+\.[0-9]*(?:{_EXPONENT})?|\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT})"
    r"|(?P<INTEGER>0|[1-9][0-9]*[lL]?)"
    r"|(?P<TEXT>'[^']*(?:''[^']*)*')"
    r"|(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<WORD><>|>=|<=|[=<>(),+-])"
)


class Token(NamedTuple):
    """One word."""

    kind: Kind
    text: str
    """Keywords in upper case, and texts without their quotes."""
    at: int
    """Its first character, from 0."""

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords or symbols."""
        return self.kind is Kind.WORD and self.text in words


class Tokens:
    """The words, with a look at the next one.

    >>> tokens = Tokens("a >= 5 /* or so */")
    >>> [tokens.take().text for _ in range(4)]
    ['a', '>=', '5', '']
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: Token | None = None
        # So that a row of `--` on the last line does not make each of them look for the end of its line.
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))

    def look(self) -> Token:
        """The next word, which stays the next. Raises Refused for what is no word."""
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        """The next word. Raises Refused for what is no word."""
        token = self.look()
        self._next = None
        return token

    def _read(self) -> Token:
        self._skip()
        if self._at == len(self._text):
            return Token(Kind.END, "", self._at)
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            raise refusal(f"no word begins with {self._text[self._at]!r} at character {self._at + 1}")
        at, self._at = self._at, found.end()
        kind, text = Kind[found.lastgroup], found[0]
        if kind is Kind.TEXT:
            text = text[1:-1].replace("''", "'")
        elif kind is Kind.NAME and text.upper() in KEYWORDS:
            kind, text = Kind.WORD, text.upper()
        return Token(kind, text, at)

    def _skip(self) -> None:
        """Blanks and comments. A comment `--` ends with its line: without a line end it is two minus signs."""
        text = self._text
        while True:
            if (blanks := _BLANKS.match(text, self._at)) is not None:
                self._at = blanks.end()
            start = text[self._at : self._at + 2]
            if start == "--" and self._at < self._last_line_end:
                line_end = _LINE_END.search(text, self._at)
                self._at = line_end.end() if line_end else len(text)
            elif start == "/*" and (end := text.find("*/", self._at + 2)) >= 0:
                self._at = end + 2
            else:
                return
