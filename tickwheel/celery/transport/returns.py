"""What a connection gives back, and what it makes dead letters. Nothing waits for the answers, so the log tells of
those that were not asked for; the end of the connection waits for them, as it does for the answers to acks.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Final

from tickwheel.client.calls import RequestCall
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.conversation import Conversation
from tickwheel.protocol.bodies.settling import Nack, NackOk, Return, ReturnOk
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST

logger = logging.getLogger("tickwheel.celery")

_REJECTED: Final = "dead"
_REQUEUED: Final = "nacked"
_UNSEEN: Final = "returned"
_MEANING: Final = {_REJECTED: "rejected", _REQUEUED: "requeued", _UNSEEN: "given back unseen"}
_WARNED_EVERY_S: Final = 10.0


class Returns:
    """All methods are called with the lock of the session."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._untold = 0
        self._next_warning = -math.inf

    def give_back(
        self,
        acks: AckQueue,
        ids: list[int],
        epochs: list[int],
        *,
        seen: bool,
        give_up: bool = False,
        delay_ms: int = 0,
        error: str = "",
    ) -> None:
        """Gives messages back, without waiting for the answer. What was not ``seen`` was no attempt, and neither is
        what comes again after ``delay_ms``; ``give_up``: they become dead letters, because of ``error``. Raises
        ClientClosed."""
        group_id = acks.group_id
        if group_id is None or not ids:
            return
        for at in range(0, len(ids), MAX_IDS_A_REQUEST):
            part = slice(at, at + MAX_IDS_A_REQUEST)
            request = (
                Nack(
                    group_id=group_id,
                    ids=ids[part],
                    epochs=epochs[part],
                    delay_ms=None if give_up else delay_ms,
                    error=error,
                    give_up=give_up,
                    uncounted=bool(delay_ms),
                )
                if seen
                else Return(group_id=group_id, ids=ids[part], epochs=epochs[part])
            )
            call = _ReturnCall(self, acks, request, self._conversation.deadline())
            self._conversation.submit(call)
            self._conversation.see_off(call)

    def came_otherwise(self, acks: AckQueue, count: int, wanted: str, why: str) -> None:
        """The log tells of it; of what follows shortly only the number."""
        self._untold += count
        now = self._conversation.waits.now()
        if now < self._next_warning:
            return
        more = f" (and {self._untold - count:,} more)" if self._untold > count else ""
        logger.warning(
            "%d messages of %r in group %r were not %s: %s%s",
            count,
            acks.topic,
            acks.group_name,
            _MEANING[wanted],
            why,
            more,
        )
        self._untold, self._next_warning = 0, now + _WARNED_EVERY_S

    def tell_rest(self) -> None:
        """The connection ends: the log tells of what it was not yet told."""
        if self._untold:
            logger.warning("%d more messages were not rejected or given back", self._untold)
            self._untold = 0


class _ReturnCall(RequestCall):
    """NACK or RETURN. Its end is looked at, whatever it was: another timeline ends it without an answer."""

    __slots__ = ("_acks", "_count", "_returns", "_wanted")

    def __init__(self, returns: Returns, acks: AckQueue, request: Nack | Return, deadline: float) -> None:
        super().__init__(request, deadline)
        self._returns, self._acks, self._count = returns, acks, len(request.ids)
        self._wanted = _UNSEEN
        if isinstance(request, Nack):
            self._wanted = _REJECTED if request.give_up else _REQUEUED

    def ended(self) -> None:
        if self.error is not None:
            why = f"{self.error.message} What the broker has not heard of comes again when its lease ends."
            self._returns.came_otherwise(self._acks, self._count, self._wanted, why)
            return
        assert isinstance(self.body, NackOk | ReturnOk)
        others = Counter(result for result in self.body.results if result != self._wanted)
        if others:
            why = ", ".join(f"{result} ({count:,})" for result, count in others.items())
            self._returns.came_otherwise(self._acks, others.total(), self._wanted, why)
