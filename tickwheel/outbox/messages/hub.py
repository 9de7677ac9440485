"""The hub: delivers a message table to the subscribers of one process, in turn.

One task claims. It wakes when a commit may have brought something (``watch``), when something becomes due (the next
due times are on a timer wheel), and when a subscriber has room; otherwise it sleeps, and asks the database for nothing.
The table is the truth: what is looked up is claimed with a fence, so any number of hubs share a table.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskGroup
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tickwheel.client.forks import keep, tell
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.errors import AWAY, BadTable, DatabaseUnavailable, OutboxError
from tickwheel.outbox.messages import schema as schemas
from tickwheel.outbox.messages.acks import AckQueue
from tickwheel.outbox.messages.candidates import Candidates, PassedOver
from tickwheel.outbox.messages.claiming import check_times, claim_readable, look, repair
from tickwheel.outbox.messages.delivered import Batch
from tickwheel.outbox.messages.form import TableForm
from tickwheel.outbox.messages.purging import purge_some
from tickwheel.outbox.messages.statements import PURGE_BATCH, Claimed
from tickwheel.outbox.messages.stream import Stream
from tickwheel.outbox.schedule import DueTimes
from tickwheel.outbox.threads import clean_up
from tickwheel.outbox.watch import watch_table
from tickwheel.protocol.errors import BadArgument, ClientClosed, TickwheelError

logger = logging.getLogger("tickwheel.outbox")

_CHECK_INTERVAL_S = 10.0
"""How often the table's form, its settings and the clocks are compared."""
_LOOK_AHEAD = 2
"""Candidates looked up for each message that can be delivered: others may be faster at some of them."""
_LOOK_INTERVAL_S = 0.05
"""While candidates are left, what may be new is looked for only so often: our own commits may look like news, too."""
_CLOSE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class HubStats:
    """Counts since the hub was opened. ``retried``: deliveries that were not a message's first. ``missed``: candidates
    that another hub, an ack or a change was faster at."""

    sent: int = 0
    retried: int = 0
    missed: int = 0
    looks: int = 0
    purged: int = 0
    failures: int = 0


class Hub:
    """See the module. Made by ``MessageTable.hub``."""

    def __init__(self, table: TableForm) -> None:
        self.stats = HubStats()
        self.acks = AckQueue(table)
        self._table = table
        self._database = table.database
        self._watch = watch_table(table.database, table.name)
        self._due_times = DueTimes(table.database.now_ns())
        self._candidates = Candidates()
        self._streams: list[Stream] = []
        self._turn = 0
        self._must_look = True
        self._passed_over = PassedOver()
        self._pause = Backoff(first_s=0.005, max_s=0.1)
        self._look_again_at = 0.0
        self._woken = anyio.Event()
        self._was_opened = False
        self._group: TaskGroup | None = None
        self._error: TickwheelError | None = None
        tell(self)

    # -- subscribers --

    @asynccontextmanager
    async def subscribe(self, batch_size: int | None = None) -> AsyncIterator[Stream]:
        """A subscriber of its own; ``batch_size``: default the table's. What it did not look at is given back."""
        if self._error is not None:
            raise self._error.copy()
        if self._group is None:
            raise ClientClosed(
                "The hub is not open.", advice="Use it inside `async with table.hub() as hub:`."
            )
        stream = Stream(self._table, self._wake, batch_size)
        self._streams.append(stream)
        self._wake()
        try:
            yield stream
        finally:
            self._streams.remove(stream)
            await self._give_back(stream.close())

    def ring(self, due_ns: int | None) -> None:
        """A commit may have brought messages: now (None), or some that become due at ``due_ns``."""
        if due_ns is None or due_ns <= self._database.now_ns():
            self._must_look = True
        else:
            self._due_times.add(due_ns)
        self._wake()

    def _wake(self) -> None:
        self._woken.set()

    async def _give_back(self, receipts: Sequence[tuple[Hashable, int]]) -> None:
        """Best effort: where it fails, the leases run out. Also for a caller that asyncio cancels in this moment."""
        if not receipts:
            return
        statements, database = self._table.statements, self._database
        try:
            await clean_up(self._in_time, lambda one: statements.give_back(one, receipts, database.now_sql()))
        except (OutboxError, DBAPIError) as error:
            logger.warning(
                "%s: %d messages come again after ack_wait: %s", self._table.name, len(receipts), error
            )

    async def _in_time(self, work: Callable[[Connection], object]) -> None:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True) as scope:
            await self._database.transaction(work)
        if scope.cancelled_caught:
            raise DatabaseUnavailable(f"{self._table.name}: no answer within {_CLOSE_TIMEOUT_S:g} s.")

    # -- life --

    async def open(self) -> None:
        """Starts the tasks; once. Raises what makes the table unusable."""
        if self._was_opened:
            raise BadArgument("A hub is opened once.", advice="Call table.hub() again.")
        self._was_opened = True
        await self._database.call(self._reload)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        for work in (partial(self._watch.run, self.ring), self._deliver, self._keep, self.acks.run):
            self._group.start_soon(self._guarded, work)

    def _reload(self) -> schemas.Schema:
        schema = self._table.reload()
        if self._database.kind != "postgresql":
            return schema
        try:
            self._database.run(lambda one: schemas.make_notify(one, schema))
        except BadTable as error:
            logger.warning("%s Until then it is only looked at every vt_poller_interval.", error)
        return schema

    async def close(self) -> None:
        """Ends the tasks, after the acks that are on their way."""
        group, self._group = self._group, None
        if group is None:
            return
        try:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await self.acks.flush()
            unseen = [receipt for stream in self._streams for receipt in stream.close()]
            await self._give_back(unseen)
        finally:
            for stream in self._streams:
                stream.close()
            # The group is ours alone: its end must neither be interrupted by, nor wrap, what happens to the user's
            # block.
            group.cancel_scope.shield = True
            group.cancel_scope.cancel()
            try:
                await group.__aexit__(None, None, None)
            finally:
                self.acks.close()
                self._due_times.close()

    def forked(self, error: TickwheelError) -> None:
        """See ``_forks``: what was claimed is the parent's."""
        keep(self._group)
        self._error, self._group = error, None
        for stream in self._streams:
            stream.forked(error)
        self.acks.forked(error)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """A task that fails for good tells all subscribers, and does not end the user's block from outside."""
        try:
            await work()
        except OutboxError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("%s: delivery stopped", self._table.name)
            self._fail(OutboxError(f"{self._table.name}: delivery stopped: {error!r}."))

    def _fail(self, error: OutboxError) -> None:
        self._error = error
        for stream in self._streams:
            stream.close(error)
        self.acks.fail(error)

    # -- delivering --

    async def _deliver(self) -> None:
        backoff = Backoff(first_s=0.05, max_s=5.0)
        while True:
            version = self._table.schema.version
            try:
                await self._round()
                backoff.reset()
            except AWAY as error:
                self.stats.failures += 1
                pause_s = backoff.next_s()
                logger.warning("%s: trying again in %.1f s: %s", self._table.name, pause_s, error.message)
                self._must_look = True
                await anyio.sleep(pause_s)
            except DBAPIError as error:
                await self._after_change(error, version)
                await anyio.sleep(backoff.next_s())

    async def _after_change(self, error: DBAPIError, before: object) -> None:
        """A statement failed: most likely the table was altered. Raises TableMissing, BadTable, or OutboxError."""
        try:
            schema = await self._database.call(self._reload)
        except AWAY:
            return
        if schema.version == before:
            raise OutboxError(f"{self._table.name}: {error.orig}.") from error
        self._must_look = True

    async def _round(self) -> None:
        """One step: looks, claims and hands out, or sleeps until there is a reason to."""
        wanted = sum(stream.wants for stream in self._streams)
        if not wanted:
            await self._sleep_until(None)
        elif len(self._candidates) and not (self._must_look and anyio.current_time() >= self._look_again_at):
            await self._claim(wanted)
        elif self._must_look:
            await self._look(wanted)
        else:
            await self._sleep_until(self._due_times.next_ns())

    async def _sleep_until(self, due_ns: int | None) -> None:
        if not self._woken.is_set():
            seconds = None if due_ns is None else max(0.0, (due_ns - self._database.now_ns()) / 1e9)
            with anyio.move_on_after(seconds):
                await self._woken.wait()
        self._woken = anyio.Event()
        if self._due_times.take(self._database.now_ns()):
            self._must_look = True

    async def _look(self, wanted: int) -> None:
        self._must_look = False
        passed, limit = self._passed_over, self._look_limit(wanted)
        async with self._watch.look() as seen:
            found = await self._database.call(look, self._table, limit, len(passed))
            seen.found = bool(found.due)
        self.stats.looks += 1
        now_s = anyio.current_time()
        rest = passed.rest(found.due, now_s)
        self._candidates.replace(rest, found.cut)
        self._look_again_at = now_s + _LOOK_INTERVAL_S
        if found.next_due_ns is not None:
            self._due_times.add(found.next_due_ns)
        if found.due and not rest:
            self._must_look = True
            if self._look_limit(wanted) <= limit:
                passed.clear()
                await anyio.sleep(self._pause.next_s())  # others hold all that we see, for a time

    def _look_limit(self, wanted: int) -> int:
        """Those that could not be had may still be there, locked by others: we look past them."""
        limit = max(_LOOK_AHEAD * (wanted + len(self._passed_over)), 1)
        return min(limit, self._table.settings.cache_size)

    async def _claim(self, wanted: int) -> None:
        chosen = self._candidates.take(wanted)
        claimed = await self._database.call(claim_readable, self._table, chosen)
        had = {one.id for one in claimed}
        self._passed_over.add([one for one in chosen if one.id not in had], anyio.current_time())
        if not len(self._candidates):
            self._must_look = True  # there may be more; the look that finds nothing says when the next is due
        self.stats.sent += len(claimed)
        self.stats.retried += sum(one.epoch > 1 for one in claimed)
        self.stats.missed += len(chosen) - len(claimed)
        await self._hand_out(claimed)
        if claimed:
            self._pause.reset()

    async def _hand_out(self, claimed: Sequence[Claimed]) -> None:
        """Round robin: each subscriber that has room gets a batch, the one after the last to get one first."""
        start = 0
        for _ in range(len(self._streams)):
            if start >= len(claimed):
                return
            self._turn = (self._turn + 1) % len(self._streams)
            stream = self._streams[self._turn]
            part = claimed[start : start + stream.wants]
            if part:
                stream.give(Batch(self._table, part, self.acks))
                start += len(part)
        # Who wanted them has left in the meantime.
        await self._give_back([(one.id, one.epoch) for one in claimed[start:]])

    # -- keeping --

    async def _keep(self) -> None:
        """Notices changes of the table, purges, and looks now and then even if nothing woke us."""
        polled_at = anyio.current_time()
        while True:
            interval_s = self._table.settings.poller_interval_ms / 1000
            await anyio.sleep(min(_CHECK_INTERVAL_S, interval_s))
            try:
                await self._check_form()
                if anyio.current_time() >= polled_at + interval_s:
                    polled_at = anyio.current_time()
                    await self._poll()
            except (*AWAY, DBAPIError) as error:
                self.stats.failures += 1
                logger.warning("%s: %s", self._table.name, error)

    async def _check_form(self) -> None:
        """Raises TableMissing and BadTable when the table was dropped, or is no message table any more."""
        async with self._watch.aside("form"):
            version = await self._database.call(self._read_version)
        if version != self._table.schema.version:
            await self._database.call(self._reload)
            logger.info("%s was changed", self._table.name)
            self.ring(None)

    def _read_version(self) -> object:
        with self._database.reading() as connection:
            return schemas.current_version(self._database, connection, self._table.name)

    async def _poll(self) -> None:
        database = self._database
        async with self._watch.aside("clocks"):
            await database.call(database.compare_clocks)
        await database.call(check_times if self._table.schema.is_strict else repair, self._table)
        purged = PURGE_BATCH
        while purged == PURGE_BATCH:
            async with self._watch.aside("purge"):
                purged = await database.call(purge_some, self._table)
            self.stats.purged += purged
        self.ring(None)


@asynccontextmanager
async def run_hub(table: TableForm) -> AsyncIterator[Hub]:
    """A hub that runs as long as the block."""
    hub = Hub(table)
    await hub.open()
    try:
        yield hub
    finally:
        await hub.close()
