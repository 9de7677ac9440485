"""What the owner of the log says of itself in each FENCE and BEAT that it writes to the shared log.

A line of text: where clients reach it. More lines may follow, each a name, `=` and a value; readers pass over names
that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from timerlog.replication.rule import Said

_MAX_BYTES = 1_024


_ZONES, _PROCESS = "zones", "process"


def words_of(url: str, zones: str, process: str = "") -> str:
    """What an owner says. `zones`: which rules of the time zones it goes by; empty: it does not know. `process`: what
    no other process calls itself, also none that has the same number."""
    values = {_ZONES: zones, _PROCESS: process}
    return "\n".join([url, *(f"{name}={value}" for name, value in values.items() if value)])


class KnownOwner:
    """What a node that follows has heard of the owner."""

    def __init__(self) -> None:
        self.url = ""
        """Empty: it is not known."""
        self.zones = ""
        """Of its time zones' rules, the version; empty: it is not known."""
        self.process = ""
        """What its process calls itself; empty: it is not known."""
        self.records = 0
        """How many of owners were read that count."""

    def hear(self, said: Said, body: memoryview) -> None:
        """A record with this body was read, and that became of it."""
        if said is Said.PASSED_OVER:
            return  # not the owner's, or not any more
        self.records += 1
        if said not in (Said.FENCED, Said.BEAT):
            return
        if len(body) <= _MAX_BYTES:
            self.url, *lines = text_of(body).split("\n")
            values = {name: value for name, _, value in (line.partition("=") for line in lines)}
            self.zones, self.process = values.get(_ZONES, ""), values.get(_PROCESS, "")


class Silence:
    """How long no owner was heard by a node that listens. `look` is to be called often."""

    def __init__(self, known_owner: KnownOwner, listens: Callable[[], bool]) -> None:
        """`listens`: before a node has read the log, and while it owns it, silence says nothing."""
        self._known_owner, self._listens = known_owner, listens
        self._records, self._heard_s = known_owner.records, trio.current_time()

    def look(self) -> float:
        """So many seconds."""
        now_s = trio.current_time()
        if self._known_owner.records != self._records or not self._listens():
            self._records, self._heard_s = self._known_owner.records, now_s
        return now_s - self._heard_s


def text_of(body: memoryview) -> str:
    """Whatever stands there."""
    return bytes(body).decode("utf-8", "replace")
