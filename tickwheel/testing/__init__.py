"""For the tests of programs that use Tickwheel: a real broker, and a clock that the test moves.

>>> from datetime import timedelta
>>> from tickwheel.testing import broker
>>> with broker() as b, b.sync_client() as client:
...     _ = client.send("reminders", b"renew", delay=timedelta(days=365))
...     with client.subscribe("reminders") as sub:
...         _ = b.advance(timedelta(days=365))
...         next(iter(sub)).body
b'renew'

Nothing is mocked: the broker runs in a thread of the test's process, on a temporary directory that is removed at the
end. Only the clock is another one: it stands still until `advance(…)` moves it, which returns when the broker has done
all that is due then: a `fetch` behind it that finds nothing proves that there is nothing. In ``async with`` it is
awaited. `clock.advance(…)` and `clock.set(…)` only move the clock, and `settle()` waits.

The limit `rate` of a topic is of real time, so that a test whose clock stands still is given all messages in the end:
`advance` does not wait for what the limit holds back. Leave it out in tests that count what one fetch finds.
`purge_after` is of the test's clock; `client.purge()` purges at once what the broker purges when it is worth it.

With pytest, `pytest_plugins = ["tickwheel.testing.fixtures"]` in `conftest.py` gives the fixture `tickwheel_broker`.

`tickwheel.testing.http` has the HTTP API of that broker, and `tickwheel push` on its clock.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar, Unpack

import anyio.to_thread
import sniffio
import trio

from tickwheel._embedded import EmbeddedBroker
from tickwheel.client.options import BrokerSettings
from tickwheel.protocol.errors import NotConnected, RequestTimeout
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.testing.stillness import is_still
from tickwheel_broker.clock.clock import ManualClock

__all__ = ["ManualClock", "TestBroker", "broker"]


Self = TypeVar("Self", bound="TestBroker")

LIMIT_S: Final = 60.0
"""So long, in real time, whatever the broker does at one moment of the clock may take."""
_MS: Final = timedelta(milliseconds=1)


class _Done:
    """What may be awaited, and is done already."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class TestBroker(EmbeddedBroker):
    """A broker for tests: `advance()`, `clock`, `url`, `client()`, `sync_client()`; its directory goes with it."""

    __test__ = False
    """Not a test class, although pytest would think so by its name."""

    clock: ManualClock

    def __init__(self, start: datetime | None, settings: BrokerSettings) -> None:
        self.clock = ManualClock(start)
        super().__init__(tempfile.mkdtemp(prefix="tickwheel-test-"), self.clock, settings)
        self._is_in_async = False

    def advance(self, by: timedelta) -> Awaitable[None]:
        """Moves the clock forward, from each moment at which the broker does something to the next. Returns when all
        that is due then is in its topic: messages, schedules, the ends of leases and of retention. To be awaited in
        ``async with``. What consumers do with what they are given is not waited for. Raises BadTime, RequestTimeout,
        NotConnected.
        """
        return self._done(partial(self._advance, by))

    def settle(self) -> Awaitable[None]:
        """As ``advance``, for what is due now: after ``clock.advance`` and ``clock.set``."""
        return self._done(self._settle)

    def _done(self, work: Callable[[], None]) -> Awaitable[None]:
        if self._is_in_async and _is_in_a_loop():
            return anyio.to_thread.run_sync(work)
        work()
        return _Done()

    def _advance(self, by: timedelta) -> None:
        clock = self.clock
        if not isinstance(by, timedelta) or by < timedelta(0) or by // _MS > MAX_TIME_MS - clock.now_ms():
            clock.advance(by)  # which refuses it
        end_ms = clock.now_ms() + by // _MS
        self._settle()
        while (next_ms := clock.next_ms()) is not None and next_ms <= end_ms:
            clock.advance(max(0, next_ms - clock.now_ms()) * _MS)
            self._settle()
        clock.advance(max(0, end_ms - clock.now_ms()) * _MS)
        self._settle()

    def _settle(self) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not self.is_still():
            if time.monotonic() > limit_s:
                raise RequestTimeout(
                    f"What is due at {self.clock.now().isoformat()} was not done with within {LIMIT_S:g} s.",
                    advice="Does something send messages without end, or move the clock?",
                )

    async def __aenter__(self: Self) -> Self:
        self._is_in_async = True
        return await super().__aenter__()

    def is_still(self, groups: Sequence[tuple[str, str]] = ()) -> bool:
        """Waits shortly until the broker has done all that is to be done at this time of its clock. Whether it came to
        that, and a fetch waits for messages of each of these (topic, group). Raises NotConnected."""
        running = self._running
        if running is None or running.broker is None:
            raise NotConnected("The broker of the test does not run.")
        try:
            return running.call(is_still, running.broker, self.clock, groups)
        except trio.RunFinishedError:
            raise NotConnected("The broker of the test has ended.") from None

    def close(self) -> None:
        """Stop the broker and remove its directory."""
        if self._forked is not None:
            return
        try:
            super().close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def _is_in_a_loop() -> bool:
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return False
    return True


def broker(*, start: datetime | None = None, **settings: Unpack[BrokerSettings]) -> TestBroker:
    """A broker on a temporary directory whose clock begins at `start` (default: now) and stands still.

    A context manager for `with` and `async with`. `settings` are those of the configuration file, for example
    `ack_wait="10s"`.
    """
    return TestBroker(start, settings)
