"""What a change means for groups, subscriptions and the wheel's next event: one answer for all calls of the engine.

Calls collect it in ``Changes`` while they work, because one that raises may have done a part before; the caller of the
engine takes it after each call, or after several, and acts on it. Nothing is collected a message at a time.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import msgspec


class Revoked(msgspec.Struct, frozen=True):
    """Messages that a subscription holds and that are no longer its own."""

    holder: int
    ids: list[int]
    epochs: list[int]

    def __post_init__(self) -> None:
        assert self.holder, "who loses messages has a number"
        assert len(self.ids) == len(self.epochs) > 0, "each message that is lost has an epoch"


@dataclass(frozen=True, slots=True)
class Changed:
    """``woken``: groups that have something to deliver, or room for it; ``revoked``: what subscriptions must be told
    of; ``timers_moved``: the wheel's next event may be earlier; ``lapsed``: numbers of subscriptions that have let
    leases end."""

    woken: Set[int]
    revoked: Sequence[Revoked]
    timers_moved: bool
    lapsed: Set[int]


class Changes:
    """What has changed since it was last taken."""

    def __init__(self) -> None:
        self.woken: set[int] = set()
        self.revoked: list[Revoked] = []
        self.timers_moved = False
        self.lapsed: set[int] = set()

    def take(self) -> Changed:
        """All of it, once."""
        changed = Changed(self.woken, self.revoked, self.timers_moved, self.lapsed)
        # The caller keeps what it was given; most calls give nothing.
        if self.woken:
            self.woken = set()
        if self.revoked:
            self.revoked = []
        if self.lapsed:
            self.lapsed = set()
        self.timers_moved = False
        return changed
