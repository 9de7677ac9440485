"""For tests of projects: a real broker with a clock that the test moves, and tasks that run where the test says so.

::

    class ReminderTests(TickwheelTestMixin, TestCase):
        def test_it_comes_after_a_year(self):
            remind.using(run_after=timezone.now() + timedelta(days=365)).enqueue(7)
            self.assertEqual(self.run_tasks(), [])
            (result,) = self.advance(timedelta(days=366))
            self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)

Nothing is mocked: tasks go to a broker in the test's process and come back, in the test's thread and in its
transaction.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, Final

from tickwheel.client.times import EpochMs
from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.backends import tickwheel_backends
from tickwheel.django.broker import client_of, redirected
from tickwheel.django.envelope import decode
from tickwheel.protocol.errors import UnknownTopic
from tickwheel.testing import ManualClock, TestBroker, broker
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.outcomes import Kind

_LOOKS: Final = 200
"""How often it may be asked whether the broker has come to rest, which waits a little each time."""


class TickwheelTestMixin:
    """Before ``TestCase`` or ``TransactionTestCase``. Each test has a broker of its own, which all backends of
    Tickwheel use, whatever their ``url``."""

    tickwheel_start: datetime | None = None
    """When the broker's clock begins; None: now."""

    tickwheel: TestBroker

    def setUp(self) -> None:
        """See TestCase."""
        stack = ExitStack()
        self.addCleanup(stack.close)  # type: ignore[attr-defined]
        self.tickwheel = stack.enter_context(broker(start=self.tickwheel_start))
        stack.enter_context(redirected(self.tickwheel.url))
        super().setUp()  # type: ignore[misc]

    @property
    def clock(self) -> ManualClock:
        """The broker's."""
        return self.tickwheel.clock

    def run_tasks(self) -> list[Any]:
        """Runs all tasks that are due by the broker's clock, also those that they enqueue, in the calling thread;
        what is in the outbox is sent first. Returns the results, in the order in which they ran; a task that failed
        and was tried again more than once."""
        found: list[Any] = []
        while True:
            count = len(found)
            for backend in tickwheel_backends():
                self._send_outbox(backend)
                found += self._run(backend)
            if len(found) == count:
                return found

    def advance(self, duration: timedelta) -> list[Any]:
        """Runs what is due, moves the broker's clock, stopping where something becomes due, and runs what is due
        then. Returns the results, as ``run_tasks``."""
        clock, found = self.clock, self.run_tasks()
        end = clock.now() + duration
        while True:
            self._wait_until_still()
            next_ms = clock.next_ms()
            step = None if next_ms is None else timedelta(milliseconds=max(0, next_ms - clock.now_ms()))
            if step is None or clock.now() + step > end:
                break
            clock.advance(step)
            found += self.run_tasks()
        clock.advance(end - clock.now())
        return found + self.run_tasks()

    def _send_outbox(self, backend: TickwheelBackend) -> None:
        """As the relay does it, which cannot see what the test's transaction has not committed."""
        options = backend.settings
        if options.via != "outbox":
            return
        client = client_of(options)
        for row in backend.outbox.unsent():
            record = backend.records.get(row.pk)
            run_after = None if record is None else record.run_after
            deliver_at_ms = None if run_after is None else -(-row.time_next // 1_000_000)
            client.send(
                row.topic,
                row.body.encode(),
                key=row.pk,
                priority=row.priority,
                deliver_at=None if deliver_at_ms is None else EpochMs(deliver_at_ms),
            )
            row.delete()

    def _run(self, backend: TickwheelBackend) -> list[Any]:
        from tickwheel.django.worker.execution import Execution

        options, execution = backend.settings, Execution(backend)
        client = client_of(options)
        prefix = options.prefix
        topics = [
            one.name
            for one in client.topics()
            if one.name.startswith(prefix) and not one.name.endswith(".dead")
        ]
        found: list[Any] = []
        self._wait_until_still()
        for topic in topics:
            handler = Handler(topic, execution, Options(group=options.group))
            while True:
                try:
                    batch = client.fetch(topic, options.group, count=1)
                except UnknownTopic:
                    break
                if not len(batch):
                    break
                for message in batch:
                    outcome = handler.handle_here(_Attempt(message, batch.attempts[0]))
                    if outcome.kind is Kind.DONE:
                        message.ack(confirm=True)
                    else:
                        message.nack(
                            delay_ms=outcome.after_ms,
                            error=outcome.reason,
                            give_up=outcome.kind is Kind.GIVEN_UP,
                            uncounted=not outcome.counted,
                        )
                    found.append(backend.get_result(decode(message).id))
                self._wait_until_still()
        return found

    def _wait_until_still(self) -> None:
        for _ in range(_LOOKS):
            if self.tickwheel.is_still():
                return
        raise AssertionError("The broker of the test does not come to rest.")


class _Attempt:
    """A message that was fetched, with the number of its attempt."""

    def __init__(self, message: Any, attempt: int) -> None:
        self._message = message
        self.attempt = attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)
