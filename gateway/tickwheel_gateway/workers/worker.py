"""A worker as its supervisor sees it: a process that is started anew when it ends, and what it reports."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

import trio

from tickwheel_gateway.workers.report import Report, decode_report, lines

ANSWER_S: Final = 2.0
"""A worker that does not answer for so long has no figures."""

_log = logging.getLogger("tickwheel.gateway.workers")

Converse: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]


class Process(Protocol):
    """One that is started anew when it ends."""

    starts: int
    """How often it was started."""

    async def run(self, wait_stopped: Callable[[], Awaitable[None]]) -> None:
        """Until ``wait_stopped`` returns, and it has ended."""

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""


Make: TypeAlias = Callable[[int, Converse], Process]
"""The process of a worker with a number. It speaks with each that begins, over its standard input."""


class Worker:
    """One of several."""

    def __init__(
        self, number: int, make: Make, served: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        """``served``: is called when it serves, each time it has begun. ``ended``: when it has ended and had not
        served."""
        self.number = number
        self.process = make(number, self._converse)
        self.report: Report | None = None
        """Its last, of the process that is there; None until it serves."""
        self._served = served
        self._ended = ended
        self._stream: trio.abc.Stream | None = None
        self._asking = trio.Lock()
        self._asked = 0
        self._told = trio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it answers calls."""
        return self.report is not None and self.report.is_ready

    async def ask(self) -> None:
        """For a report. Without one it counts as not ready until it tells again."""
        async with self._asking:
            stream = self._stream
            if stream is None or self.report is None:
                return
            self._asked += 1
            with trio.move_on_after(ANSWER_S):
                try:
                    await stream.send_all(b"%d\n" % self._asked)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                while self.report is not None and self.report.number != self._asked:
                    self._told = trio.Event()
                    await self._told.wait()
            if self.report is not None and self.report.number != self._asked:
                self.report = Report(self._asked, is_ready=False)

    async def _converse(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        try:
            async for line in lines(stream):
                try:
                    self._hear(decode_report(line))
                except (TypeError, ValueError):
                    _log.exception("worker %d tells what is no report", self.number)
            await trio.sleep_forever()  # its end is heard of in another way
        finally:
            has_served, self.report, self._stream = self.report is not None, None, None
            self._told.set()
            if not has_served:
                self._ended()

    def _hear(self, report: Report) -> None:
        is_first, self.report = self.report is None, report
        self._told.set()
        if is_first:
            self._served()
