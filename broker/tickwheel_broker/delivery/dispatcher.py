"""Delivery: one dispatcher task for each group that has subscribers.

A dispatcher goes round its subscriptions. One that has free credit, and is not behind with reading, gets one
complete DELIVER frame in each round; the engine leases the messages in the same call. A subscriber that is
slow or has no credit is passed over: it delays neither the others nor the producers. Leases that end come
back by way of the wheel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.delivery.rate import RateLimiter
from tickwheel_broker.delivery.takers import Subscription, Taker, count_of
from tickwheel_broker.errors import advice_for
from timerlog.engine.deliver import Deliver as Leases
from timerlog.engine.deliver import NoFrame
from timerlog.engine.groups import Holders
from timerlog.errors import BeingHealed, DiskFull

TURN_FRAMES = 64
TURN_BYTES = 1 << 19
"""A turn ends after so many frames, or bytes of them: the other tasks come in between, however many subscribers a group
has. A frame has up to a MiB."""
_RETRY_S = 0.5
_HEAL_S = 0.1
"""How long a group waits before it looks again at a record that is fetched anew from another node."""

_log = logs.get_logger("delivery")

Deliver = Callable[[Taker, bytes], None]


class Dispatcher:
    """Hands the ready messages of one group to its subscriptions, round robin."""

    def __init__(
        self,
        *,
        leases: Leases,
        holders: Holders,
        clock: Clock,
        group_id: int,
        deliver: Deliver,
        limiter: Callable[[float], RateLimiter],
    ) -> None:
        self._leases = leases
        """Give messages out."""
        self._holders = holders
        self._clock = clock
        self._group_id = group_id
        self._deliver = deliver
        """Takes each frame."""
        self._limiter = limiter
        """Gives the bucket, for the rate that holds now, which this group shares with its other shards."""
        self._rotation: deque[Taker] = deque()
        self._bell = Bell()
        self._pause_over = Bell()
        self._is_stopped = False
        self._pause_s = 0.0

    @property
    def subscribers(self) -> int:
        """How many subscriptions are served."""
        return len(self._rotation)

    def wake(self) -> None:
        """There may be something to hand out: new work, new credit, room in a queue. It does not cut a pause short."""
        self._bell.ring()

    def settings_changed(self) -> None:
        """There may be something to hand out, also before a pause is over that was made for what held before."""
        self._bell.ring()
        self._pause_over.ring()

    def add(self, taker: Taker) -> None:
        """A subscription joins; it is the next to be served. A request comes after all others: each is a new one."""
        if isinstance(taker, Subscription):
            self._rotation.appendleft(taker)
        else:
            self._rotation.append(taker)
        self._bell.ring()

    def remove(self, taker: Taker) -> None:
        """One leaves."""
        self._rotation.remove(taker)
        self._bell.ring()
        if not self._rotation:
            self._pause_over.ring()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True
        self._bell.ring()
        self._pause_over.ring()

    async def run(self) -> None:
        """Dispatch until the last subscription has left."""
        while self._rotation and not self._is_stopped:
            self._pause_s = 0.0
            if self.turn():
                await trio.lowlevel.checkpoint()
            elif self._pause_s:
                with trio.move_on_after(self._pause_s):
                    await self._pause_over.wait()
            else:
                await self._bell.wait()

    def turn(self) -> bool:
        """Offer each subscription one frame, as far as a turn goes. True if it is worth to come again at once."""
        limits = self._leases.limits(self._group_id)
        if limits.is_paused:
            return False
        limiter = self._limiter(limits.rate) if limits.rate else None
        frames = size_bytes = 0
        for _ in range(len(self._rotation)):
            taker = self._rotation[0]
            room = min(self._room(taker), limits.batch_size, limits.cache_room)
            if limiter is not None and room > 0:
                room = min(room, limiter.allowed(trio.current_time()))
                if room == 0:
                    self._pause_s = limiter.wait_s()
                    break
            if room > 0:
                frame = self._fetch(taker, room)
                if frame is NoFrame.NOTHING:
                    # Not this one's fault: it stays first, so that single messages go round as well.
                    break
                frames += 1
                # To have passed over many messages takes as long as to make a large frame.
                size_bytes += len(frame) if frame else TURN_BYTES
                if frame:
                    count = count_of(frame)
                    limits.cache_room -= count
                    if limiter is not None:
                        limiter.spend(count)
                    self._deliver(taker, frame)
            self._rotation.rotate(-1)
            if frames >= TURN_FRAMES or size_bytes >= TURN_BYTES:
                break
        return frames > 0

    def _room(self, taker: Taker) -> int:
        """How many messages one can take now."""
        if taker.outgoing.is_full:
            taker.outgoing.when_low(self.wake)
            return 0
        return taker.room(self._holders)

    def _fetch(self, taker: Taker, room: int) -> bytes | NoFrame:
        try:
            return taker.fetch(self._leases, self._group_id, room, self._clock.now_ms())
        except DiskFull as error:
            _log.error("cannot deliver: the disk is full", group_id=self._group_id, advice=advice_for(error))
            self._pause_s = _RETRY_S
        except BeingHealed as error:
            _log.warning("cannot deliver: a record is damaged", group_id=self._group_id, reason=str(error))
            self._pause_s = _HEAL_S
        return NoFrame.NOTHING
