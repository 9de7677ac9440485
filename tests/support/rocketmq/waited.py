"""Clients of the broker that are not there at once: the handlers' doubles give them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import ParamSpec

from tickwheel import Client

P = ParamSpec("P")


class Waited(AbstractAsyncContextManager[Client]):
    """As `tickwheel.sharing.clients.Use`, of a client that has to be waited for."""

    def __init__(self, using: AbstractAsyncContextManager[Client]) -> None:
        self._using = using

    def at_once(self) -> Client | None:
        return None

    async def __aenter__(self) -> Client:
        return await self._using.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._using.__aexit__(kind, error, trace)


def waited(opening: Callable[P, AsyncIterator[Client]]) -> Callable[P, Waited]:
    """Makes one of a generator."""

    def use(*args: P.args, **named: P.kwargs) -> Waited:
        return Waited(asynccontextmanager(opening)(*args, **named))

    return use
