"""The deadline of a call: what the broker has not answered by then is refused, as long as there is time to say so."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final

import trio

from tickwheel import Client
from tickwheel.sharing.clients import Use
from tickwheel_gateway.transport.call import Call
from tickwheel_gateway.wire.codes import Code, Refused

MARGIN_S: Final = 0.25
"""So long before the deadline there is an answer. Of less time that is left, a quarter."""


def when_late(call: Call, now: float) -> float:
    """When it is too late to wait for the broker."""
    return call.deadline - min(MARGIN_S, max(0.0, call.deadline - now) / 4)


def too_late(client: Client | None) -> Refused:
    """What is said then. ``client``: None as long as there is none, because the broker has not let one in."""
    if client is not None and client.is_connected:
        return Refused(Code.PROXY_TIMEOUT, "the broker has not answered within the deadline of the call")
    return Refused(Code.INTERNAL_SERVER_ERROR, "there is no connection to the broker")


class InTime:
    """What is asked of the broker within it ends before the call's deadline, and raises Refused then.

    A request that was written may be carried out all the same: clients that try again have the same message ids.
    """

    __slots__ = ("_client", "_scope")

    def __init__(self, call: Call, client: Client | None) -> None:
        """``client``: see `too_late`."""
        self._client = client
        self._scope = trio.CancelScope(deadline=when_late(call, trio.current_time()))

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught:
            raise too_late(self._client) from None


class BegunInTime(AbstractAsyncContextManager[Client]):
    """A client, begun to be used before the call's deadline: see `InTime`."""

    def __init__(self, using: Use, call: Call) -> None:
        self._using = using
        self._call = call

    async def __aenter__(self) -> Client:
        if (client := self._using.at_once()) is not None:
            return client
        with InTime(self._call, None):
            return await self._using.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._using.__aexit__(kind, error, trace)
