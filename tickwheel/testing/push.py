"""`tickwheel push` in a test: its own code, on the clock of the test's broker, with applications for the network."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Final

import anyio

from tickwheel._blocking import Loop
from tickwheel.client.admin.endpoints import Endpoint
from tickwheel.client.client import Client
from tickwheel.client.results import ReceiptResult
from tickwheel.errors import BadArgument, RequestTimeout
from tickwheel.protocol.endpoint_tests import GROUP as TESTS_GROUP
from tickwheel.protocol.endpoint_tests import tests_topic
from tickwheel.protocol.receipts import Receipt
from tickwheel.testing.applications import Applications, Exchange, Posted
from tickwheel.testing.asgi import started
from tickwheel.testing.virtual_time import VirtualTime
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_push.clocks import Clocks
from tickwheel_push.http.request import Due
from tickwheel_push.intake import Queue
from tickwheel_push.process import Push as Process
from tickwheel_push.process import Settings, Surroundings
from tickwheel_push.tally import Tally

LIMIT_S: Final = 60.0
"""So long, in real time, whatever happens at one moment of the clock may take."""
_PAUSE_S: Final = 0.001
_NEVER_S: Final = 86_400.0
_MS: Final = timedelta(milliseconds=1)

IsStill = Callable[[Sequence[tuple[str, str]]], bool]
"""Asks the broker, from another thread: see ``stillness.is_still``."""


class Push:
    """Sends what is due to applications of the test. ``requests`` has all that was sent, in order."""

    def __init__(
        self,
        client: Client,
        clock: ManualClock,
        is_still: IsStill,
        applications: Applications,
        patience: timedelta,
        *,
        real_timestamps: bool,
        runs_lifespans: bool = False,
    ) -> None:
        self.requests: list[Posted] = []
        self._client = client
        self._clock = clock
        self._is_still = is_still
        self._applications = applications
        self._patience_s = patience.total_seconds()
        self._runs_lifespans = runs_lifespans
        self._time = VirtualTime(clock)
        wall_s = time.time if real_timestamps else self._time.wall_s
        self._clocks = Clocks(wall_s, self._time.now_s, self._time.until, chance=lambda: 0.0)
        self._process: Process | None = None
        self._running: AbstractAsyncContextManager[None] | None = None
        self._work = _Work()

    async def advance(self, by: timedelta) -> None:
        """Moves the clock forward, from each moment at which something happens to the next, and on only when all that
        was due there was sent, answered and settled. Raises BadTime, RequestTimeout."""
        end = self._clock.now() + by
        if by < timedelta(0):
            self._clock.advance(by)  # which refuses it
        await self.settle()
        while (next_ms := self._next_ms()) is not None:
            step = (next_ms - self._now_ms) * _MS
            if self._clock.now() + step > end:
                break
            self._clock.advance(step)
            await self.settle()
        self._clock.advance(end - self._clock.now())
        await self.settle()

    async def settle(self) -> None:
        """Returns once all that is due now was sent, answered and settled. Raises RequestTimeout, NotConnected."""
        process = self._process
        if process is None:
            raise BadArgument("It does not run.", advice="Use it inside its `with` block.")
        with anyio.move_on_after(LIMIT_S):
            self._time.look()
            while True:
                if await self._has_settled(process) and not await process.refresh():
                    await process.tell()
                    return
                await anyio.sleep(_PAUSE_S)
        raise RequestTimeout(
            f"What is due at {self._clock.now().isoformat()} was not done with within {LIMIT_S:g} s.",
            advice="Does the application send messages without end, or does something else move the clock?",
        )

    @property
    def _now_ms(self) -> int:
        return self._clock.now_ms()

    def _next_ms(self) -> int | None:
        """When something happens next, as far as it is known now."""
        times = [ms for ms in (self._clock.next_ms(), self._time.next_ms()) if ms is not None]
        return max(self._now_ms, min(times)) if times else None

    async def _has_settled(self, process: Process) -> bool:
        """Nothing is sent at this time any more, but for applications that seem to hang: they have time until the clock
        is moved on."""
        work = self._work
        if work.held - work.hanging and time.monotonic() - work.changed_s < self._patience_s:
            return False
        work.hanging = set(work.held)
        asking, changes, taking = process.asking, work.changes, set(work.taking)
        tests = process.asking_tests
        groups = [(endpoint.topic, endpoint.group) for endpoint in asking]
        groups += [(tests_topic(topic), TESTS_GROUP) for topic in tests]
        if not work.held and taking != set(groups):
            return False
        is_still = await anyio.to_thread.run_sync(self._is_still, groups)
        return (
            is_still and changes == work.changes and (process.asking, process.asking_tests) == (asking, tests)
        )

    async def __aenter__(self) -> Push:
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        await self._running.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        settings = Settings(allowed=self._applications.allowed, refresh_s=_NEVER_S)
        surroundings = _InTest(
            settings=settings,
            clocks=self._clocks,
            clock=self._clock,
            virtual_time=self._time,
            applications=self._applications,
            posted=self.requests,
            work=self._work,
        )
        failed: Exception | None = None
        async with AsyncExitStack() as stack:
            if self._runs_lifespans:
                for host, app in self._applications.items():
                    self._applications.replace(host, await stack.enter_async_context(started(app)))
            await stack.enter_async_context(self._client)
            async with anyio.create_task_group() as group:
                process, ready = Process(self._client, settings, Tally(), surroundings), anyio.Event()
                group.start_soon(process.run, ready.set)
                await ready.wait()
                self._process = process
                try:
                    yield
                except Exception as error:  # raised below, in no group of errors
                    failed = error
                self._process = None
                group.cancel_scope.cancel()
            if failed is not None:
                raise failed


class SyncPush:
    """``Push`` for tests without async: it runs in an event loop (asyncio) in a thread of its own, and so do the
    applications, within their lifespans."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._loop: Loop | None = None
        self._leave: Callable[[], None] | None = None

    @property
    def requests(self) -> list[Posted]:
        """All that was sent, in order."""
        return self._push.requests

    def advance(self, by: timedelta) -> None:
        """As ``Push.advance``."""
        self._called().call(self._push.advance, by)

    def settle(self) -> None:
        """As ``Push.settle``."""
        self._called().call(self._push.settle)

    def _called(self) -> Loop:
        if self._loop is None:
            raise BadArgument("It does not run.", advice="Use it inside its `with` block.")
        return self._loop

    def __enter__(self) -> SyncPush:
        self._loop = Loop()
        try:
            self._leave = self._loop.hold(self._push)
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._leave is not None
        try:
            self._leave()
        finally:
            self._loop.stop()
            self._loop = None


@dataclass
class _Work:
    """What is on its way between the broker and applications."""

    taking: dict[tuple[str, str], int] = field(default_factory=dict)
    """Topics and groups whose messages are asked for, and by how many requests."""
    held: set[Receipt] = field(default_factory=set)
    """Deliveries that are not settled."""
    hanging: set[Receipt] = field(default_factory=set)
    """Those for which patience was over once."""
    changes: int = 0
    changed_s: float = 0.0
    """In real time."""

    def changed(self) -> None:
        """Something begins or ends."""
        self.changes += 1
        self.changed_s = time.monotonic()


class _InTest(Surroundings):
    """No network, and whatever is on its way is known."""

    def __init__(
        self,
        *,
        settings: Settings,
        clocks: Clocks,
        clock: ManualClock,
        virtual_time: VirtualTime,
        applications: Applications,
        posted: list[Posted],
        work: _Work,
    ) -> None:
        super().__init__(settings, clocks)
        self._allowed = settings.allowed
        self._clock = clock
        self._time = virtual_time
        self._applications = applications
        self._posted = posted
        self._work = work

    def queue(self, client: Client, endpoint: Endpoint) -> Queue:
        """As ``Surroundings`` has it."""
        return _Watched(super().queue(client, endpoint), (endpoint.topic, endpoint.group), self._work)

    def tests(self, client: Client, topic: str) -> Queue:
        """As ``Surroundings`` has it."""
        return _Watched(super().tests(client, topic), (tests_topic(topic), TESTS_GROUP), self._work)

    def exchange(self, endpoint: Endpoint) -> Exchange:
        """As ``Surroundings`` has it."""
        return Exchange(
            endpoint=endpoint,
            applications=self._applications,
            allowed=self._allowed,
            clock=self._clock,
            time=self._time,
            posted=self._posted,
        )


class _Watched:
    """A queue, of which is known what was taken and not settled."""

    def __init__(self, queue: Queue, group: tuple[str, str], work: _Work) -> None:
        """``group``: its topic and its name."""
        self._queue = queue
        self._group = group
        self._work = work

    async def take(self, count: int, wait_s: float, lease_s: float) -> Sequence[Due]:
        """As ``Queue`` has it."""
        taking, name = self._work.taking, self._group
        taking[name] = taking.get(name, 0) + 1
        try:
            dues = await self._queue.take(count, wait_s, lease_s)
        finally:
            taking[name] -= 1
            if not taking[name]:
                del taking[name]
            self._work.changed()
        self._work.held |= {due.receipt for due in dues}
        return dues

    async def _settle(self, due: Due, telling: Awaitable[ReceiptResult]) -> ReceiptResult:
        try:
            return await telling
        finally:
            self._work.held.discard(due.receipt)
            self._work.changed()

    async def ack(self, due: Due) -> ReceiptResult:
        """As ``Queue`` has it."""
        return await self._settle(due, self._queue.ack(due))

    async def retry(self, due: Due, delay_ms: int, error: str) -> ReceiptResult:
        """As ``Queue`` has it."""
        return await self._settle(due, self._queue.retry(due, delay_ms, error))

    async def postpone(self, due: Due, delay_ms: int) -> ReceiptResult:
        """As ``Queue`` has it."""
        return await self._settle(due, self._queue.postpone(due, delay_ms))

    async def give_up(self, due: Due, error: str) -> ReceiptResult:
        """As ``Queue`` has it."""
        return await self._settle(due, self._queue.give_up(due, error))

    async def hold(self, due: Due, duration_ms: int) -> ReceiptResult:
        """As ``Queue`` has it."""
        return await self._settle(due, self._queue.hold(due, duration_ms))

    async def give_back(self, dues: Sequence[Due]) -> None:
        """As ``Queue`` has it."""
        try:
            await self._queue.give_back(dues)
        finally:
            self._work.held -= {due.receipt for due in dues}
            self._work.changed()
