"""What a handler can say of a message besides that it is done. Both can be raised, and both can be returned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from tickwheel.client.checks import escaped, text
from tickwheel.client.times import Delay, duration_ms


class Retry(Exception):
    """The message comes again ``after`` a timedelta; None: when the retry policy says so.

    ``reason`` stands in the dead letter that it becomes after its last attempt. ``counted=False``: this was no attempt,
    because the message is not to blame, for example when another service is down. Raises BadTime.
    """

    def __init__(self, after: Delay | None = None, reason: str = "", *, counted: bool = True) -> None:
        super().__init__(reason)
        self.after_ms = None if after is None else duration_ms(after, "after")
        self.reason = _checked(reason)
        self.counted = counted


class GiveUp(Exception):
    """The message becomes a dead letter at once, whatever attempts it has left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = _checked(reason)


def _checked(reason: object) -> str:
    """Raises BadArgument."""
    return text(escaped(reason) if isinstance(reason, str) else reason, "reason")


class Kind(StrEnum):
    """What came of handing a message to its handler."""

    DONE = "done"
    """It is acked."""
    RETRY = "retry"
    """The handler asked for it."""
    FAILED = "failed"
    """The handler raised something else."""
    TIMED_OUT = "timed_out"
    GIVEN_UP = "given_up"
    """It is a dead letter now: the handler, or the retry policy, says so."""
    INTERRUPTED = "interrupted"
    """The worker was stopped, and did not wait for the handler: it was no attempt."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a message."""

    kind: Kind
    after_ms: int | None = None
    """None: the backoff of the topic."""
    reason: str = ""
    counted: bool = True


DONE = Outcome(Kind.DONE)
INTERRUPTED = Outcome(Kind.INTERRUPTED, counted=False)
Said = Retry | GiveUp | None | Literal[True]
"""What a handler may return."""
