"""A handler in threads, for the blocking client: each takes a message, calls the handler, and says what came of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from tickwheel.client.results import ReceiptResult
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.errors import ClientClosed, ClientForked, TickwheelError
from tickwheel.worker.handler import Handler
from tickwheel.worker.outcomes import INTERRUPTED, Kind, Outcome
from tickwheel.worker.tally import Tally

_LOOK_S: Final = 0.5
_log = logging.getLogger("tickwheel.worker")


class Received(Protocol):
    """A message of the blocking client."""

    id: int

    @property
    def attempt(self) -> int:
        """See ``tickwheel.Message.attempt``."""

    def ack(self) -> None:
        """See ``tickwheel.Message.ack``."""

    def nack(
        self, *, delay_ms: int | None = None, error: str = "", give_up: bool = False, uncounted: bool = False
    ) -> ReceiptResult:
        """See ``tickwheel.Message.nack``."""


class Receiving(Protocol):
    """A subscription of the blocking client."""

    def receive(self) -> Any:
        """The next message; None at the end."""

    def stop(self) -> None:
        """See ``tickwheel.Subscription.stop``."""


class ThreadWorker:
    """See the module. Use it once."""

    def __init__(
        self,
        handler: Handler,
        subscribe: Callable[[], AbstractContextManager[Receiving]],
        drain: Delay,
    ) -> None:
        """``drain``: as of `Worker`. Raises BadTime."""
        self._handler = handler
        self._subscribe = subscribe
        self._drain_s = duration_ms(drain, "drain") / 1_000
        self._lock = threading.Lock()
        self._at_work: dict[int, Any] = {}
        """Messages in the hands of handlers, by number; whoever takes one out says what came of it."""
        self._last = 0
        self._stopping = threading.Event()
        self._hurried = threading.Event()
        self._failed: Exception | None = None
        self._subscription: Receiving | None = None
        self.tally = Tally(handler.topic, handler.group, handler.concurrency)

    def stop(self) -> None:
        """Begin no more messages, and finish those that are begun. A second time: do not wait for them."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    def run(self) -> None:
        """Until `stop` or its client's end, and until handlers are finished. Raises what the subscription raises."""
        with self._subscribe() as subscription:
            self._subscription = subscription
            threads = [
                threading.Thread(
                    target=self._work, args=(subscription,), name=f"tickwheel-work-{n}", daemon=True
                )
                for n in range(self._handler.concurrency)
            ]
            for thread in threads:
                thread.start()
            try:
                # Python runs the handler of a signal when this thread looks again: one that came right before the wait,
                # or to another thread, wakes nobody.
                while not self._stopping.wait(_LOOK_S):
                    pass
                self._take_no_more(subscription)
                self._finish(threads)
            finally:
                self._stopping.set()
                self._give_back()
        if self._failed is not None:
            raise self._failed

    def _take_no_more(self, subscription: Receiving) -> None:
        try:
            subscription.stop()
        except TickwheelError as error:
            _log.debug("%s", error)  # there is no connection: then nothing more comes

    def _finish(self, threads: list[threading.Thread]) -> None:
        ends = time.monotonic() + self._drain_s
        for thread in threads:
            while thread.is_alive() and not self._hurried.is_set() and time.monotonic() < ends:
                thread.join(min(0.05, max(0.0, ends - time.monotonic())))

    def _give_back(self) -> None:
        """A thread cannot be interrupted: its message goes back all the same, and what it says later counts no more."""
        for number in list(self._at_work):
            self._settle(number, INTERRUPTED)

    def withdraw(self, message: object) -> bool:
        """Takes a message from its handler, which counts no more: the caller is to `tell` what becomes of it. False:
        it is no longer with a handler."""
        with self._lock:
            numbers = [number for number, held in self._at_work.items() if held is message]
        return any(self._take(number) is not None for number in numbers)

    def _take(self, number: int) -> Any:
        """The message; None: something else has taken it."""
        with self._lock:
            message = self._at_work.pop(number, None)
            if message is not None:
                self.tally.running -= 1
            return message

    def _work(self, subscription: Receiving) -> None:
        try:
            while not self._stopping.is_set():
                message = subscription.receive()
                if message is None:  # the subscription has ended
                    self._stopping.set()
                    return
                self._handle(message)
        except ClientForked as error:
            self._fail(error)
        except ClientClosed:  # another thread has closed it, between two messages
            self._stopping.set()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = self._failed or error
        self._stopping.set()

    def _handle(self, message: Received) -> None:
        with self._lock:
            self._last += 1
            number = self._last
            self._at_work[number] = message
            self.tally.running += 1
        if self._stopping.is_set():  # it came at the last moment
            self._settle(number, INTERRUPTED)
            return
        began_s = time.monotonic()
        outcome = self._handler.handle_here(message)
        self.tally.handled_s += time.monotonic() - began_s
        self._settle(number, outcome)

    def _settle(self, number: int, outcome: Outcome) -> None:
        message = self._take(number)
        if message is not None:
            self.tell(message, outcome)

    def tell(self, message: Received, outcome: Outcome) -> None:
        """Tells the broker what becomes of a message. The log has what it could not be told, or did not take."""
        with self._lock:
            self.tally.outcomes[outcome.kind] += 1
        try:
            if outcome.kind is Kind.DONE:
                message.ack()
                return
            result = message.nack(
                delay_ms=outcome.after_ms,
                error=outcome.reason,
                give_up=outcome.kind is Kind.GIVEN_UP,
                uncounted=not outcome.counted,
            )
        except TickwheelError as error:
            self.tally.untold(message.id, outcome, error)
        else:
            self.tally.told(message.id, outcome, result)
