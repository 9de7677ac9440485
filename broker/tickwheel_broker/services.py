"""The five services that carry a message from the log to its topic at its time.

    EnqueueGet ──pending──▶ EnqueuePut ──due──▶ DequeueGetMessage ──ready──▶ DequeuePutMessage ──▶ subscribers
                                 │               ▲
                               wheel ─▶ DequeueGet

Each is one task; the arrows are bounded memory channels of batches. A batch is thousands of messages in
numpy arrays, so Python runs a few times a batch. When a channel is full, the service before it waits; when
EnqueueGet waits, the backlog grows, and when the backlog is over its limit, producers wait: memory stays
bounded from end to end. A few messages, while nothing else is on its way, need no channel: one task takes them
through all services, and they come as much earlier as the other tasks would have waited for their turn. After a few
messages that had to take the channels, their service waits until they have passed, so that the next ones go straight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from typing import Generic, Protocol, TypeVar

import trio

from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.errors import advice_for
from timerlog.engine.look import Look
from timerlog.errors import DiskFull
from timerlog.services.batches import DueBatch, ReadyBatch
from timerlog.services.dequeue_get import DequeueGet
from timerlog.services.dequeue_get_message import DequeueGetMessage
from timerlog.services.dequeue_put_message import DequeuePutMessage
from timerlog.services.enqueue_get import EnqueueGet
from timerlog.services.enqueue_put import EnqueuePut
from timerlog.wheel.wheel import TimerWheel

T = TypeVar("T")
B = TypeVar("B", bound=Sized)

BATCH_MESSAGES = 4_096
"""Messages a turn: some hundred microseconds of work, so that no other task waits long."""

STRAIGHT_MESSAGES = 64
"""So many may go through all services in one turn."""

CHANNEL_BATCHES = 4
_RETRY_S = 0.5

_log = logs.get_logger("services")


class Queue(Generic[B]):
    """A bounded channel between two services, which can be looked into."""

    def __init__(self, passed: Callable[[], object]) -> None:
        """`passed` is called whenever its consumer is done with a batch."""
        self._tell_passed = passed
        self.batches: deque[B] = deque()
        """Batches that are in it or wait to get in; the first batch stays until its consumer is done with it."""
        self.passed = 0
        """How many batches its consumer is done with."""
        ends: tuple[trio.MemorySendChannel[B], trio.MemoryReceiveChannel[B]]
        ends = trio.open_memory_channel(CHANNEL_BATCHES)
        self._in, self._out = ends

    async def send(self, batch: B) -> None:
        """Put a batch in; wait while the queue is full."""
        self.batches.append(batch)
        await self._in.send(batch)

    def __aiter__(self) -> Queue[B]:
        return self

    async def __anext__(self) -> B:
        return await self._out.receive()

    def done(self) -> None:
        """Its consumer is done with the first batch: before the consumer lets others have their turn, so that a batch
        is in one queue at a time."""
        self.batches.popleft()
        self.passed += 1
        self._tell_passed()

    @property
    def messages(self) -> int:
        """How many messages, and leases that end, are in it."""
        return sum(len(batch) for batch in self.batches)


class FiveServices(Protocol):
    """What of the engine the tasks carry on: each service does a batch when its task calls it."""

    enqueue_get: EnqueueGet
    enqueue_put: EnqueuePut
    dequeue_get: DequeueGet
    dequeue_get_message: DequeueGetMessage
    dequeue_put_message: DequeuePutMessage
    wheel: TimerWheel
    look: Look


class Services:
    """The five tasks and the channels between them."""

    def __init__(
        self,
        engine: FiveServices,
        clock: Clock,
        *,
        max_backlog_messages: int,
        publish: Callable[[], None],
    ) -> None:
        """`publish` tells of what the engine has changed."""
        self._engine = engine
        self._clock = clock
        self._max_backlog_messages = max_backlog_messages
        self._publish = publish
        self._alarm = clock.alarm()
        self._wakes_at_ms: int | None = None
        self._durable_moved = Bell()
        self._durable_moved.ring()
        self._backlog_fell = trio.lowlevel.ParkingLot()
        self._batch_passed = trio.lowlevel.ParkingLot()
        self.pending = Queue[DueBatch](self._batch_passed.unpark_all)
        self.due = Queue[DueBatch](self._batch_passed.unpark_all)
        self.ready = Queue[ReadyBatch](self._batch_passed.unpark_all)
        self.lateness_ms = engine.look.lateness_of_topics()
        """How late messages reached their topics."""
        self.damaged = 0
        """Messages that were set aside because their record no longer matches its checksum."""
        self.full_disks = 0
        """How often a step found no room on the disk, and was put off."""

    async def run(self) -> None:
        """Run all five until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._enqueue_get)
                nursery.start_soon(self._enqueue_put)
                nursery.start_soon(self._dequeue_get)
                nursery.start_soon(self._dequeue_get_message)
                nursery.start_soon(self._dequeue_put_message)
        finally:
            self._alarm.close()

    def durable_moved(self) -> None:
        """The log is durable further than before: there may be messages to enqueue."""
        self._durable_moved.ring()

    def timers_changed(self) -> None:
        """Something was put on the wheel: the task that waits for the next event is woken if that comes earlier now."""
        next_ms = self._engine.dequeue_get.next_wakeup_ms()
        if next_ms is not None and (self._wakes_at_ms is None or next_ms < self._wakes_at_ms):
            self._alarm.ring()

    @property
    def is_about_to_move(self) -> bool:
        """Whether messages come into their topics within about a millisecond."""
        if self.due.batches or self.ready.batches:
            return True
        return self._wakes_at_ms is not None and self._wakes_at_ms <= self._clock.now_ms() + 1

    @property
    def is_behind(self) -> bool:
        """Whether so much is accepted and not yet on its way that producers must wait."""
        return self._engine.enqueue_get.pending > self._max_backlog_messages

    def overdue(self, now_ms: int) -> tuple[int, int]:
        """(about how many messages and ends of leases are due and not where they belong, see ``about_due``; by how many
        ms the oldest is late)."""
        wheel, engine = self._engine.wheel, self._engine
        count, late_ms = wheel.about_due(now_ms), now_ms - (wheel.oldest_due_ms(now_ms) or now_ms)
        for batch in (*self.pending.batches, *self.due.batches):
            late = batch.due_ms[batch.due_ms <= now_ms]
            count, late_ms = count + len(late), max(late_ms, now_ms - int(late.min(initial=now_ms)))
        for ready in self.ready.batches:
            count += len(ready)
            late_ms = max(late_ms, int(engine.look.lateness_ms(ready.ids, now_ms).max(initial=0)))
        return count, late_ms

    async def wait_for_room(self) -> None:
        """Return when the backlog is below its limit: the brake that producers feel."""
        while self.is_behind:
            await self._backlog_fell.park()

    async def _enqueue_get(self) -> None:
        engine = self._engine
        while True:
            await self._durable_moved.wait()
            while (batch := engine.enqueue_get.take(BATCH_MESSAGES)) is not None:
                await self._to_enqueue_put(batch)
                if not self.is_behind:
                    self._backlog_fell.unpark_all()

    async def _enqueue_put(self) -> None:
        async for batch in self.pending:
            already_due = await self._with_room(lambda: self._link(batch))  # noqa: B023
            self.pending.done()
            if already_due is not None:
                await self.due.send(already_due)

    async def _dequeue_get(self) -> None:
        engine = self._engine
        while True:
            now_ms = self._clock.now_ms()
            if not engine.dequeue_get.has_work(now_ms):
                self._wakes_at_ms = engine.dequeue_get.next_wakeup_ms()
                await self._alarm.sleep_until(self._wakes_at_ms)
            elif (batch := engine.dequeue_get.turn(now_ms, BATCH_MESSAGES)) is not None:
                await self._to_dequeue_get_message(batch)
            else:
                await trio.lowlevel.checkpoint()

    async def _dequeue_get_message(self) -> None:
        async for batch in self.due:
            looked_up = self._look_up(batch)
            self.due.done()
            await self.ready.send(looked_up)

    async def _dequeue_put_message(self) -> None:
        async for batch in self.ready:
            await self._with_room(lambda: self._move(batch))  # noqa: B023
            self.ready.done()

    # What a service does with a batch.

    def _link(self, batch: DueBatch) -> DueBatch | None:
        already_due = self._engine.enqueue_put.link(batch, self._clock.now_ms())
        self.timers_changed()
        return already_due

    def _look_up(self, batch: DueBatch) -> ReadyBatch:
        looked_up = self._engine.dequeue_get_message.look_up(batch, self._clock.now_ms())
        if len(looked_up.damaged):
            self.damaged += len(looked_up.damaged)
            _log.error("messages are damaged and set aside", count=len(looked_up.damaged))
        return looked_up

    def _move(self, batch: ReadyBatch) -> None:
        moved = self._engine.dequeue_put_message.move(batch, self._clock.now_ms())
        self._publish()
        self._engine.look.count_lateness(self.lateness_ms, moved, self._clock.now_ms())

    # Straight through, or into the channel, where there is time to wait for room on the disk.

    async def _to_enqueue_put(self, batch: DueBatch) -> None:
        if not self._goes_straight(batch):
            await self.pending.send(batch)
            await self._let_pass(batch, self.pending, self.due, self.ready)
            return
        try:
            already_due = self._link(batch)
        except DiskFull:
            await self.pending.send(batch)
            return
        if already_due is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._to_dequeue_get_message(already_due)

    async def _to_dequeue_get_message(self, batch: DueBatch) -> None:
        if not self._goes_straight(batch):
            await self.due.send(batch)
            await self._let_pass(batch, self.due, self.ready)
            return
        looked_up = self._look_up(batch)
        try:
            self._move(looked_up)
        except DiskFull:
            await self.ready.send(looked_up)
        else:
            await trio.lowlevel.checkpoint()

    def _goes_straight(self, batch: DueBatch) -> bool:
        is_busy = self.pending.batches or self.due.batches or self.ready.batches
        return not is_busy and len(batch) <= STRAIGHT_MESSAGES

    async def _let_pass(self, batch: DueBatch, *queues: Queue[DueBatch] | Queue[ReadyBatch]) -> None:
        """Wait until what is in the queues has passed, so that the next batch can go straight. A large batch could not,
        and nobody waits after it."""
        if len(batch) > STRAIGHT_MESSAGES:
            return
        end = self.ready.passed + sum(len(queue.batches) for queue in queues)
        while self.ready.passed < end and any(queue.batches for queue in queues):
            await self._batch_passed.park()

    async def _with_room(self, step: Callable[[], T]) -> T:
        """Do one step of a service; on a full disk nothing of it happened, so it is tried again until there
        is room.
        """
        while True:
            try:
                return step()
            except DiskFull as error:
                self.full_disks += 1
                _log.error("the disk is full", reason=str(error), advice=advice_for(error))
                await trio.sleep(_RETRY_S)
