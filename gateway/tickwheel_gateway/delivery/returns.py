"""What no client takes is given back to the broker. The log tells how many messages were not, and why: those come again
when their leases end, unless they are settled already.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

import trio

from tickwheel import ReceiptResult, TickwheelError


async def give_back(
    log: logging.Logger,
    count: int,
    within_s: float,
    ask: Callable[[], Awaitable[Collection[ReceiptResult]]],
) -> None:
    """Asks the broker to take ``count`` messages back, for ``within_s`` seconds, also where the caller is cancelled."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + within_s) as scope:
        try:
            others = Counter(result for result in await ask() if result is not ReceiptResult.RETURNED)
        except TickwheelError as error:
            log.warning("%d messages could not be given back: %s", count, error)
            return
        if others:
            why = ", ".join(f"{result} ({number})" for result, number in others.items())
            log.info("%d of %d messages were not given back: %s", others.total(), count, why)
    if scope.cancelled_caught:
        log.warning("%d messages could not be given back: no answer within %g s", count, within_s)
