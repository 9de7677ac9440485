"""The replay: a producer, an operations desk and two groups of consumers, all clients of a real broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import anyio
import anyio.to_thread
import numpy as np

from tickwheel import Client
from tickwheel_cli.demo.ledger import Ledger, Summary
from tickwheel_cli.demo.story import Change, Plan, Timeline
from tickwheel_cli.demo.view import View

GROUPS = ("board", "auditor")
_BATCH = 5_000
_CREDIT = 20_000
_REFRESH_S = 0.125
_GRACE_S = 15.0
_LINGER_S = 0.3  # a second copy of the last message would come in this time
_SCHEDULE_RATE = (
    60_000  # messages a second; any machine is faster, so all is scheduled before the first is due
)


class Replay:
    """One run. Call `run` once."""

    def __init__(self, *, client: Client, topic: str, plan: Plan, speed: float, view: View) -> None:
        self._client = client
        self._topic = topic
        self._plan = plan
        self._view = view
        lead_ms = 1_000 + round(len(plan.flights) / _SCHEDULE_RATE * 1_000)
        self._timeline = Timeline(plan.start_ms, round(time.time() * 1_000) + lead_ms, speed)
        self.ledger = Ledger(GROUPS, plan.real_due_ms(self._timeline))
        self._open_changes = len(plan.changes)
        self._complete = anyio.Event()
        self._subscribed = anyio.Event()
        self._subscribers = 0

    async def run(self, what: str) -> Summary:
        """Schedule everything, replay it, and judge what arrived. `what`: as the summary calls it."""
        bodies = [flight.body() for flight in self._plan.flights]
        self._view.begin()
        try:
            async with anyio.create_task_group() as tasks:
                stop = anyio.Event()
                for group in GROUPS:
                    tasks.start_soon(self._consume, group, stop)
                await self._subscribed.wait()
                before_bytes = (await self._client.stats()).appended_bytes
                schedule_seconds = await self._schedule(bodies)
                scheduled_bytes = (await self._client.stats()).appended_bytes - before_bytes
                replay_seconds = await self._play()
                stop.set()
        finally:
            self._view.end()
        stats = await self._client.stats()
        flights, ledger = self._plan.flights, self.ledger
        return Summary(
            what=what,
            speed=self._timeline.speed,
            scheduled=len(flights),
            schedule_seconds=round(schedule_seconds, 4),
            schedule_rate=round(len(flights) / schedule_seconds),
            rescheduled=ledger.rescheduled,
            cancelled=len(flights) - ledger.expected(),
            changes_too_late=ledger.too_late_to_change,
            replay_seconds=round(replay_seconds, 3),
            groups=ledger.audit(),
            foreign=ledger.foreign,
            body_bytes=sum(map(len, bodies)),
            scheduled_bytes=scheduled_bytes,
            log_bytes=stats.appended_bytes - before_bytes,
            disk_bytes=stats.disk_bytes,
        )

    # -- the producer ---------------------------------------------------------------------------------------

    async def _schedule(self, bodies: Sequence[bytes]) -> float:
        """Hand all messages to the broker; returns the seconds until the last one was on its disk."""
        keys = [flight.key for flight in self._plan.flights]
        due_ms = self.ledger.promised_ms
        ids = np.empty(len(bodies), np.int64)
        started = time.perf_counter()
        for start in range(0, len(bodies), _BATCH):
            part = slice(start, start + _BATCH)
            results = await self._client.send_many(
                self._topic, bodies[part], keys=keys[part], deliver_at=due_ms[part]
            )
            results.raise_for_errors()
            ids[part] = np.frombuffer(results.ids(), np.uint64)
            self._view.scheduled(min(start + _BATCH, len(bodies)), len(bodies), time.perf_counter() - started)
        seconds = time.perf_counter() - started
        self.ledger.name_messages(ids)
        return seconds

    # -- the consumers --------------------------------------------------------------------------------------

    async def _consume(self, group: str, stop: anyio.Event) -> None:
        """Write down and acknowledge what arrives, until told to stop; then wait for the acks to be safe."""
        async with self._client.subscribe(
            self._topic, group=group, credit=_CREDIT, batch=500
        ) as subscription:
            self._subscribers += 1
            if self._subscribers == len(GROUPS):
                self._subscribed.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_when, stop, tasks.cancel_scope)
                async for batch in subscription.batches():
                    arrived_ms = time.time_ns() / 1e6
                    ids, due_ms = np.array(batch.ids), np.array(batch.deliver_at_ms)
                    self.ledger.arrived(group, ids, due_ms, arrived_ms)
                    self._check_complete()
                    await batch.ack()
            await subscription.flush()

    def _check_complete(self) -> None:
        expected = self.ledger.expected()
        if self._open_changes == 0 and all(book.count >= expected for book in self.ledger.books.values()):
            self._complete.set()

    # -- the story ------------------------------------------------------------------------------------------

    async def _play(self) -> float:
        """Let the story run to its end; returns the seconds it took from its start."""
        end_s = (self._timeline.to_real_ms(self._plan.end_ms) / 1_000) - time.time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._refresh)
            tasks.start_soon(self._operations_desk)
            with anyio.move_on_after(end_s + _GRACE_S):
                await self._complete.wait()
            seconds = time.time() - self._timeline.real_start_ms / 1_000
            await anyio.sleep(_LINGER_S)
            tasks.cancel_scope.cancel()
        return seconds

    async def _refresh(self) -> None:
        """Draw in a thread of its own: a picture takes milliseconds, and deliveries must not wait for it."""
        while True:
            now_ms = self._timeline.to_story_ms(time.time() * 1_000)
            await anyio.to_thread.run_sync(self._view.refresh, now_ms, self.ledger)
            await anyio.sleep(_REFRESH_S)

    async def _operations_desk(self) -> None:
        """Tell the broker each piece of news at the moment when it is known."""
        async with anyio.create_task_group() as tasks:
            for known_ms, news in groupby(self._plan.changes, key=lambda change: change.known_ms):
                await anyio.sleep(max(0.0, self._timeline.to_real_ms(known_ms) / 1_000 - time.time()))
                tasks.start_soon(self._apply, list(news))
        self._check_complete()

    async def _apply(self, news: Sequence[Change]) -> None:
        cancelled = [change.index for change in news if change.departs_ms is None]
        await self._cancel(cancelled)
        for change in news:
            if change.departs_ms is not None:
                await self._reschedule(change.index, change.departs_ms)
        self._open_changes -= len(news)
        self._check_complete()

    async def _cancel(self, indexes: Sequence[int]) -> None:
        """Cancel flights, and believe the broker's answers: it may have been too late for one."""
        results = await self._client.cancel(ids=[self.ledger.message_id(index) for index in indexes])
        for index, result in zip(indexes, results, strict=True):
            self.ledger.was_cancelled(index, result)

    async def _reschedule(self, index: int, departs_ms: int) -> None:
        """Move a flight, and believe the broker's answer."""
        due_ms = self._timeline.to_real_ms(departs_ms)
        result = await self._client.reschedule(id=self.ledger.message_id(index), deliver_at=due_ms)
        self.ledger.was_rescheduled(index, result, due_ms)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
