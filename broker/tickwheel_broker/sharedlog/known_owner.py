"""What the owner of the log says of itself in each FENCE and BEAT that it writes to the shared log.

A line of text: where clients reach it. More lines may follow, each a name, `=` and a value; readers pass over names
that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from tickwheel_broker.logs import get_logger
from timerlog.replication.rule import Said

_log = get_logger("cluster")

_MAX_BYTES = 1_024


_ZONES, _PROCESS, _TOKENS = "zones", "process", "tokens"


@dataclass(frozen=True, slots=True)
class OwnWords:
    """What a node says of itself once it owns the log."""

    url: str = ""
    """Where clients reach it."""
    zones: str = ""
    """Which rules of the time zones it goes by; empty: it does not know."""
    process: str = ""
    """What no other process calls itself, not even a process with the same number."""
    tokens: Callable[[], str] = str
    """The fingerprint of the tokens that it has now; empty: nothing is said of them."""

    def now(self) -> bytes:
        """The body of a FENCE or BEAT."""
        values = {_ZONES: self.zones, _PROCESS: self.process, _TOKENS: self.tokens()}
        lines = [self.url, *(f"{name}={value}" for name, value in values.items() if value)]
        return "\n".join(lines).encode()


NOTHING_SAID: Final = OwnWords()
"""By a node that no client reaches, as in the simulator."""


class KnownOwner:
    """What a node that follows has heard of the owner."""

    def __init__(self) -> None:
        self.url = ""
        """Empty: it is not known."""
        self.zones = ""
        """Of its time zones' rules, the version; empty: it is not known."""
        self.process = ""
        """What its process calls itself; empty: it is not known."""
        self.tokens = ""
        """The fingerprint of its tokens; empty: it is not known."""
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
            self.tokens = values.get(_TOKENS, "")


class Comparison:
    """What must be the same on all nodes, and no record carries: a node that follows compares it with the owner's."""

    def __init__(self, own: OwnWords) -> None:
        self._own = own
        self._compared: dict[str, tuple[str, str]] = {}

    def look(self, owner: KnownOwner) -> None:
        """Log what differs, once for each pair of values. To be called now and then."""
        self._compare(
            _ZONES,
            self._own.zones,
            owner.zones,
            "the owner goes by other rules of the time zones: schedules may have other slots when this node owns "
            "the log; install the same tzdata on all nodes",
        )
        self._compare(
            _TOKENS,
            self._own.tokens(),
            owner.tokens,
            "the owner has other tokens: clients may be refused, or let in, when this node owns the log; "
            "copy tokens.json to all nodes",
        )

    def _compare(self, name: str, here: str, heard: str, advice: str) -> None:
        if self._compared.get(name) == (here, heard):
            return
        differed = _differ(*self._compared.get(name, ("", "")))
        self._compared[name] = here, heard
        if _differ(here, heard):
            _log.warning(advice, here=here, owner=heard)
        elif differed and here == heard:
            _log.info(f"the owner has the same {name} again")


def _differ(here: str, heard: str) -> bool:
    """Whether both are known, and differ."""
    return bool(here and heard) and here != heard


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
