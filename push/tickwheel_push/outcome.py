"""What becomes of a message by what its endpoint answered: the table of docs/how-to/push.md.

Only an answer 2xx acks. Everything else is tried again, at times that the broker keeps; after the last of them the
message is a dead letter that says what was answered.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum
from typing import Final

from tickwheel.protocol.units import parse_duration_ms
from tickwheel_push.http.answer import Answer, Result

LEASE_HEADER: Final = "tickwheel-lease"
MOST_RETRY_AFTER_MS: Final = 24 * 3_600_000
MOST_LEASE_MS: Final = 24 * 3_600_000
JITTER: Final = 0.1
"""A delay is longer by up to this part of it, so that what failed together does not come back together."""

MAX_WHY_CHARS: Final = 200
_STATUS: Final = re.compile(r"HTTP \d{3}\b")

_BUSY: Final = frozenset({429, 502, 503, 504})
"""These mean the endpoint, not the message: it is left alone for a while."""
_GONE: Final = 410


class Kind(StrEnum):
    """What is done with the message."""

    DELIVERED = "delivered"
    HELD = "held"
    RETRY = "retry"
    DEAD = "dead"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is done with the message, and with its endpoint."""

    kind: Kind
    delay_ms: int = 0
    """RETRY: after so long; HELD: for so long."""
    error: str = ""
    is_success: bool = False
    """For the circuit breaker."""
    pauses: bool = False
    """Whether the endpoint asked to be left alone, for ``pause_ms``, or for as long as we think right."""
    pause_ms: int | None = None

    @property
    def why(self) -> str:
        """Shortly: the status without what else was answered, or why there was no answer.

        >>> Outcome(Kind.RETRY, error="HTTP 503 come back later").why, Outcome(Kind.RETRY, error="timeout").why
        ('HTTP 503', 'timeout')
        """
        status = _STATUS.match(self.error)
        return self.error[:MAX_WHY_CHARS] if status is None else status[0]


@dataclass(frozen=True, slots=True)
class Rules:
    """What an endpoint says about its answers."""

    retry_delays_ms: Sequence[int]
    give_up_on: Collection[int] = ()
    may_hold: bool = False
    is_task: bool = False
    """The URL is the message's own: 410 is said of this one, not of the endpoint."""


def outcome_of(result: Result, rules: Rules, attempt: int, now_s: float, chance: float) -> Outcome:
    """``attempt``: from 1. ``now_s``: epoch seconds, for dates. ``chance``: from 0 to 1, for the jitter."""
    if not isinstance(result, Answer):
        return _again(result.text, rules, attempt, chance)
    if 200 <= result.status < 300:
        held_ms = _held_ms(result) if rules.may_hold else None
        if (
            held_ms is not None and attempt > len(rules.retry_delays_ms) + 1
        ):  # each hold that ends is an attempt
            return Outcome(Kind.DEAD, error=f"{result.text}: held again, and never settled", is_success=True)
        if held_ms is not None:
            return Outcome(Kind.HELD, held_ms, is_success=True)
        return Outcome(Kind.DELIVERED, is_success=True)
    if result.status == _GONE and not rules.is_task:
        return Outcome(Kind.GONE, error=result.text)
    if result.status in rules.give_up_on or result.status == _GONE:
        # It judged the message, so it works.
        return Outcome(Kind.DEAD, error=result.text, is_success=True)
    if result.status in _BUSY:
        pause_ms = _retry_after_ms(result, now_s)
        again = _again(result.text, rules, attempt, chance, least_ms=pause_ms or 0)
        return Outcome(again.kind, again.delay_ms, again.error, pauses=True, pause_ms=pause_ms)
    return _again(result.text, rules, attempt, chance)


def _again(error: str, rules: Rules, attempt: int, chance: float, least_ms: int = 0) -> Outcome:
    """The next delay, or the end of them."""
    if attempt > len(rules.retry_delays_ms):
        return Outcome(Kind.DEAD, error=error)
    delay_ms = max(rules.retry_delays_ms[attempt - 1], least_ms)
    return Outcome(Kind.RETRY, math.ceil(delay_ms * (1 + JITTER * chance)), error)


def _held_ms(answer: Answer) -> int | None:
    """For how long the endpoint wants to keep the message; None: it does not ask for that, or in no way we know."""
    if answer.status != 202 or LEASE_HEADER not in answer.headers:
        return None
    try:
        lease_ms = parse_duration_ms(answer.headers[LEASE_HEADER])
    except ValueError:
        return None
    return min(lease_ms, MOST_LEASE_MS) if lease_ms > 0 else None


def _retry_after_ms(answer: Answer, now_s: float) -> int | None:
    """``Retry-After``: seconds or a date; at most a day. None: it is not there, or says nothing."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text[:12])
    else:
        try:
            until = email.utils.parsedate_to_datetime(text)
            # A date of HTTP is in UTC, also in the form of asctime, which names no zone.
            wait_s = until.replace(tzinfo=until.tzinfo or UTC).timestamp() - now_s
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0, min(MOST_RETRY_AFTER_MS, math.ceil(wait_s * 1_000)))
