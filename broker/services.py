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
from typing import TYPE_CHECKING

import trio

from broker.clock import Clock
from broker.wake import Bell

if TYPE_CHECKING:
    from timerlog.store import DueBatch, PendingBatch, ReadyBatch, Store

BATCH_MESSAGES = 4_096
"""Messages a turn: some hundred microseconds of work, so that no other task waits long."""

CHANNEL_BATCHES = 4


class Services:
    """The five tasks and the channels between them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        max_backlog_bytes: int,
        wake_groups: Callable[[Iterable[int]], None],
        mark_dirty: Callable[[], None],
    ) -> None:
        """`wake_groups` gets the ids of groups that have new work, `mark_dirty` says that records were
        staged.
        """
        self._store = store
        self._clock = clock
        self._max_backlog_bytes = max_backlog_bytes
        self._wake_groups = wake_groups
        self._mark_dirty = mark_dirty
        self._alarm = clock.alarm()
        self._durable_moved = Bell()
        self._durable_moved.ring()
        self._enqueued_position = store.durable_position
        self._backlog_fell = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Run all five until cancelled."""
        pending_in, pending_out = trio.open_memory_channel["PendingBatch"](CHANNEL_BATCHES)
        due_in, due_out = trio.open_memory_channel["DueBatch"](CHANNEL_BATCHES)
        ready_in, ready_out = trio.open_memory_channel["ReadyBatch"](CHANNEL_BATCHES)
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
        """Something was put on the wheel or rescheduled by a request: look at the time of the next one
        again.
        """
        self._alarm.ring()

    @property
    def backlog_bytes(self) -> int:
        """Bytes of log that are accepted but not yet on the wheel or in a topic."""
        return self._store.appended_position - self._enqueued_position

    @property
    def is_behind(self) -> bool:
        """Whether producers must wait."""
        return self.backlog_bytes > self._max_backlog_bytes

    async def wait_for_room(self) -> None:
        """Return when the backlog is below its limit: the brake that producers feel."""
        while self.is_behind:
            await self._backlog_fell.park()

    async def _enqueue_get(self, pending: trio.MemorySendChannel[PendingBatch]) -> None:
        while True:
            await self._durable_moved.wait()
            durable_position = self._store.durable_position
            while (batch := self._store.enqueue_get(BATCH_MESSAGES)) is not None:
                await pending.send(batch)
            self._enqueued_position = durable_position
            self._backlog_fell.unpark_all()

    async def _enqueue_put(
        self, pending: trio.MemoryReceiveChannel[PendingBatch], due: trio.MemorySendChannel[DueBatch]
    ) -> None:
        store = self._store
        async for batch in pending:
            already_due = store.enqueue_put(batch, self._clock.now_ms())
            self._alarm.ring()
            if already_due is not None:
                await due.send(already_due)

    async def _dequeue_get(self, due: trio.MemorySendChannel[DueBatch]) -> None:
        store = self._store
        while True:
            batch = store.dequeue_get(self._clock.now_ms(), BATCH_MESSAGES)
            if batch is not None:
                await due.send(batch)
            else:
                await self._alarm.sleep_until(store.next_wakeup_ms())

    async def _dequeue_get_message(
        self, due: trio.MemoryReceiveChannel[DueBatch], ready: trio.MemorySendChannel[ReadyBatch]
    ) -> None:
        async for batch in due:
            await ready.send(self._store.dequeue_get_message(batch, self._clock.now_ms()))

    async def _dequeue_put_message(self, ready: trio.MemoryReceiveChannel[ReadyBatch]) -> None:
        async for batch in ready:
            self._wake_groups(self._store.dequeue_put_message(batch, self._clock.now_ms()))
            self._mark_dirty()
