"""Acks that gather: those of many requests go in one frame, which costs the broker hardly more than one of them.

The first goes at once, and the next ones not sooner than `APART_S` after it, together. Nothing waits for an ack: its
request is over, and its endpoint has room for another one. A process that is killed meanwhile has a few messages more
whose acks are not made, which come again, as they might in any case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio

from tickwheel import ReceiptResult, TickwheelError

APART_S: Final = 0.01

Make: TypeAlias = Callable[[int, Sequence[tuple[int, int]]], Awaitable[Sequence[ReceiptResult]]]
"""Acks receipts of a group, by its number: ``Client.ack``."""


@dataclass(eq=False, slots=True)
class _Frame:
    """Receipts of one group, and what came of them."""

    receipts: list[tuple[int, int]] = field(default_factory=list)
    is_over: anyio.Event = field(default_factory=anyio.Event)
    results: Sequence[ReceiptResult] | None = None
    error: TickwheelError | None = None


class Acks:
    """Those of one endpoint."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._open: dict[int, _Frame] = {}
        """What may still be joined, by group."""
        self._began = -APART_S

    async def ack(self, group_id: int, receipt: tuple[int, int]) -> ReceiptResult:
        """Returns when it is durable. Raises TickwheelError."""
        while True:
            frame = self._open.get(group_id)
            if frame is None:
                return (await self._carry(group_id, receipt))[0]
            place = len(frame.receipts)
            frame.receipts.append(receipt)
            await frame.is_over.wait()
            if frame.error is not None:
                raise frame.error.copy()
            if frame.results is not None:
                return frame.results[place]
            # Who carried it was cancelled.

    async def _carry(self, group_id: int, receipt: tuple[int, int]) -> Sequence[ReceiptResult]:
        """Makes a frame with this and what comes meanwhile."""
        frame = self._open[group_id] = _Frame([receipt])
        try:
            await anyio.sleep_until(self._began + APART_S)
            self._began = anyio.current_time()
            del self._open[group_id]
            frame.results = await self._make(group_id, frame.receipts)
        except TickwheelError as error:
            frame.error = error
            raise
        finally:
            if self._open.get(group_id) is frame:
                del self._open[group_id]
            frame.is_over.set()
        return frame.results
