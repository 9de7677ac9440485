"""Acks of many calls in few frames: while one frame of a group is on its way, others collect what the next one has.

One of those who wait makes the request for all of them. When it is cancelled another one makes it again, which does
no harm: to ack twice counts as once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from tickwheel import Client, ReceiptResult, TickwheelError

MANY: Final = 8
"""After so many acks in one frame more are coming: the next one waits a little for them, because to sync the log costs
the broker as much as many acks."""
GATHER_S: Final = 0.002

Delivered: TypeAlias = tuple[int, int]
"""(id, epoch)."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A caller, until its acks are answered."""

    receipts: list[Delivered]
    results: list[ReceiptResult] | None = None
    error: Exception | None = None
    has_left: bool = False
    """It was cancelled, or has its answer."""
    bell: trio.Event = field(default_factory=trio.Event)
    """Rung when there is an answer, or when it may be the one who asks."""

    @property
    def is_answered(self) -> bool:
        return self.results is not None or self.error is not None


@dataclass(eq=False, slots=True)
class _Line:
    """Those who ack for one group over one client."""

    waiting: list[_Waiting] = field(default_factory=list)
    is_asking: bool = False
    """A frame is on its way."""
    last: int = 0
    """How many acks the last frame had."""

    def wake(self) -> None:
        """Lets the next one ask, if there is one."""
        if self.waiting and not self.is_asking:
            self.waiting[0].bell.set()


class Acking:
    """Acks by receipts."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Client, int], _Line] = {}

    def __len__(self) -> int:
        """How many groups are being acked for."""
        return len(self._lines)

    async def ack(self, client: Client, group_id: int, receipts: list[Delivered]) -> list[ReceiptResult]:
        """As ``Client.ack``, which is called once for all who wait. Raises what it raises."""
        key = client, group_id
        line = self._lines.setdefault(key, _Line())
        mine = _Waiting(receipts)
        line.waiting.append(mine)
        try:
            while not mine.is_answered:
                if not line.is_asking:
                    await _ask(client, group_id, line)
                    continue
                await mine.bell.wait()
                mine.bell = trio.Event()
        finally:
            mine.has_left = True
            if not mine.is_answered and mine in line.waiting:
                line.waiting.remove(mine)
            line.wake()
            if not line.waiting and not line.is_asking:
                self._lines.pop(key, None)
        if mine.error is not None:
            raise mine.error.copy() if isinstance(mine.error, TickwheelError) else mine.error
        assert mine.results is not None
        return mine.results


async def _ask(client: Client, group_id: int, line: _Line) -> None:
    """One request for all who wait now."""
    line.is_asking = True
    asking: list[_Waiting] = []
    try:
        if line.last >= MANY:
            await trio.sleep(GATHER_S)
        else:
            await trio.lowlevel.checkpoint()  # calls that came in the same read join
        asking, line.waiting = line.waiting, []
        receipts = [receipt for each in asking for receipt in each.receipts]
        line.last = len(receipts)
        results = await client.ack(group_id, receipts)
    except Exception as error:
        for each in asking:
            each.error = error
    except BaseException:
        line.waiting[:0] = [each for each in asking if not each.has_left]
        raise
    else:
        at = 0
        for each in asking:
            each.results = results[at : at + len(each.receipts)]
            at += len(each.receipts)
    finally:
        line.is_asking = False
        for each in asking:
            if each.is_answered:
                each.bell.set()
