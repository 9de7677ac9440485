"""The deadline of a call: what the broker has not answered by then is refused, as long as there is time to say so."""

from __future__ import annotations

from types import TracebackType
from typing import Final

import trio

from tickwheel import Client
from tickwheel_gateway.transport.call import Call
from tickwheel_gateway.wire.codes import Code, Refused

MARGIN_S: Final = 0.25
"""So long before the deadline there is an answer. Of less time that is left, a quarter."""


class InTime:
    """What is asked of the broker within it ends before the call's deadline, and raises Refused then.

    A request that was written may be carried out all the same: clients that try again have the same message ids.
    """

    __slots__ = ("_client", "_scope")

    def __init__(self, call: Call, client: Client | None) -> None:
        """``client``: None as long as there is none, because the broker has not let one in."""
        self._client = client
        left_s = max(0.0, call.deadline - trio.current_time())
        self._scope = trio.CancelScope(deadline=call.deadline - min(MARGIN_S, left_s / 4))

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        is_caught = self._scope.__exit__(kind, error, trace)
        if not self._scope.cancelled_caught:
            return is_caught
        if self._client is not None and self._client.is_connected:
            raise Refused(
                Code.PROXY_TIMEOUT, "the broker has not answered within the deadline of the call"
            ) from None
        raise Refused(Code.INTERNAL_SERVER_ERROR, "there is no connection to the broker") from None
