"""The five services that carry a message from the log to its topic at its time.

    EnqueueGet ──pending──▶ EnqueuePut ──due──▶ DequeueGetMessage ──ready──▶ DequeuePutMessage ──▶ subscribers
                                 │               ▲
                               wheel ─▶ DequeueGet

Each is one task; the arrows are bounded memory channels of batches. A batch is thousands of messages in
numpy arrays, so Python runs a few times a batch. When a channel is full, the service before it waits; when
EnqueueGet waits, the backlog grows, and when the backlog is over its limit, producers wait: memory stays
bounded from end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import trio

from broker import logs
from broker.clock import Clock
from broker.wake import Bell
from timerlog.errors import DiskFull
from timerlog.services import DueBatch, ReadyBatch

if TYPE_CHECKING:
    from timerlog.store import Store

T = TypeVar("T")

BATCH_MESSAGES = 4_096
"""Messages a turn: some hundred microseconds of work, so that no other task waits long."""

CHANNEL_BATCHES = 4
_RETRY_S = 0.5

_log = logs.get_logger("services")


class Services:
    """The five tasks and the channels between them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        max_backlog_messages: int,
        wake_groups: Callable[[Iterable[int]], None],
        mark_dirty: Callable[[], None],
    ) -> None:
        """`wake_groups` gets the ids of groups that have new work, `mark_dirty` says that records were
        staged.
        """
        self._store = store
        self._clock = clock
        self._max_backlog_messages = max_backlog_messages
        self._wake_groups = wake_groups
        self._mark_dirty = mark_dirty
        self._alarm = clock.alarm()
        self._wakes_at_ms: int | None = None
        self._durable_moved = Bell()
        self._durable_moved.ring()
        self._backlog_fell = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Run all five until cancelled."""
        pending_in, pending_out = trio.open_memory_channel[DueBatch](CHANNEL_BATCHES)
        due_in, due_out = trio.open_memory_channel[DueBatch](CHANNEL_BATCHES)
        ready_in, ready_out = trio.open_memory_channel[ReadyBatch](CHANNEL_BATCHES)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._enqueue_get, pending_in)
                nursery.start_soon(self._enqueue_put, pending_out, due_in)
                nursery.start_soon(self._dequeue_get, due_in)
                nursery.start_soon(self._dequeue_get_message, due_out, ready_in)
                nursery.start_soon(self._dequeue_put_message, ready_out)
        finally:
            self._alarm.close()

    def durable_moved(self) -> None:
        """The log is durable further than before: there may be messages to enqueue."""
        self._durable_moved.ring()

    def timers_changed(self) -> None:
        """Something was put on the wheel: whoever waits for the next event is woken if that comes earlier now."""
        next_ms = self._store.next_wakeup_ms()
        if next_ms is not None and (self._wakes_at_ms is None or next_ms < self._wakes_at_ms):
            self._alarm.ring()

    @property
    def is_behind(self) -> bool:
        """Whether so much is accepted and not yet on its way that producers must wait."""
        return self._store.pending_enqueue > self._max_backlog_messages

    async def wait_for_room(self) -> None:
        """Return when the backlog is below its limit: the brake that producers feel."""
        while self.is_behind:
            await self._backlog_fell.park()

    async def _enqueue_get(self, pending: trio.MemorySendChannel[DueBatch]) -> None:
        store = self._store
        while True:
            await self._durable_moved.wait()
            while (batch := store.enqueue_get(BATCH_MESSAGES)) is not None:
                await pending.send(batch)
                if not self.is_behind:
                    self._backlog_fell.unpark_all()

    async def _enqueue_put(
        self, pending: trio.MemoryReceiveChannel[DueBatch], due: trio.MemorySendChannel[DueBatch]
    ) -> None:
        store, clock = self._store, self._clock
        async for batch in pending:
            already_due = await self._with_room(lambda: store.enqueue_put(batch, clock.now_ms()))  # noqa: B023
            self.timers_changed()
            if already_due is not None:
                await due.send(already_due)

    async def _dequeue_get(self, due: trio.MemorySendChannel[DueBatch]) -> None:
        store = self._store
        while True:
            batch = store.dequeue_get(self._clock.now_ms(), BATCH_MESSAGES)
            if batch is not None:
                await due.send(batch)
            else:
                self._wakes_at_ms = store.next_wakeup_ms()
                await self._alarm.sleep_until(self._wakes_at_ms)

    async def _dequeue_get_message(
        self, due: trio.MemoryReceiveChannel[DueBatch], ready: trio.MemorySendChannel[ReadyBatch]
    ) -> None:
        async for batch in due:
            looked_up = self._store.dequeue_get_message(batch, self._clock.now_ms())
            if len(looked_up.damaged):
                _log.error("messages are damaged and set aside", count=len(looked_up.damaged))
            await ready.send(looked_up)

    async def _dequeue_put_message(self, ready: trio.MemoryReceiveChannel[ReadyBatch]) -> None:
        store, clock = self._store, self._clock
        async for batch in ready:
            woken = await self._with_room(lambda: store.dequeue_put_message(batch, clock.now_ms()))  # noqa: B023
            self._wake_groups(woken)
            self._mark_dirty()

    async def _with_room(self, step: Callable[[], T]) -> T:
        """Do one step of a service; on a full disk nothing of it happened, so it is tried again until there
        is room.
        """
        while True:
            try:
                return step()
            except DiskFull as error:
                _log.error("the disk is full", reason=str(error), advice=error.advice)
                await trio.sleep(_RETRY_S)
