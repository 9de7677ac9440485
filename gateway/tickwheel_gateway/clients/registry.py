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

ALIVE_S: Final = 60.0
"""After its last word, when it has no stream."""
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

    @property
    def client_id(self) -> str:
        """As it calls itself."""
        return self.caller.client_id

    @property
    def identity(self) -> Identity:
        """That of its caller, at any time."""
        return self.caller.identity


Gone: TypeAlias = Callable[[Known], Awaitable[None]]


class Registry:
    """All clients that are there. Each can call itself as it likes, so those of other tokens are others."""

    def __init__(self) -> None:
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
        """Of a client, now."""
        known = self._known.get(caller.identity)
        if known is None:
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
