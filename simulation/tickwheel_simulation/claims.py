"""Who is handling what: while a client lives and stays connected, a message that it handles is given to no other.

That is so as long as network and disk are not too slow for renewals. Whatever else may end a lease excuses it:
another connection or broker, a clock that was set, a full disk, other settings, somebody who asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from tickwheel_simulation.oracle import Lease, Message, Violation
from tickwheel_simulation.scene import Scene

if TYPE_CHECKING:
    from tickwheel import Client

_SLOW_PIECE_S = 2.0
_SLOW_SYNC_S = 3.0
_SYNCS = 2
"""A delivery waits for the sync that is on its way, and for its own; its lease runs meanwhile."""
_PART_OF_LEASE = 0.4


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What must not change while a lease is renewed."""

    lives: int
    jumps: int
    settings: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A message in a handler's hands. `link`: over which connection its leases are renewed."""

    epoch: int
    client: Client
    link: object


class Claims:
    """All that is being handled."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._claims: dict[tuple[str, str], Claim] = {}
        self._leases: dict[tuple[str, str], tuple[int, float, Circumstances]] = {}
        self.settings = 0
        """How often settings were changed."""

    def _now(self) -> Circumstances:
        return Circumstances(self._scene.lives, self._scene.clock.jumps, self.settings)

    @property
    def _is_in_time(self) -> bool:
        """Whether every renewal arrives before its lease ends."""
        if self._scene.is_shared and not self._scene.is_calm:
            return False  # an append may take any time
        profile, faults = self._scene.profile, self._scene.network.faults
        one_way_s = faults.delay_s + (_SLOW_PIECE_S if faults.slow_piece else 0.0)
        is_slow = profile.slow_sync and not self._scene.is_calm
        syncs_s = _SYNCS * (_SLOW_SYNC_S if is_slow else profile.sync_delay_s)
        return 2 * one_way_s + syncs_s < _PART_OF_LEASE * profile.ack_wait_ms / 1_000

    @staticmethod
    def link_of(client: Client) -> object:
        """Over which connection the client renews leases now; None: over none."""
        session = client._running
        return None if session is None else session.link

    def begin(self, client: Client, link: object, message: Message, group: str, epoch: int) -> None:
        """A handler has it. `link`: that of the client when it took the message; without a connection since, its lease
        may have ended."""
        if link is not None and link is self.link_of(client):
            self._claims[message.token, group] = Claim(epoch, client, link)

    def end(self, message: Message, group: str) -> None:
        """It is done with it, in whatever way."""
        self._claims.pop((message.token, group), None)

    def leased(self, lease: Lease, message: Message) -> None:
        """It leaves the broker for a consumer."""
        key = lease.token, lease.group
        claim, before = self._claims.get(key), self._leases.get(key)
        now = self._now()
        self._leases[key] = lease.epoch, trio.current_time(), now
        if claim is None or before is None or not self._is_in_time:
            return
        epoch, since_s, then = before
        is_same = self.link_of(claim.client) is claim.link and then == now and claim.epoch == epoch
        held = message.group(lease.group)
        is_asked_for = message.is_stray or held.was_redelivered or message.is_stopped
        if (
            is_same
            and not is_asked_for
            and not self._scene.network.is_unheard
            and not self._scene.was_full(since_s)
        ):
            raise Violation(
                f"{lease.token} (epoch {lease.epoch}, group {lease.group}) is given to another, while a client that is "
                f"connected handles it"
            )
