"""What nobody takes any more is given back to the broker. The log tells how many messages were not, and why: those come
again when their leases end, unless they are settled already.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import anyio

from tickwheel import ReceiptResult
from tickwheel.errors import TickwheelError

GIVE_BACK_S: Final = 5.0
_TAKEN: Final = (ReceiptResult.RETURNED, ReceiptResult.NACKED, ReceiptResult.DEAD)

_log = logging.getLogger("tickwheel.web")


async def give_back(count: int, what: str, ask: Callable[[], Awaitable[Collection[ReceiptResult]]]) -> None:
    """Asks the broker to take ``count`` messages back, for GIVE_BACK_S seconds, also where the caller is cancelled.
    ``what``: whose messages these are, for the log."""
    with anyio.move_on_after(GIVE_BACK_S, shield=True) as scope:
        try:
            others = Counter(result for result in await ask() if result not in _TAKEN)
        except TickwheelError as error:
            _log.info("%d messages of %s were not given back: %s", count, what, error)
            return
        if others:
            why = ", ".join(f"{result} ({number})" for result, number in others.items())
            _log.info("%d of %d messages of %s were not given back: %s", others.total(), count, what, why)
    if scope.cancelled_caught:
        _log.info("%d messages of %s were not given back within %g s", count, what, GIVE_BACK_S)
