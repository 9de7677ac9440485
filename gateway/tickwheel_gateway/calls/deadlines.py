"""The deadline of a call: what the broker has not answered by then is refused, as long as there is time to say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.wire.codes import Code, Refused

MARGIN_S: Final = 0.25
"""So long before the deadline there is an answer. Of less time that is left, a quarter."""


@contextmanager
def in_time(asked: Asked) -> Iterator[None]:
    """What is asked of the broker within it ends before the call's deadline, and raises Refused then.

    A request that was written may be carried out all the same: clients that try again have the same message ids.
    """
    left_s = asked.call.deadline - trio.current_time()
    with trio.CancelScope(deadline=asked.call.deadline - min(MARGIN_S, max(0.0, left_s) / 4)) as scope:
        yield
    if not scope.cancelled_caught:
        return
    if asked.client.is_connected:
        raise Refused(Code.PROXY_TIMEOUT, "the broker has not answered within the deadline of the call")
    raise Refused(Code.INTERNAL_SERVER_ERROR, "there is no connection to the broker")
