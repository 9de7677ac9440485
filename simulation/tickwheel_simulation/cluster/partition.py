"""A partition in memory, which all nodes of a simulated cluster share: it does what Kafka may do.

Records become visible to readers in the order in which they stand, once they are below the high-water mark. Above it
they are with their leader only, and may be lost when another machine leads. An append may be late, be stored twice or
not at all, and the answer may come, be lost, or not say where.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from tickwheel_broker.sharedlog.shared_log import (
    AppendFailed,
    NoSharedLog,
    OutOfRange,
    Read,
    SharedLogUnavailable,
    Stored,
)

APPEND_LIMIT_S = 4.0
"""After so long a node does not wait for an answer any more."""

_LATE_S = 3.0
_REPLICATED_S = 0.002


@dataclass(frozen=True)
class PartitionFaults:
    """How bad it is."""

    delay_s: float = 0.002
    """What an append takes on average, beside replication."""
    fails: float = 0.0
    """How many records of all go wrong."""


class _Appended:
    """A record above the high-water mark."""

    def __init__(self, record: bytes) -> None:
        self.record = record
        self.offset: int | None = None
        self.is_lost = False


class Partition:
    """The log itself. Each node reaches it by a `Line` of its own."""

    def __init__(self, rng: random.Random, faults: PartitionFaults | None = None) -> None:
        self.rng = rng
        self.faults = faults or PartitionFaults()
        self.records: list[bytes] = []
        """Below the high-water mark, from the first one that there ever was."""
        self.first_offset = 0
        self.is_deleted = False
        """Whether its topic was."""
        self.counts: dict[str, int] = {}
        self._above: list[_Appended] = []
        self._leads_from_s = 0.0
        self._changed = trio.Event()

    def count(self, what: str) -> None:
        """Something went wrong, on purpose."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- appending --

    def put(self, record: bytes) -> int:
        """Appends at once; returns where."""
        return self._settle(self._begin(record))

    async def append(self, record: bytes) -> int:
        """Appends; returns where, once it can be read. Raises AppendFailed."""
        await self.wait_leader()
        appended = self._begin(record)
        await trio.sleep(self.rng.random() * _REPLICATED_S)
        await self.wait_leader()
        if appended.is_lost:
            raise AppendFailed("its leader is gone")
        return self._settle(appended)

    def change_leader(self, takes_s: float) -> None:
        """Another machine leads soon; it may lack what is above the high-water mark."""
        self.count("leader changes")
        kept = self.rng.randint(0, len(self._above))
        for appended in self._above[kept:]:
            appended.is_lost = True
        del self._above[kept:]
        self._leads_from_s = trio.current_time() + takes_s

    async def wait_leader(self) -> None:
        """Return when there is a leader."""
        while trio.current_time() < self._leads_from_s:
            await trio.sleep_until(self._leads_from_s)

    @property
    def has_leader(self) -> bool:
        """Whether it can be reached now."""
        return trio.current_time() >= self._leads_from_s

    def _begin(self, record: bytes) -> _Appended:
        appended = _Appended(record)
        self._above.append(appended)
        return appended

    def _settle(self, appended: _Appended) -> int:
        """The high-water mark moves beyond it, and so beyond all before it."""
        while appended.offset is None:
            first = self._above.pop(0)
            first.offset = len(self.records)
            self.records.append(first.record)
        self._change()
        return appended.offset

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def delete(self) -> None:
        """Its topic is deleted."""
        self.is_deleted = True
        self._change()

    def begin_anew(self) -> None:
        """Its topic is deleted, and another one is made."""
        self.records.clear()
        self._change()

    # -- reading --

    async def wait_changed(self) -> None:
        """Return when there is another record, or something else has happened to it."""
        await self._changed.wait()

    async def wait_beyond(self, offset: int) -> None:
        """Return when there is a record at this offset."""
        while len(self.records) <= offset:
            await self._changed.wait()


class Line:
    """One node's way to it, whose directions can be cut by themselves; `is_cut` is both."""

    def __init__(self, partition: Partition, nursery: trio.Nursery, *, read_delay_s: float = 0.002) -> None:
        """`nursery` takes what is still on its way when the node is gone."""
        self.partition, self._nursery = partition, nursery
        self._read_delay_s = read_delay_s
        self.is_cut = self.refuses_appends = False
        """The latter: as Kafka does for a setting of the topic, or without the right to write."""
        self.loses_requests: Callable[[], bool] = lambda: self.is_cut
        self.loses_answers: Callable[[], bool] = lambda: self.is_cut
        self.is_down: Callable[[], bool] = lambda: False
        """Whether the node is dead: what its tasks do while they end never happened."""

    async def append(self, records: list[bytes]) -> list[int | None]:
        """See `SharedLog`."""
        with trio.move_on_after(APPEND_LIMIT_S):
            await trio.sleep(self.partition.rng.expovariate(1) * self.partition.faults.delay_s)
            return [await self._append(record) for record in records]
        self.partition.count("late answers")
        raise AppendFailed("no answer in time")

    async def _append(self, record: bytes) -> int | None:
        partition = self.partition
        rng = partition.rng
        if self.refuses_appends or self.partition.is_deleted:
            raise AppendFailed("the record is refused")
        if self.loses_requests() or self.is_down():
            await trio.sleep(1)
            raise AppendFailed("the connection is cut")
        if rng.random() >= partition.faults.fails:
            offset = await partition.append(record)
            if self.loses_answers():
                raise AppendFailed("the connection is cut")
            return offset
        fault = rng.choice(["no place", "twice", "lost", "stored", "late"])
        partition.count(fault)
        match fault:
            case "no place":
                await partition.append(record)
                return None
            case "twice":
                return rng.choice([await partition.append(record), await partition.append(record)])
            case "stored":
                await partition.append(record)
                raise AppendFailed("its answer is lost")
            case "late":
                self._nursery.start_soon(self._put_later, record)
                raise AppendFailed("it took too long")
        raise AppendFailed("it is lost")

    async def _put_later(self, record: bytes) -> None:
        await trio.sleep(self.partition.rng.random() * _LATE_S)
        self.partition.put(record)

    @property
    def _is_deaf(self) -> bool:
        """Whether nothing that is asked is answered."""
        return self.loses_requests() or self.loses_answers()

    async def read(self, offset: int) -> list[Stored]:
        """See `SharedLog`."""
        partition = self.partition
        if not partition.has_leader:
            await partition.wait_leader()
            raise SharedLogUnavailable("there is no leader")
        while True:
            self._check_there()
            if not partition.first_offset <= offset <= len(partition.records):
                raise OutOfRange(offset, partition.first_offset, len(partition.records))
            if offset == len(partition.records):
                await partition.wait_changed()
                continue
            await trio.sleep(partition.rng.expovariate(1) * self._read_delay_s)
            if not self._is_deaf:
                break
            await trio.sleep(0.1)
        end = min(len(partition.records), offset + partition.rng.randint(1, 50))
        return [Stored(at, partition.records[at]) for at in range(offset, end)]

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[Read]:
        """See `SharedLog`."""
        yield self.read

    async def end(self) -> int:
        """See `SharedLog`."""
        await self._ask()
        return len(self.partition.records)

    async def first(self) -> int:
        """See `SharedLog`."""
        await self._ask()
        return self.partition.first_offset

    async def delete_before(self, offset: int) -> None:
        """See `SharedLog`."""
        await self._ask()
        if offset > self.partition.first_offset:
            self.partition.first_offset = offset
            self.partition.count("trims")

    async def _ask(self) -> None:
        await trio.sleep(0.001)
        if self._is_deaf:
            await trio.sleep(0.5)
            raise SharedLogUnavailable("the connection is cut")
        self._check_there()

    def _check_there(self) -> None:
        if self.partition.is_deleted:
            raise NoSharedLog("there is no such topic")
