"""The consumer of a queue: claims when there is something to claim, and extends the leases of what it holds.

It sleeps until a commit, a lease that ends or a delay that is over; an idle queue is asked nothing.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from tickwheel.client.forks import tell
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.database import Database
from tickwheel.outbox.errors import AWAY
from tickwheel.outbox.queue.holding import Holding, State
from tickwheel.outbox.queue.messages import QueueBatch
from tickwheel.outbox.queue.sql import Claim, QueueSql, Receipt
from tickwheel.outbox.watch import watch_table
from tickwheel.protocol.errors import BadArgument, ClientClosed, TickwheelError

logger = logging.getLogger("tickwheel")

CLOSE_TIMEOUT_S: Final = 5.0
_BEATS_A_LEASE: Final = 3
_GRAIN_S: Final = 0.001
"""An alarm by an estimate of the database's clock is set this much later, so that it is not early."""


class QueueConsumer:
    """Use it as ``async with queue.consume() as consumer``, then iterate over it.

    It survives a database that goes away: it waits until it is back. Settle every message, by ``ack``, ``ack_in`` or
    ``nack``: one that the program forgets comes again when its lease ends. To ask for the next batch by iterating
    ends the extension of the leases of the one before; to work on several at a time, use ``receive`` or several
    consumers. Leaving the block gives back what is not settled.
    """

    def __init__(
        self,
        *,
        database: Database,
        sql: QueueSql,
        check: Callable[[], None],
        batch: int,
        lease_ns: int,
        name: str,
    ) -> None:
        """``check`` raises TableMissing and BadTable."""
        self.name = name
        """What stands in the table as the owner."""
        self.batch = batch
        self._database = database
        self._sql = sql
        self._check = check
        self._queue_name = sql.table.name
        self._lease_ns = lease_ns
        self._watch = watch_table(database, self._queue_name)
        self._holdings: dict[Holding, weakref.ref[QueueBatch]] = {}
        self._in_hand: Holding | None = None
        """Of the batch that the iteration returned last."""
        self._ready: deque[QueueBatch] = deque()
        """Claimed, and not asked for yet, because the task that asked was cancelled."""
        self._group: TaskGroup | None = None
        self._turn = anyio.Lock()
        self._beats = anyio.CapacityLimiter(1)
        """Heartbeats have a thread of their own: those of the database may all be at work for the user."""
        self._forked: TickwheelError | None = None
        tell(self)
        self._stopped = False
        self._must_look = True
        self._alarm = math.inf
        self._ahead_ns = 0
        self._rung = anyio.Event()
        self._away = Backoff(first_s=0.05, max_s=2.0)
        self._blocked = Backoff(first_s=0.02, max_s=1.0)

    # -- the user's side --

    async def __aenter__(self) -> QueueConsumer:
        if self._group is not None or self._stopped:
            raise BadArgument("A consumer is entered once.", advice="Call queue.consume() again.")
        await self._database.call(self._check)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._watch.run, self._ring)
        self._group.start_soon(self._beat)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        group, self._group = self._group, None
        assert group is not None
        # The group is ours alone, so its end must neither be interrupted by, nor wrap, what happens to the
        # user's block: it is cancelled from within, and an exception of the block goes its own way.
        group.cancel_scope.shield = True
        group.cancel_scope.cancel()
        try:
            await group.__aexit__(None, None, None)
        finally:
            await self._give_back()

    def forked(self, error: TickwheelError) -> None:
        """See ``_forks``: what was claimed is the parent's."""
        self._forked = error

    def stop(self) -> None:
        """Claims nothing more: the iteration ends. What is held can still be settled."""
        self._stopped = True
        self._rung.set()

    def __aiter__(self) -> QueueConsumer:
        return self

    async def __anext__(self) -> QueueBatch:
        if self._forked is not None:
            raise self._forked.copy()
        if self._in_hand is not None:
            self._in_hand.is_extended = False
        batch = await self._next()
        if batch is None:
            raise StopAsyncIteration
        self._in_hand = batch.holding
        return batch

    async def receive(self, timeout: float | None = None) -> QueueBatch | None:  # noqa: ASYNC109
        """The next batch; None when none came within ``timeout`` seconds (None: no limit), or after ``stop``.

        The leases of each are extended as long as the program refers to it.
        """
        if self._forked is not None:
            raise self._forked.copy()
        if self._group is None:
            raise ClientClosed(
                "The consumer is not open.", advice="Use it inside `async with queue.consume() as consumer:`."
            )
        with anyio.move_on_after(timeout):
            return await self._next()
        return None

    # -- claiming --

    async def _next(self) -> QueueBatch | None:
        await checkpoint()
        async with self._turn:
            while not self._stopped:
                if self._ready:
                    return self._ready.popleft()
                self._must_look, self._alarm = False, math.inf  # what rings from here on counts
                try:
                    claim = await self._look()
                except AWAY as error:
                    if not self._away.attempts:
                        logger.warning("queue %s waits for its database: %s", self._queue_name, error)
                    await anyio.sleep(self._away.next_s())
                    continue
                self._away.reset()
                if not claim.rows:
                    self._set_alarm(claim)
                    await self._sleep()
        return None

    async def _look(self) -> Claim:
        async with self._watch.look() as look:
            until_s = time.monotonic() + self._lease_ns / 1e9

            def keep(claim: Claim) -> None:
                if claim.rows:
                    self._hold(claim, until_s)

            claim = await self._database.transaction(
                lambda connection: self._sql.claim(connection, self.batch, self._lease_ns, self.name),
                keep,
            )
            look.found = bool(claim.rows)
            keep(claim)  # before anything that can be cancelled
        return claim

    def _hold(self, claim: Claim, until_s: float) -> None:
        holding = Holding(self._database, self._sql, claim.rows, until_s)
        batch = QueueBatch(holding, claim.rows)
        self._holdings[holding] = weakref.ref(batch)
        self._ready.append(batch)

    # -- waiting --

    def _set_alarm(self, claim: Claim) -> None:
        self._ahead_ns = claim.now_ns - time.time_ns()
        if claim.is_blocked:
            self._wake_in(self._blocked.next_s())
        else:
            self._blocked.reset()
        if claim.next_ns is not None and claim.next_ns > claim.now_ns:
            self._wake_in((claim.next_ns - claim.now_ns) / 1e9 + _GRAIN_S)

    def _wake_in(self, delay_s: float) -> None:
        self._alarm = min(self._alarm, anyio.current_time() + delay_s)

    def _ring(self, due_ns: int | None) -> None:
        """Told by the watch: there may be something now, or at this time."""
        delay_s = 0.0 if due_ns is None else (due_ns - time.time_ns() - self._ahead_ns) / 1e9 + _GRAIN_S
        if delay_s <= _GRAIN_S:
            self._must_look = True
        else:
            self._wake_in(delay_s)
        self._rung.set()

    async def _sleep(self) -> None:
        while not (self._must_look or self._stopped):
            self._rung = anyio.Event()
            timeout_s = self._alarm - anyio.current_time()
            if timeout_s <= 0:
                return
            with anyio.move_on_after(None if timeout_s == math.inf else timeout_s):
                await self._rung.wait()

    # -- holding --

    async def _beat(self) -> None:
        """Extends the leases of what is held, three times a lease."""
        interval_s = self._lease_ns / 1e9 / _BEATS_A_LEASE
        backoff = Backoff(first_s=min(0.05, interval_s / 4), max_s=min(2.0, interval_s))
        pause_s = interval_s
        while True:
            await anyio.sleep(pause_s)
            self._forget()
            held = {
                holding: receipts
                for holding, batch in self._holdings.items()
                if batch() is not None and holding.is_extended and (receipts := holding.receipts(State.HELD))
            }
            try:
                if held:
                    await self._extend(held)
                backoff.reset()
                pause_s = interval_s
            except AWAY as error:
                if not backoff.attempts:
                    logger.warning("queue %s: leases cannot be extended: %s", self._queue_name, error)
                pause_s = backoff.next_s()

    async def _extend(self, held: dict[Holding, list[Receipt]]) -> None:
        receipts = [receipt for some in held.values() for receipt in some]

        def work() -> set[int]:
            return self._database.run(
                lambda connection: self._sql.extend(connection, receipts, self._lease_ns)
            )

        until_s = time.monotonic() + self._lease_ns / 1e9
        missed = await anyio.to_thread.run_sync(work, limiter=self._beats)
        for holding, some in held.items():
            holding.until_s = until_s
            lost = holding.missed([id_ for id_, _ in some if id_ in missed])
            batch = self._holdings[holding]()
            if lost:
                logger.warning("queue %s: another consumer took over %s", self._queue_name, lost)
            if lost and batch is not None:
                batch.tell_lost()

    def _forget(self) -> None:
        """What is settled, and what the program dropped a whole lease ago."""
        now_s = time.monotonic()
        for holding, batch in list(self._holdings.items()):
            is_dropped = (batch() is None or not holding.is_extended) and holding.until_s < now_s
            if is_dropped or not holding.receipts(State.HELD, State.FINISHING):
                del self._holdings[holding]

    async def _give_back(self) -> None:
        """A transaction of the user's that is open still keeps what it has deleted."""
        held = [receipt for holding in self._holdings for receipt in holding.receipts(State.HELD)]
        self._ready.clear()
        self._holdings.clear()
        if not held:
            return

        def work() -> None:
            self._database.run(lambda connection: self._sql.release(connection, held, 0))

        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True) as scope:
            try:
                await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._beats)
            except AWAY as error:
                logger.warning(
                    "queue %s: %d messages wait for their leases: %s", self._queue_name, len(held), error
                )
        if scope.cancelled_caught:
            logger.warning(
                "queue %s: %d messages wait for the end of their leases", self._queue_name, len(held)
            )
