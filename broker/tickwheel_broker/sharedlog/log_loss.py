"""The shared log is lost: its topic was deleted, or Kafka has lost records that this node has read.

Nothing of it comes back by waiting, and another log at the same place is not this one: the process ends, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import trio

from tickwheel.protocol.errors import TickwheelError
from tickwheel_broker.sharedlog.shared_log import NoSharedLog, OutOfRange, Read, SharedLog, Stored

LOST_S = 10.0
"""For so long it must seem lost: a machine of Kafka that has just begun, or was cut off, may not know better."""


class LogLost(TickwheelError):
    """Kafka does not have the cluster's log any more."""

    code = "log_lost"
    advice = (
        "Keep the directories of all nodes: they have what was acknowledged. Stop the nodes, and make the next cluster "
        "of the one that has followed furthest (tickwheel cluster status --data DIRECTORY): "
        "tickwheel cluster init URL --from DIRECTORY."
    )


class LastingLog:
    """A shared log that is lost when it seems so for long. Each of its calls may raise LogLost then."""

    def __init__(self, shared: SharedLog) -> None:
        self._shared = shared
        self._missing_from_s = self._unread_from_s = math.inf

    async def append(self, records: list[bytes]) -> list[int | None]:
        """See `SharedLog`."""
        return await self._shared.append(records)

    async def read(self, offset: int) -> list[Stored]:
        """See `SharedLog`."""
        with self._is_there():
            try:
                records = await self._shared.read(offset)
            except OutOfRange as error:
                if not error.is_deleted:
                    self._unread_from_s = min(self._unread_from_s, trio.current_time())
                    self._judge(
                        self._unread_from_s,
                        f"This node has read the cluster's log up to record {offset - 1}, and Kafka has it up to "
                        f"{error.end - 1}: its topic was deleted and made again, or Kafka has lost the end.",
                    )
                raise
            self._unread_from_s = math.inf
            return records

    def apart(self) -> AbstractAsyncContextManager[Read]:
        """See `SharedLog`."""
        return self._shared.apart()

    async def end(self) -> int:
        """See `SharedLog`."""
        with self._is_there():
            return await self._shared.end()

    async def first(self) -> int:
        """See `SharedLog`."""
        with self._is_there():
            return await self._shared.first()

    async def delete_before(self, offset: int) -> None:
        """See `SharedLog`."""
        await self._shared.delete_before(offset)

    @contextmanager
    def _is_there(self) -> Iterator[None]:
        try:
            yield
        except NoSharedLog as error:
            self._missing_from_s = min(self._missing_from_s, trio.current_time())
            self._judge(self._missing_from_s, f"The topic of this cluster in Kafka was deleted: {error}")
            raise
        else:
            self._missing_from_s = math.inf

    @staticmethod
    def _judge(from_s: float, words: str) -> None:
        if trio.current_time() - from_s >= LOST_S:
            raise LogLost(words)
