"""For the tests of programs that use Tickwheel: a real broker, and a clock that the test moves.

>>> from datetime import timedelta
>>> from tickwheel.testing import broker
>>> with broker() as b, b.sync_client() as client:
...     _ = client.send("reminders", b"renew", delay=timedelta(days=365))
...     with client.subscribe("reminders") as sub:
...         b.clock.advance(timedelta(days=365))
...         next(iter(sub)).body
b'renew'

Nothing is mocked: the broker runs in a thread of the test's process, on a temporary directory that is removed at the
end. Only the clock is another one: it stands still until `clock.advance(…)` or `clock.set(…)` moves it.
With pytest, `pytest_plugins = ["tickwheel.testing.fixtures"]` in `conftest.py` gives the fixture `tickwheel_broker`.

`tickwheel.testing.http` has the HTTP API of that broker, and `tickwheel push` on its clock.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

import trio

from tickwheel._embedded import EmbeddedBroker
from tickwheel.client.options import BrokerSettings
from tickwheel.protocol.errors import NotConnected
from tickwheel.testing.stillness import is_still
from tickwheel_broker.clock import ManualClock

__all__ = ["ManualClock", "TestBroker", "broker"]


class TestBroker(EmbeddedBroker):
    """A broker for tests: `clock`, `url`, `client()`, `sync_client()`; its directory goes when it closes."""

    __test__ = False
    """Not a test class, although pytest would think so by its name."""

    clock: ManualClock

    def __init__(self, start: datetime | None, settings: BrokerSettings) -> None:
        self.clock = ManualClock(start)
        super().__init__(tempfile.mkdtemp(prefix="tickwheel-test-"), self.clock, settings)

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


def broker(*, start: datetime | None = None, **settings: Unpack[BrokerSettings]) -> TestBroker:
    """A broker on a temporary directory whose clock begins at `start` (default: now) and stands still.

    A context manager for `with` and `async with`. `settings` are those of the configuration file, for example
    `ack_wait="10s"`.
    """
    return TestBroker(start, settings)
