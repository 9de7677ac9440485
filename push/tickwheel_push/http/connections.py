"""Connections that are kept for the next requests, in constant time a request however many there are: httpcore's own
pool looks at all of them for each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio
from httpcore2 import AsyncHTTPConnection

from tickwheel_push.http.addresses import Origin

KEEP_ALIVE_S: Final = 30.0
MOST_KEPT: Final = 256


class Connections:
    """The one that was used last is used next, so that those that are not needed grow old."""

    def __init__(self, make: Callable[[Origin], AsyncHTTPConnection]) -> None:
        self._make = make
        self._idle: dict[Origin, list[AsyncHTTPConnection]] = {}
        self._by_age: OrderedDict[AsyncHTTPConnection, Origin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    async def take(self, origin: Origin) -> tuple[AsyncHTTPConnection, bool]:
        """One that nobody else uses, and whether it was used before."""
        while idle := self._idle.get(origin):
            kept = idle[-1]
            self._forget(kept)
            if not kept.has_expired():
                return kept, True
            await close(kept)
        return self._make(origin), False

    async def give(self, origin: Origin, connection: AsyncHTTPConnection) -> None:
        """It is not used any more: it is kept, if it can be used again."""
        if connection.is_closed() or not connection.is_idle():
            await close(connection)
            return
        self._idle.setdefault(origin, []).append(connection)
        self._by_age[connection] = origin
        while self._by_age:
            oldest = next(iter(self._by_age))
            if len(self._by_age) <= MOST_KEPT and (oldest is connection or not oldest.has_expired()):
                return
            self._forget(oldest)
            await close(oldest)

    async def close(self) -> None:
        """None is kept any longer."""
        while self._by_age:
            kept = next(iter(self._by_age))
            self._forget(kept)
            await close(kept)

    def _forget(self, connection: AsyncHTTPConnection) -> None:
        origin = self._by_age.pop(connection)
        idle = self._idle[origin]
        idle.remove(connection)
        if not idle:
            del self._idle[origin]


async def close(connection: AsyncHTTPConnection) -> None:
    """Also when there is no time for it any more."""
    with anyio.CancelScope(shield=True):
        await connection.aclose()
