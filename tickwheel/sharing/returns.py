"""Give messages that no client takes back to the broker, and log how many were not taken back, and why: such messages
come again when their leases end, unless they are settled already.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import anyio

from tickwheel.client.results import ReceiptResult
from tickwheel.errors import TickwheelError

GIVE_BACK_S: Final = 5.0
_TAKEN: Final = (ReceiptResult.RETURNED, ReceiptResult.NACKED, ReceiptResult.DEAD)


async def give_back(
    log: logging.Logger,
    count: int,
    topic: str,
    ask: Callable[[], Awaitable[Collection[ReceiptResult]]],
    *,
    within_s: float = GIVE_BACK_S,
) -> None:
    """Asks the broker to take ``count`` messages of a topic back, for ``within_s`` seconds, also where the caller is
    cancelled. Raises nothing that the broker or the connection raises: the log has it."""
    with anyio.move_on_after(within_s, shield=True) as scope:
        try:
            results = await ask()
        except TickwheelError as error:
            log.warning("%d messages of %r were not given back: %s", count, topic, error)
            return
        log_others(log, topic, "given back", results, _TAKEN)
    if scope.cancelled_caught:
        log.warning("%d messages of %r were not given back within %g s", count, topic, within_s)


def log_others(
    log: logging.Logger,
    topic: str,
    what: str,
    results: Collection[ReceiptResult],
    wanted: Collection[ReceiptResult],
) -> None:
    """Logs the results that are not wanted, if there are any: "2 of 5 messages of 'orders' were not WHAT: stale_receipt
    (2)"."""
    others = Counter(result for result in results if result not in wanted)
    if others:
        why = ", ".join(f"{result} ({number})" for result, number in others.items())
        log.info("%d of %d messages of %r were not %s: %s", others.total(), len(results), topic, what, why)
