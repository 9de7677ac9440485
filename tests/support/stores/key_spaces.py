"""What tests of key spaces need: the services' work without the services, and waiting for them."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.to_thread import run_sync

from tickwheel.outbox import KeySpace
from tickwheel.outbox.keys import leases, steps
from tickwheel.outbox.keys.leases import Worker
from tickwheel.outbox.keys.tables import SERVICES, Service, Tables

LEASE_NS = 60_000_000_000
PATIENCE_S = 60.0


def tables_of(space: KeySpace) -> Tables:
    """The tables of a space."""
    return Tables(space.database, space.name)


def worker(service: Service, name: str = "test") -> Worker:
    """A worker with a long lease."""
    return Worker(service, name, LEASE_NS)


def work_off(space: KeySpace, *services: Service, limit: int = 100) -> None:
    """Does all that there is to do in ranges that are free, and gives them back."""
    tables, database = tables_of(space), space.database
    for service in services or SERVICES:
        one = worker(service)
        step = steps.dispatch_batch if service == "dispatcher" else steps.execute_batch
        database.run(lambda connection, one=one: leases.beat(connection, tables, one))  # type: ignore[misc]
        with database.reading() as connection:
            pending, _ = leases.ranges_with_work(connection, tables, one)
        for held in pending:
            while database.run(
                lambda c, one=one, step=step, held=held: step(c, tables, one, held, limit)
            ).more:  # type: ignore[misc]
                pass
        database.run(lambda connection, one=one: leases.give_up(connection, tables, one))  # type: ignore[misc]


async def until(condition: Callable[[], bool]) -> None:
    """Asks again until it is so. The test's own deadline ends it otherwise."""
    while not await run_sync(condition):
        await anyio.sleep(0.01)


def is_done(space: KeySpace) -> bool:
    """Whether the outboxes are empty."""
    stats = space.stats()
    return stats.deliverable_messages == 0 == stats.executable_messages
