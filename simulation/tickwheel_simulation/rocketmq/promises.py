"""What must hold of what clients of RocketMQ are answered. The oracle sees what the broker gives out; this sees what
reaches a client, and what a gateway does of itself: dead letters, filters, renewals, checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from tickwheel_gateway.wire.handles import decode_receipt
from tickwheel_simulation.oracle import Known, Lease, Message, Violation
from tickwheel_simulation.rocketmq.profile import (
    CHOOSY,
    FIFO,
    GROUPS,
    PUSH,
    RENEW_MAX_MS,
    WANTED_TAGS,
    Profile,
    dead_letters_of,
)
from tickwheel_simulation.scene import STOOD_STILL, Scene

RENEWED = (PUSH, CHOOSY, FIFO)
"""Groups whose leases the gateway renews."""
_RENEWAL_S = 4.0
"""A lease has so long left, at least, when it is renewed."""
_SLOW_PIECE_S, _SLOW_SYNCS_S, _SYNCS = 2.0, 6.0, 2
_GONE_S = 50.0
"""A client that was heard of since is not gone."""


@dataclass(slots=True)
class Said:
    """What a producer has said of a message that it sends."""

    message: Message
    message_id: str
    tag: str
    number: int
    """A property, for filters."""
    began: int = 0
    """When its first send began, and when one was answered: places in one order of all such events."""
    answered: int = 0
    jumps: int = 0
    """How often the clock had been set when it began."""
    commits: bool | None = None
    """Of a transaction: what its producer will decide. None: it is none."""
    decided: bool = False
    """The decision was answered."""
    decisions: int = 0
    """How many were sent. Several may be under way: its producer's own, and the answer of whom a check asked."""
    transaction_id: str = ""
    is_prepared: bool = False
    """The preparation was answered."""
    checks: int = 0


@dataclass(slots=True)
class Seen:
    """What clients of a group had of a message."""

    attempts: dict[int, int] = field(default_factory=dict)
    """By epoch. What was given out first may arrive last."""
    was_forwarded: bool = False
    """A client asked for it to be a dead letter."""
    is_dead: bool = False
    """By its dead letter, which was given out."""
    dead_id: int = 0
    dies_at: int = 0
    """The epoch of the delivery with which the gateway gives it up."""
    jumps: int = 0
    """How often the clock had been set when it was given out last."""
    leased_s: float = math.inf
    """When it was given out last, on trio's clock."""
    after_late: list[int] = field(default_factory=list)
    """Epochs of deliveries before which bytes were late: the one before may be no attempt."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A push consumer has it in its hands."""

    epoch: int
    since_s: float
    since: tuple[object, ...]
    circumstances: Callable[[], tuple[object, ...] | None]
    """What must not change while leases are renewed; None: they need not be."""


@dataclass(slots=True)
class _Events:
    """Puts what happens in one order."""

    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


@dataclass(slots=True)
class Promises:
    """Of one run."""

    scene: Scene
    profile: Profile
    said: dict[str, Said] = field(default_factory=dict)
    """By token."""
    _seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    _claims: dict[tuple[str, str], Claim] = field(default_factory=dict)
    _by_order: dict[tuple[str, str], list[Said]] = field(default_factory=dict)
    _events: _Events = field(default_factory=_Events)

    # -- producers --

    def sending(self, said: Said) -> None:
        """Its first send begins."""
        said.began, said.jumps = self._events.next(), self.scene.clock.jumps
        message = said.message
        self.said[message.token] = said
        if message.order_key is not None and not message.due_ms:
            self._by_order.setdefault((message.topic, message.order_key), []).append(said)

    def answered(self, said: Said) -> None:
        """It was answered OK."""
        said.answered = self._events.next()

    def undecided(self) -> list[Said]:
        """Transactions that were prepared, and not decided."""
        return [one for one in self.said.values() if one.is_prepared and not one.decided]

    # -- what the broker gives out --

    def is_wanted(self, group: str, said: Said) -> bool:
        """Whether the filter of a group lets it through."""
        if group != CHOOSY:
            return True
        return said.number > 3 if self.profile.by_sql else said.tag in WANTED_TAGS

    def leased(self, lease: Lease, attempt: int) -> None:
        """A message leaves the broker for a group."""
        said, oracle = self.said[lease.token], self.scene.oracle
        message, seen = said.message, self._of(lease.token, lease.group)
        if seen.is_dead:
            raise Violation(f"{lease.token} is a dead letter of {lease.group}, and comes again")
        if attempt > lease.epoch:
            raise Violation(
                f"{lease.token} is at attempt {attempt} of {lease.group} with epoch {lease.epoch}"
            )
        self._check_order(said, lease)
        self._check_claim(lease, message)
        seen.jumps = self.scene.clock.jumps
        if self.scene.network.late_until_s >= seen.leased_s:
            seen.after_late.append(lease.epoch)
        seen.leased_s = trio.current_time()
        is_wanted = self.is_wanted(lease.group, said)
        if is_wanted and attempt > self.profile.max_attempts:
            seen.dies_at = lease.epoch
        if seen.dies_at or not is_wanted:
            oracle.acking(message, lease.group, lease.epoch)  # the gateway does, at once

    def _check_order(self, said: Said, lease: Lease) -> None:
        key = said.message.order_key
        if key is None or said.message.due_ms:
            return
        for other in self._by_order.get((lease.topic, key), ()):
            # What is stored when the clock is put back may be in its topic later, when the clock is there again.
            is_before = 0 < other.answered < said.began and other.jumps == self.scene.clock.jumps
            if is_before and not other.message.group(lease.group).leases:
                raise Violation(f"{lease.token} comes before {other.message.token}, which was sent before it")

    def dead_letter(self, topic: str, token: str, message_id: int) -> None:
        """One is given out."""
        (group,) = (one for groups in GROUPS.values() for one in groups if dead_letters_of(one) == topic)
        said = self.said.get(token)
        if said is None:
            raise Violation(f"there is a dead letter of {token}, which was never sent")
        message, seen = said.message, self._of(token, group)
        held = message.group(group)
        if seen.dead_id not in (0, message_id):
            raise Violation(f"{token} is a dead letter of {group} twice: {seen.dead_id} and {message_id}")
        if held.acked is Known.YES and not (seen.is_dead or seen.was_forwarded):
            raise Violation(f"{token} was acked by {group}, and is a dead letter of it")
        if not (seen.dies_at or seen.was_forwarded):
            raise Violation(
                f"{token} is a dead letter of {group} after {held.leases} of {self.profile.max_attempts} attempts"
            )
        seen.is_dead, seen.dead_id = True, message_id
        held.acked = Known.YES

    # -- consumers --

    def _of(self, token: str, group: str) -> Seen:
        return self._seen.setdefault((token, group), Seen())

    def received(self, group: str, message: Any, token: str) -> tuple[Said, int]:
        """A client has it; what its producer said of it, and the epoch of its receipt."""
        said = self.said.get(token)
        system = message.system_properties
        name = f"{token} (group {group})"
        if said is None:
            raise Violation(f"{name} was never sent")
        epoch, attempt = decode_receipt(system.receipt_handle).epoch, system.delivery_attempt
        seen = self._of(token, group)
        if epoch in seen.attempts:
            raise Violation(f"{name} comes twice with epoch {epoch}")
        for other, before in seen.attempts.items():
            is_the_same = before == attempt and self._may_be_no_attempt(seen, other, epoch)
            if (other < epoch) is not (before < attempt) and not is_the_same:
                raise Violation(
                    f"{name} is at attempt {attempt} with epoch {epoch}, and at {before} with {other}"
                )
        if attempt > self.profile.max_attempts:
            raise Violation(f"{name} comes with attempt {attempt} of {self.profile.max_attempts}")
        if not self.is_wanted(group, said):
            raise Violation(f"{name} is not what the filter lets through")
        seen.attempts[epoch] = attempt
        given = (system.message_id, system.tag, system.message_group, message.user_properties["n"])
        wanted = (said.message_id, said.tag, said.message.order_key or "", str(said.number))
        if given != wanted or message.topic.name != said.message.topic:
            raise Violation(f"{name} was sent as {wanted}, and comes as {given} of {message.topic.name}")
        return said, epoch

    def _may_be_no_attempt(self, seen: Seen, *epochs: int) -> bool:
        """Whether the broker may have taken a gateway for standing still between two deliveries, and not counted the
        first of them."""
        is_unsure = any(min(epochs) < one <= max(epochs) for one in seen.after_late)
        return is_unsure or self.scene.counts.get(STOOD_STILL, 0) > 0

    def forwarding(self, token: str, group: str) -> None:
        """A client asks for it to become a dead letter."""
        self._of(token, group).was_forwarded = True

    def forwarded(self, token: str, group: str, epoch: int) -> None:
        """It was answered that it is one."""
        held = self.said[token].message.group(group)
        held.acked, held.acked_epoch = Known.YES, epoch
        self._of(token, group).dies_at = epoch

    def received_dead(self, group: str, message: Any, token: str) -> None:
        """A dead letter of a group has reached a client."""
        said, system = self.said[token], message.system_properties
        told = (system.message_id, system.dead_letter_queue.topic, system.dead_letter_queue.message_id)
        wanted = (said.message_id, said.message.topic, said.message_id)
        if told != wanted:
            raise Violation(f"the dead letter of {token} of {group} is told to be of {told}, not {wanted}")

    # -- renewals --

    def claim(
        self, token: str, group: str, epoch: int, circumstances: Callable[[], tuple[object, ...] | None]
    ) -> None:
        """A push consumer begins to work on it."""
        since = circumstances()
        # A lease that was on its way when the clock was set may be over.
        if since is not None and self._of(token, group).jumps == self.scene.clock.jumps:
            self._claims[token, group] = Claim(epoch, trio.current_time(), since, circumstances)

    def unclaim(self, token: str, group: str) -> None:
        """It is done with it, or gone."""
        self._claims.pop((token, group), None)

    def _check_claim(self, lease: Lease, message: Message) -> None:
        claim = self._claims.pop((lease.token, lease.group), None)
        if claim is None or claim.epoch >= lease.epoch or not self._is_in_time:
            return
        took_s = trio.current_time() - claim.since_s
        is_same = claim.circumstances() == claim.since and took_s < RENEW_MAX_MS / 1_000
        if is_same and not message.is_stray and not self.scene.was_full(claim.since_s):
            raise Violation(
                f"{lease.token} (epoch {lease.epoch}, group {lease.group}) is given to another, while a client has it "
                f"that the gateway knows, for for {took_s:.0f} s"
            )

    @property
    def _is_in_time(self) -> bool:
        profile, faults = self.scene.profile, self.scene.network.faults
        one_way_s = faults.delay_s + (_SLOW_PIECE_S if faults.slow_piece else 0.0)
        is_slow = profile.slow_sync and not self.scene.is_calm
        syncs_s = _SLOW_SYNCS_S if is_slow else _SYNCS * profile.sync_delay_s
        return 2 * one_way_s + syncs_s < _RENEWAL_S and not self.scene.network.is_unheard

    # -- transactions --

    def checked(self, token: str) -> Said | None:
        """A producer is asked what becomes of it. None: it does not know of it."""
        said = self.said.get(token)
        if said is None or said.commits is None:
            raise Violation(f"a producer is asked about {token}, which was not prepared")
        said.checks += 1
        return said

    def check_dead(self) -> None:
        """At the end: what was given up is a dead letter."""
        for (token, group), seen in self._seen.items():
            held = self.said[token].message.group(group)
            is_acked = held.acked is Known.YES and not seen.was_forwarded
            if seen.dies_at in held.left and not (seen.is_dead or is_acked):
                raise Violation(f"{token} was given up by {group}, and is no dead letter of it")

    def check_decided(self) -> None:
        """At the end: whoever did not decide was asked."""
        left = self.undecided()
        if left:
            names = [f"{one.message.token} ({one.checks} checks)" for one in left[:5]]
            raise Violation(f"transactions were never decided: {names} ({len(left)})")
