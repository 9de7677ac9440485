"""A group of a broker and servers of endpoints, without either: what is asked of them is written down."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from tickwheel import Endpoint, ReceiptResult, TickwheelError
from tickwheel.protocol.receipts import Receipt
from tickwheel_push.clocks import Clocks
from tickwheel_push.http.addresses import Allowed
from tickwheel_push.http.answer import Answer, Result
from tickwheel_push.http.request import Due, Request

ALLOWED = Allowed()
_KEPT_MS = 1_000_000


def endpoint(**fields: Any) -> Endpoint:
    """One that calls `https://hooks.example.com/in`, unless other fields say otherwise."""
    if "allow_urls" not in fields:
        fields.setdefault("url", "https://hooks.example.com/in")
    return Endpoint(**{"name": "shop", "topic": "orders", "retry_delays_ms": [5_000, 60_000], **fields})


class Group:
    """Messages that are due, and what was done with them: a list of (what, id, …)."""

    def __init__(self) -> None:
        self.ready: list[Due] = []
        self.asked: list[tuple[float, int]] = []
        """When so many were asked for."""
        self.leases_s: list[float] = []
        self.done: list[tuple[Any, ...]] = []
        self.error: TickwheelError | None = None
        self.result: ReceiptResult | None = None
        self.takes_s = 0.0
        """How long the broker needs for an answer."""
        self._ids = itertools.count(1)
        self._came = anyio.Event()

    def put(self, count: int = 1, **fields: Any) -> list[Due]:
        """Messages get due."""
        dues = [
            Due(**{
                "receipt": Receipt(1, next(self._ids), 1), "topic": "orders", "group": "push.shop", "body": b"body",
                "headers": {}, "key": None,
                "deliver_at_ms": _KEPT_MS, "created_ms": 0, "attempt": 1, **fields,
            })
            for _ in range(count)
        ]  # fmt: skip
        self.ready += dues
        self._came.set()
        return dues

    async def take(self, count: int, wait_s: float, lease_s: float) -> Sequence[Due]:
        self.asked.append((anyio.current_time(), count))
        self.leases_s.append(lease_s)
        if self.error is not None:
            raise self.error.copy()
        with anyio.move_on_after(wait_s):
            while not self.ready:
                self._came = anyio.Event()
                await self._came.wait()
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken

    async def _settle(self, result: ReceiptResult, *what: Any) -> ReceiptResult:
        await anyio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error.copy()
        self.done.append(what)
        return self.result or result

    async def ack(self, due: Due) -> ReceiptResult:
        return await self._settle(ReceiptResult.ACKED, "ack", due.id)

    async def retry(self, due: Due, delay_ms: int, error: str) -> ReceiptResult:
        return await self._settle(ReceiptResult.NACKED, "retry", due.id, delay_ms, error)

    async def postpone(self, due: Due, delay_ms: int) -> ReceiptResult:
        return await self._settle(ReceiptResult.NACKED, "postpone", due.id, delay_ms)

    async def give_up(self, due: Due, error: str) -> ReceiptResult:
        return await self._settle(ReceiptResult.DEAD, "give_up", due.id, error)

    async def hold(self, due: Due, duration_ms: int) -> ReceiptResult:
        return await self._settle(ReceiptResult.EXTENDED, "hold", due.id, duration_ms)

    async def give_back(self, dues: Sequence[Due]) -> None:
        await self._settle(ReceiptResult.RETURNED, "give_back", *(due.id for due in dues))

    def acked(self) -> list[int]:
        """Ids."""
        return [what[1] for what in self.done if what[0] == "ack"]


class Servers:
    """Answer what `answer` says; by default 200 at once."""

    def __init__(self, answer: Callable[[Request], Awaitable[Result]] | None = None) -> None:
        self.answer = answer
        self.seen: list[tuple[float, Request]] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def ask(self, request: Request, timeout_s: float) -> Result:
        self.seen.append((anyio.current_time(), request))
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await anyio.lowlevel.checkpoint()
            return Answer(200) if self.answer is None else await self.answer(request)
        finally:
            self.in_flight -= 1

    def times(self) -> list[float]:
        """When requests came."""
        return [when for when, _ in self.seen]


def clocks() -> Clocks:
    """The time of the event loop, and no chance."""
    return Clocks(wall_s=lambda: 1_000.0 + anyio.current_time(), chance=lambda: 0.0)


def always(*results: Result) -> Callable[[Request], Awaitable[Result]]:
    """One answer after the other, and the last one from then on."""
    left = list(results)

    async def answer(request: Request) -> Result:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer
