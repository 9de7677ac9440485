"""What becomes of endpoints' messages, as the broker is told it: for lists, pages and figures, which ask the broker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import anyio

from tickwheel import Client
from tickwheel.errors import UnknownFrame
from tickwheel.protocol.endpoint_states import MAX_REASON_CHARS, ToldState
from tickwheel_push.clocks import Clocks
from tickwheel_push.gate import Failing

AGAIN_S: Final = 5.0
"""So often it is told again: the broker forgets it when the connection ends."""


def refused(endpoint: str, reason: str) -> ToldState:
    """Of an endpoint that is not served."""
    return ToldState(endpoint=endpoint, name="not_served", reason=reason[:MAX_REASON_CHARS])


def served(endpoint: str, failing: Failing | None, clocks: Clocks) -> ToldState:
    """Of one that is."""
    if failing is None:
        return ToldState(endpoint=endpoint, name="delivering")
    ahead_s = clocks.wall_s() - clocks.now_s()

    def epoch_ms(moment: float) -> int:
        return max(0, round((moment + ahead_s) * 1_000))

    return ToldState(
        endpoint=endpoint,
        name="failing",
        reason=failing.why,
        since_ms=epoch_ms(failing.since),
        next_ms=0 if failing.next_at is None else epoch_ms(failing.next_at),
    )


class Telling:
    """Tells what has changed at once, and all of it now and then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._told: Sequence[tuple[str, str, str]] = ()
        self._again_at = -math.inf
        self._is_understood = True

    async def tell(self, states: Sequence[ToldState]) -> None:
        """An older broker does not understand it, and need not. Raises TickwheelError."""
        if not self._is_understood or not states:
            return
        now = anyio.current_time()
        # Of two moments that are reckoned from two clocks, milliseconds differ from one look to the next.
        what = [(one.endpoint, one.name, f"{one.reason} {one.next_ms // 1_000}") for one in states]
        if what == self._told and now < self._again_at:
            return
        try:
            await self._client._tell_endpoints(states)
        except UnknownFrame:
            self._is_understood = False
        self._told, self._again_at = what, now + AGAIN_S
