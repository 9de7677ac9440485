"""The clients that a process of the gateway knows: what they have said of themselves, and whether they are there.

A client is there as long as its telemetry stream is, or as it was heard of within a minute. Others keep what they do
for a client, such as renewing its receipts, and are told when it has gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import trio

from tickwheel_gateway.clients.caller import Caller, Identity
from tickwheel_gateway.wire.codes import Code, Refused

ALIVE_S: Final = 60.0
"""After its last word, when it has no stream."""
MAX_KNOWN: Final = 100_000
"""Clients at a time: each is kept for a minute after its last word, and calls itself as it likes."""
BUSY_S: Final = 300.0
"""A push consumer is busy so long after a receive that there was more for than it could take, or after the last of
`BUSY_RECEIVES`. What comes every minute finds it busy."""
BUSY_RECEIVES: Final = 20
"""So many that brought messages, within `_OFTEN_S` of the first of them, also make a push consumer busy."""
_OFTEN_S: Final = 10.0
_LOOK_S: Final = 1.0

_log = logging.getLogger("tickwheel.gateway.clients")


class Stream(Protocol):
    """The telemetry stream of a client, towards it."""

    async def send(self, command: bytes) -> bool:
        """Whether the socket has taken it; False: the stream is over."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a client has said of itself in its settings; names are RocketMQ's."""

    client_type: int = 0
    group: str = ""
    """Of a consumer."""
    topics: frozenset[str] = frozenset()
    """That it sends to, or has subscribed to."""
    request_timeout_ms: int = 3_000
    sends_to: frozenset[str] = frozenset()
    """Topics of a producer, in Tickwheel."""


@dataclass(slots=True)
class _Taking:
    """How often a push consumer receives messages."""

    since: float
    """When the receives that are counted began; on trio's clock, as the other."""
    receives: int = 0
    busy_until: float = 0.0

    def is_over(self, now: float) -> bool:
        """Nothing is lost if it begins anew."""
        return now >= self.busy_until and now >= self.since + _OFTEN_S


@dataclass(eq=False, slots=True)
class Known:
    """A client that has called."""

    caller: Caller
    heard: float
    """On trio's clock."""
    declared: Declared | None = None
    stream: Stream | None = None
    """The newest, while it is open."""
    transactions: set[str] = field(default_factory=set)
    """Topics, in Tickwheel, that it has sent prepared messages to."""
    _taking: dict[tuple[str, str], _Taking] = field(default_factory=dict)
    """By topic and group, in Tickwheel."""

    @property
    def client_id(self) -> str:
        """As it calls itself."""
        return self.caller.client_id

    @property
    def identity(self) -> Identity:
        """That of its caller, at any time."""
        return self.caller.identity

    def took(self, topic: str, group: str, *, all_it_may: bool) -> None:
        """A receive was answered with messages; with as many as one may hold?"""
        now = trio.current_time()
        taking = self._taking.get((topic, group))
        if taking is None:
            self._taking = {place: one for place, one in self._taking.items() if not one.is_over(now)}
            taking = self._taking[topic, group] = _Taking(now)
        elif now >= taking.since + _OFTEN_S:
            taking.since, taking.receives = now, 0
        taking.receives += 1
        if all_it_may or taking.receives >= BUSY_RECEIVES:
            taking.busy_until = now + BUSY_S

    def is_busy(self, topic: str, group: str) -> bool:
        """Whether it took all it may, or often, a short while ago."""
        taking = self._taking.get((topic, group))
        return taking is not None and taking.busy_until > trio.current_time()


Gone: TypeAlias = Callable[[Known], Awaitable[None]]


class Registry:
    """All clients that are there. Each can call itself as it likes, so those of other tokens are others."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._known: dict[Identity, Known] = {}
        self._told_gone: list[Gone] = []

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    def when_gone(self, tell: Gone) -> None:
        """``tell`` is called once for each client that has gone."""
        self._told_gone.append(tell)

    def heard(self, caller: Caller) -> Known:
        """Of a client, now. Raises Refused if it is not known and there are too many."""
        known = self._known.get(caller.identity)
        if known is None:
            if len(self._known) >= self._most:
                raise Refused(
                    Code.TOO_MANY_REQUESTS,
                    f"{self._most:,} clients are here; each worker of a gateway takes so many",
                )
            known = self._known[caller.identity] = Known(caller, trio.current_time())
        known.caller, known.heard = caller, trio.current_time()
        return known

    def get(self, caller: Caller) -> Known | None:
        """A client that is there."""
        return self._known.get(caller.identity)

    def with_stream(self, wanted: Callable[[Known], bool]) -> Iterable[Known]:
        """Those that can be spoken to, and are wanted; who was heard last comes first."""
        found = [known for known in self._known.values() if known.stream is not None and wanted(known)]
        return sorted(found, key=lambda known: -known.heard)

    async def forget(self, caller: Caller) -> None:
        """It has gone, or says that it goes."""
        known = self._known.pop(caller.identity, None)
        if known is None:
            return
        for tell in self._told_gone:
            try:
                await tell(known)
            except Exception:  # a defect of one must not keep the others from hearing it
                _log.exception("what was done for a client that has gone did not end well")

    async def look(self) -> None:
        """Until it is cancelled: finds those that have gone without a word."""
        while True:
            await trio.sleep(_LOOK_S)
            silent_since = trio.current_time() - ALIVE_S
            for known in list(self._known.values()):
                if known.stream is None and known.heard < silent_since:
                    await self.forget(known.caller)
