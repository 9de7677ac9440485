"""What an action answers, kept until the page after it has shown it.

A form is answered with a redirect to a page, so that loading it again does nothing twice. The page's address has a
number that stands for the text: what stands on a page is never taken from an address.
"""

from __future__ import annotations

import secrets
import shlex
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

MAX_KEPT: Final = 1_000
_BYTES: Final = 12

Tone = Literal["good", "warn", "bad"]


def command(*words: str) -> str:
    """As a shell takes it.

    >>> command("topics", "pause", "mails & more")
    "tickwheel topics pause 'mails & more'"
    """
    return shlex.join(["tickwheel", *words])


@dataclass(frozen=True)
class Notice:
    """An exact result, such as "212 cancelled, 3 already delivered"."""

    text: str
    tone: Tone = "good"
    command: str = ""
    """What does the same in a terminal."""


class Notices:
    """The last ones, each for who has caused it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, Notice]] = OrderedDict()

    def keep(self, caller: str, notice: Notice) -> str:
        """Its number."""
        number = secrets.token_urlsafe(_BYTES)
        self._kept[number] = caller, notice
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return number

    def find(self, caller: str, number: str) -> Notice | None:
        """None: there is none, or it is somebody else's."""
        owner, notice = self._kept.get(number, ("", None))
        return notice if owner == caller else None
