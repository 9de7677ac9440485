"""What others have to know of a change: who holds what is no longer theirs, which groups have something to deliver."""

from __future__ import annotations

import msgspec


class Revoked(msgspec.Struct, frozen=True):
    """Messages that a subscription holds and that are no longer its own."""

    holder: int
    ids: list[int]
    epochs: list[int]


class Changes:
    """What has changed since it was last taken."""

    def __init__(self) -> None:
        self.revoked: list[Revoked] = []
        self.woken: set[int] = set()

    def take_revoked(self) -> list[Revoked]:
        """What subscriptions held of the messages that were stopped or called back since the last call."""
        revoked, self.revoked = self.revoked, []
        return revoked

    def take_woken(self) -> set[int]:
        """The groups that got something to deliver by changes since the last call."""
        woken, self.woken = self.woken, set()
        return woken
