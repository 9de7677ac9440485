"""What a worker counts, for who watches it."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from tickwheel.client.results import ReceiptResult
from tickwheel.worker.outcomes import Kind, Outcome

_log = logging.getLogger("tickwheel.worker")


@dataclass(slots=True)
class Tally:
    """Of one handler, since it began."""

    topic: str
    group: str
    concurrency: int
    running: int = 0
    """Messages that are being handled now."""
    outcomes: Counter[Kind] = field(default_factory=Counter)
    handled_s: float = 0.0
    """How long handlers were at work, together."""
    unsettled: int = 0
    """Messages whose outcome could not be told to the broker, or counted no more: they come again."""

    def told(self, message_id: int, outcome: Outcome, result: ReceiptResult) -> None:
        """The broker's answer to a message that is given back. The log has what came otherwise than asked for."""
        if result is ReceiptResult.DEAD:
            return
        if result is not ReceiptResult.NACKED:
            why = f"it was no longer this worker's: {result}"
        elif outcome.kind is Kind.GIVEN_UP:
            why = "it could not become a dead letter, and comes again"
        else:
            return
        self.unsettled += 1
        _log.warning("message %d of %r is %s, but %s", message_id, self.topic, outcome.kind, why)

    def untold(self, message_id: int, outcome: Outcome, why: object) -> None:
        """The broker does not know what became of a message."""
        self.unsettled += 1
        _log.warning(
            "message %d of %r is %s, and the broker could not be told (%s): it comes again when its lease ends",
            message_id,
            self.topic,
            outcome.kind,
            why,
        )
