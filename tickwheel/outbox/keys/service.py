"""The dispatcher and the executor: they wait for commits and do batch after batch, also across a lost database."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

import anyio
from sqlalchemy.exc import DBAPIError

from tickwheel.client.checks import seconds, shown
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.database import is_denied
from tickwheel.outbox.errors import AWAY, LeaseLost, OutboxError
from tickwheel.outbox.keys import leases, steps
from tickwheel.outbox.keys.encoding import limit_of
from tickwheel.outbox.keys.errors import BadLimit
from tickwheel.outbox.keys.leases import Range, Worker
from tickwheel.outbox.keys.steps import Done
from tickwheel.outbox.keys.tables import Service, Tables, check_tables
from tickwheel.outbox.threads import clean_up
from tickwheel.outbox.watch import Bell, watch_table
from tickwheel.protocol.errors import BadArgument

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from sqlalchemy.engine import Connection

    from tickwheel.outbox.database import Database

BATCH_SIZE: Final = 1_000
POLL_INTERVAL_S: Final = 30.0
LEASE_S: Final = 15.0
_log: Final = logging.getLogger("tickwheel.outbox")
_BEATS_A_LEASE: Final = 3
_LONGEST_S: Final = 100 * 365 * 86_400
_AFTER_REFUSAL: Final = 100
"""Operations that are executed one by one after the database refused a batch, to find out which it was."""


def _seconds(value: object, name: str) -> float:
    """Raises BadLimit for what is no time, none at all, or too long for ns in 64 bits."""
    try:
        number = seconds(value, name)
    except BadArgument as error:
        raise BadLimit(error.message, advice=error.advice) from None
    if not 0 < number <= _LONGEST_S:
        raise BadLimit(f"{name} is {shown(value)}.", advice=f"Use seconds above 0, up to {_LONGEST_S:,}.")
    return number


class KeyService:
    """A worker of one service. ``run()`` works until it is cancelled; ``async with`` works meanwhile."""

    def __init__(
        self,
        *,
        database: Database,
        tables: Tables,
        service: Service,
        batch_size: int,
        poll_interval_s: float,
        lease_s: float,
    ) -> None:
        poll_interval_s = _seconds(poll_interval_s, "poll_interval_s")
        lease_s = _seconds(lease_s, "lease_s")
        self.processed = 0
        """Messages moved, or operations taken out of the outbox, by this worker."""
        self.failed = 0
        """Operations set aside by this worker."""
        name = f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(6)}"
        self.worker = Worker(service, name, int(lease_s * 1e9))
        self._database = database
        self._tables = tables
        self._batch_size = limit_of(batch_size, "batch_size")
        self._poll_interval_s = poll_interval_s
        self._beat_s = lease_s / _BEATS_A_LEASE
        self._bell = Bell()
        self._one_by_one = 0
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> KeyService:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Works until it is cancelled, and gives its ranges back then. Raises TableMissing, BadTable."""
        watch = watch_table(self._database, self._tables.outbox(self.worker.service).name)
        try:
            run = partial(self._database.call_until_done, self._database.run)
            await run(lambda connection: check_tables(connection, self._tables))
            await run(self._beat)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch.run, self._bell.ring)
                tasks.start_soon(self._keep_beating)
                backoff = Backoff(first_s=0.05, max_s=2.0)
                while True:
                    self._bell.clear()
                    try:
                        async with watch.look() as look:
                            look.found = await self._work()
                        backoff.reset()
                    except AWAY as error:
                        _log.info("The %s waits for the database: %s", self.worker.service, error)
                        await anyio.sleep(backoff.next_s())
                        continue
                    await self._bell.wait(self._poll_interval_s)
        finally:
            await clean_up(self._database.call, self._give_up)

    # -- batches --

    async def _work(self) -> bool:
        """Does what there is to do in this worker's ranges, one batch of each in turn; whether there was anything."""
        found = False
        while True:
            pending, is_free_work = await self._database.call(self._look)
            if is_free_work:
                await self._database.transaction(self._beat)
                pending, _ = await self._database.call(self._look)
            if not pending:
                return found
            found = True
            while pending:
                pending = [one for one in pending if await self._batch(one)]

    def _look(self) -> tuple[list[Range], bool]:
        with self._database.reading() as connection:
            return leases.ranges_with_work(connection, self._tables, self.worker)

    async def _batch(self, held: Range) -> bool:
        """One batch; whether there may be more to do in this range."""
        try:
            work = self._dispatch if self.worker.service == "dispatcher" else self._execute
            done = await self._database.call(work, held)
        except LeaseLost:
            return False
        self.processed += done.count
        self.failed += done.failed
        return done.more

    def _dispatch(self, held: Range) -> Done:
        return self._database.run(
            lambda connection: steps.dispatch_batch(
                connection, self._tables, self.worker, held, self._batch_size
            )
        )

    def _execute(self, held: Range) -> Done:
        """One batch. If the database refuses it, the next ones are of one operation, and the bad one is set aside."""
        limit = 1 if self._one_by_one > 0 else self._batch_size
        attempted: list[int] = []

        def work(connection: Connection) -> Done:
            return steps.execute_batch(connection, self._tables, self.worker, held, limit, attempted)

        try:
            done = self._database.run(work)
        except DBAPIError as error:
            if not attempted or is_denied(error):
                raise  # that is no fault of an operation: all of them would be set aside
            if len(attempted) != 1:
                self._one_by_one = max(_AFTER_REFUSAL, len(attempted))
                return Done(0, more=True)
            text, sequence = str(error.orig), attempted[0]
            done = self._database.run(
                lambda connection: steps.set_aside(
                    connection, self._tables, self.worker, held, sequence, text
                )
            )
        self._one_by_one = max(0, self._one_by_one - 1)
        return done

    # -- the lease --

    def _beat(self, connection: Connection) -> bool:
        return leases.beat(connection, self._tables, self.worker)

    async def _keep_beating(self) -> None:
        backoff = Backoff(first_s=0.05, max_s=min(1.0, self._beat_s))
        while True:
            await anyio.sleep(self._beat_s)
            try:
                if await self._database.transaction(self._beat):
                    self._bell.ring()  # there may be something in what was taken
                backoff.reset()
            except AWAY:
                await anyio.sleep(backoff.next_s())

    def _give_up(self) -> None:
        """If the database is away, the leases run out by themselves."""
        try:
            self._database.run(lambda connection: leases.give_up(connection, self._tables, self.worker))
        except (OutboxError, DBAPIError) as error:
            _log.info("The %s ends, and its leases run out: %s", self.worker.service, error)
