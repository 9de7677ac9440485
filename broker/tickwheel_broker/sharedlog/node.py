"""A node of a cluster: one replica of one log. It follows, owns for a time, and follows again, until it ends.

Who is to own the log is said by `Membership`, which may be wrong, late, or say it to several: that costs time, never a
message. What decides is the FENCE: the node that has read its own back, and no later one, is the owner.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Protocol

import trio

from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.errors import first_error
from tickwheel_broker.logs import Sparing, get_logger
from tickwheel_broker.sharedlog.beginning import read_origin
from tickwheel_broker.sharedlog.clock_skew import ClockSkew
from tickwheel_broker.sharedlog.healing import Heal
from tickwheel_broker.sharedlog.known_owner import NOTHING_SAID, Comparison, KnownOwner, OwnWords
from tickwheel_broker.sharedlog.own_number import OwnNumber
from tickwheel_broker.sharedlog.replicator import (
    OWNER_TIMEOUT_S,
    RETRY_S,
    Deposed,
    Replicator,
    Tail,
    append_fence,
)
from tickwheel_broker.sharedlog.shared_log import AppendFailed, OutOfRange, SharedLog, SharedLogUnavailable
from tickwheel_broker.sharedlog.trimming import Trimming
from timerlog.errors import BeingHealed, DiskFull
from timerlog.files.disk import Disk
from timerlog.recovery.checkpoint import Place
from timerlog.replication.follower import Follower, open_follower
from timerlog.replication.genesis import Genesis
from timerlog.replication.origin import Origin
from timerlog.replication.places import Places
from timerlog.replication.record import fence, unpack
from timerlog.replication.rule import Said
from timerlog.settings import StoreSettings
from timerlog.store import Store

_log = get_logger("cluster")
_retries = Sparing(_log)

HOUSEKEEPING_S = 1.0

FRESH_S = 0.01
"""Records for which a reader waited so long have just been written, as far as it can tell."""

FULL_S = 2.0
"""So long a node waits for room on its disk before it looks again."""

REST_S = 1.0
"""So long a node that another one has deposed follows before it fences again: two that both believe that they are
chosen must not depose each other all the time. Each node's rest is longer by its own part of it."""

TWIN_REST_S = 3.0
"""And so long where a process with its own number has: until then it has heard that the other one goes on."""


GIVE_UP_TIMEOUTS = 2
"""A node that is chosen, and was not confirmed for so many timeouts, lets another one be chosen."""

_LOOKS_A_TIMEOUT = 4
"""So often an owner that is not confirmed asks whether there is another one."""

FORGET_TIMEOUTS = 10
"""So many timeouts without an owner a node whose clock differed still stands back, so that another is chosen."""


class Membership(Protocol):
    """Who is to own the log."""

    def joined(self) -> None:
        """This node has followed to the end: it may be chosen."""

    def left(self) -> None:
        """It must not be chosen for now."""

    async def wait_chosen(self) -> None:
        """Return when this node is to own the log."""

    async def wait_not_chosen(self) -> None:
        """Return when it is not, or not any more."""

    async def has_others(self) -> bool:
        """Whether, as far as is known, another node may be chosen beside this one, which may be."""


class Unconfirmed(Exception):
    """This node was chosen, and what it appends does not come to count; another node may be chosen."""


class FellBehind(Exception):
    """What this node would read next was deleted from the shared log."""


class Role(Enum):
    """What a node does."""

    STARTING = "starting"
    FOLLOWER = "follower"
    OWNER = "owner"


Serve = Callable[[Store, Replicator, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Serve clients from a store until the third one returns, then stop in order. Ends with Deposed otherwise."""


class Node:
    """`run` works until cancelled."""

    def __init__(
        self,
        *,
        number: int,
        shared: SharedLog,
        membership: Membership,
        clock: Clock,
        open_replica: Callable[[Origin], Follower],
        open_store: Callable[[Follower], Store],
        serve: Serve,
        own: OwnWords = NOTHING_SAID,
        owner_timeout_s: float = OWNER_TIMEOUT_S,
        kept: Genesis | None = None,
    ) -> None:
        """`own`: what it says of itself, for the others. `kept`: see `read_origin`."""
        self._kept = kept
        self.known_owner = KnownOwner()
        self.skew = ClockSkew(FORGET_TIMEOUTS * owner_timeout_s)
        self._own_words, self._comparison = own, Comparison(own)
        self._owner_timeout_s = owner_timeout_s
        self._own_number = OwnNumber(number, own.process)
        self._number, self._shared, self._membership, self._clock = number, shared, membership, clock
        self._open_replica, self._open_store, self._serve = open_replica, open_store, serve
        self.on_disk_full: Callable[[], object] = lambda: None
        """Called when there was no room for what it has read."""
        self.on_given_up: Callable[[], object] = lambda: None
        """Called when it has left, because it was chosen and could not own the log."""
        self.role = Role.STARTING
        self._rests_until_s = 0.0
        self._origin: Origin | None = None

    async def run(self) -> None:
        """Follow and own, in turns. Raises NodeNumberTaken."""
        while True:
            follower = await self._open()
            is_owner = is_full = has_given_up = False
            try:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(Heal(self._shared, follower).run)
                        await self._follow(follower)
                        is_owner = await self._take_over(follower)
                        nursery.cancel_scope.cancel()
                except* FellBehind:
                    _log.warning("this replica is too old, and is made anew", offset=follower.offset)
                except* Unconfirmed as group:
                    _log.error("lets another node be chosen", reason=str(first_error(group)))
                    has_given_up = True
                except* DiskFull as group:
                    _log.error("the disk of this replica is full", reason=str(first_error(group)))
                    self.on_disk_full()
                    is_full = True
            except BaseException:
                follower.close()
                raise
            if is_owner:
                has_given_up = await self._own(follower)
            else:
                follower.close()
                self._leave()
                self._rest()
            if has_given_up:
                self.on_given_up()
            if is_full:
                await trio.sleep(FULL_S)

    async def _open(self) -> Follower:
        while True:
            origin = await self._find_origin()
            try:
                return self._open_replica(origin)
            except DiskFull as error:
                _log.error("this replica cannot be opened, its disk is full", reason=str(error))
                self.on_disk_full()
                await trio.sleep(FULL_S)

    def _leave(self) -> None:
        """Until this node has followed to the end again it must not be chosen, and may take long."""
        self.role = Role.STARTING
        self._membership.left()

    def _rest(self, rest_s: float = REST_S) -> None:
        self._rests_until_s = trio.current_time() + rest_s * (1 + self._number % 8 / 8)

    # -- following --

    async def _find_origin(self) -> Origin:
        """Where the shared log begins now."""
        while True:
            try:
                first = await self._shared.first()
                if self._origin is None or self._origin.first != first:
                    kept = self._kept if self._origin is None else self._origin.genesis
                    self._origin = await read_origin(self._shared, kept)
                return self._origin
            except SharedLogUnavailable as error:
                _retries.warning("the start of the shared log cannot be read", reason=str(error))
                await trio.sleep(RETRY_S)

    async def _follow(self, follower: Follower) -> None:
        """Until this node is chosen and has followed to the end."""
        end = await self._known_end()
        self._own_number.begin(end)
        await self._read_to(follower, end)
        self.role = Role.FOLLOWER
        self._membership.joined()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_house, follower)
            nursery.start_soon(self._read_on, follower)
            await trio.sleep_until(self._rests_until_s)
            await self._membership.wait_chosen()
            nursery.cancel_scope.cancel()

    async def _known_end(self) -> int:
        while True:
            try:
                return await self._shared.end()
            except SharedLogUnavailable as error:
                _retries.warning("the shared log cannot be reached", reason=str(error))
                await trio.sleep(RETRY_S)

    async def _read_to(self, follower: Follower, end: int) -> None:
        while follower.offset + 1 < end:
            await self._read_some(follower, lambda: False)

    async def _read_on(self, follower: Follower) -> None:
        while True:
            await self._read_some(follower, lambda: False)

    async def _read_some(self, follower: Follower, is_enough: Callable[[], bool]) -> None:
        """What is there next, but nothing more once it `is_enough`. Raises FellBehind, NodeNumberTaken."""
        await _link(follower)  # who read before may have been cancelled in the middle of it
        began_s = trio.current_time()
        try:
            records = await self._shared.read(follower.offset + 1)
        except SharedLogUnavailable as error:
            if isinstance(error, OutOfRange) and error.is_deleted:
                raise FellBehind from error
            _retries.warning("the shared log cannot be read", reason=str(error))
            await trio.sleep(RETRY_S)
            return
        is_fresh = trio.current_time() - began_s >= FRESH_S
        for stored in records:
            try:
                said = follower.take(stored.offset, stored.record)
            except BeingHealed as error:
                _log.warning("this replica waits until it is whole", reason=str(error))
                await trio.sleep(RETRY_S)
                return
            await _link(follower)
            found = unpack(stored.record)
            if found is not None and said is not Said.PASSED_OVER:
                head, body = found
                if is_fresh and head.node != self._number:
                    self.skew.hear(head, self._clock.now_ms())
                is_fresh = False  # those behind it may have lain there while it was taken
                self.known_owner.hear(said, body)
                self._own_number.hear(stored.offset, said, head, self.known_owner)
            if is_enough():
                return

    async def _keep_house(self, follower: Follower) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            follower.housekeeping(self._clock.now_ms())
            self._comparison.look(self.known_owner)
            while follower.sweep_step() or follower.trim_step():
                await trio.lowlevel.checkpoint()

    # -- owning --

    async def _take_over(self, follower: Follower) -> bool:
        """Fence, and read up to that: whether this node owns the log then. Raises Unconfirmed."""
        began_s, is_owner = trio.current_time(), False

        async def stop() -> None:
            await self._membership.wait_not_chosen()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_confirmation, lambda: began_s)
            nursery.start_soon(stop)
            is_owner = await self._fence(follower)
            nursery.cancel_scope.cancel()
        return is_owner

    async def _watch_confirmation(self, confirmed_s: Callable[[], float]) -> None:
        """Raises Unconfirmed once nothing was confirmed for long, and another node could be chosen all the while: where
        Kafka itself was away it need not be."""
        timeout_s, others_from_s = self._owner_timeout_s, math.inf
        while True:
            await trio.sleep(timeout_s / _LOOKS_A_TIMEOUT)
            if trio.current_time() - confirmed_s() < timeout_s or not await self._membership.has_others():
                others_from_s = math.inf
                continue
            now_s = trio.current_time()
            others_from_s = min(others_from_s, now_s)
            silent_s = now_s - confirmed_s()
            if silent_s >= GIVE_UP_TIMEOUTS * timeout_s and now_s - others_from_s >= timeout_s:
                raise Unconfirmed(f"the shared log has confirmed nothing to this node for {silent_s:.1f} s")

    async def _fence(self, follower: Follower) -> bool:
        reader, number = follower.reader, self._number
        term = reader.state.term + 1
        while True:
            try:
                record = fence(number, term, self._clock.now_ms(), self._own_words.now())
                await append_fence(self._shared, record, follower.offset)
                break
            except AppendFailed as error:  # if another node has fenced meanwhile, this term does not count
                _retries.warning("a fence failed", reason=str(error), term=term)
                await trio.sleep(RETRY_S)
        while reader.state.term < term:
            await self._read_some(follower, lambda: reader.state.term >= term)
        is_ours = self.known_owner.process == self._own_words.process
        is_owner = is_ours and (reader.state.term, reader.state.node) == (term, number)
        _log.info("fenced", term=term, is_owner=is_owner)
        return is_owner

    async def _own(self, follower: Follower) -> bool:
        """Whether it was given up, because nothing was confirmed."""
        began_s, has_given_up = trio.current_time(), False
        places = follower.places
        tail = Tail(
            shared=self._shared,
            reader=follower.reader,
            offset=follower.offset,
            node=self._number,
            places=places,
        )
        store = self._open_store(follower)
        replicator = Replicator(
            shared=self._shared,
            tail=tail,
            node=self._number,
            now_ms=self._clock.now_ms,
            owner_timeout_s=self._owner_timeout_s,
            own=self._own_words,
        )
        self.role = Role.OWNER
        self.skew.reset()
        place: Place | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(replicator.run)
                nursery.start_soon(self._watch_confirmation, lambda: max(began_s, replicator.confirmed_s))
                nursery.start_soon(Heal(self._shared, follower).run)
                nursery.start_soon(Trimming(self._shared, store.log, places, follower.sweep_step).run)
                await self._serve(store, replicator, self._membership.wait_not_chosen)
                await _commit_rest(store, replicator)
                await tail.wait(lambda: tail.place.end >= store.log.appended_position)
                place = tail.place
                nursery.cancel_scope.cancel()
        except* Deposed as group:
            _log.warning("deposed", reason=str(first_error(group)))
            self._rest(TWIN_REST_S if tail.has_twin else REST_S)
        except* Unconfirmed as group:
            _log.error("lets another node be chosen", reason=str(first_error(group)))
            has_given_up = True
        finally:
            self._leave()
            try:
                if place is not None:
                    _keep_place(store, places, place)
            finally:
                store.close(clean=False)
        return has_given_up


async def _link(follower: Follower) -> None:
    """Let the follower end what its last record asks for, and others have their turns."""
    while follower.is_linking:
        follower.work()
        await trio.lowlevel.checkpoint()


async def _commit_rest(store: Store, replicator: Replicator) -> None:
    """What was appended while the last answers left, as by connections that ended: otherwise this replica would wait
    without end for what is in no shared log. Raises Deposed."""
    while (ticket := store.begin_sync()) is not None:
        await replicator.commit(ticket)
        store.finish_sync(ticket)


def _keep_place(store: Store, places: Places, place: Place) -> None:
    """The replica goes on where the owner was: all that its tables hold counts. While a bulk job is being taken in they
    hold what does not count yet, or not all that counts: then the replica begins at an earlier place."""
    if not store.adopter.is_idle:
        return
    store.checkpoints.place, store.checkpoints.trimmed = place, store.applier.trimmed
    with suppress(DiskFull):  # then the next start reads a little more
        store.checkpoints.save(clean=False, durable=False)
    places.note(place)


def replica_opener(
    directory: Path | None,
    disk: Disk,
    settings: StoreSettings,
    clock: Clock,
) -> Callable[[Origin], Follower]:
    """Opens a node's directory, again and again."""
    return lambda origin: open_follower(directory, disk, settings, origin, clock.now_ms())
