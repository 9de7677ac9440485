"""What waits where, and which workers there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tickwheel.outbox.keys.leases import Range, all_ranges
from tickwheel.outbox.keys.tables import SERVICES, Tables

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


@dataclass(frozen=True, slots=True)
class KeySpaceStats:
    """Counts are of rows that are committed. ``…_age_ns``: how long the oldest waits; None: nothing does."""

    keys: int
    inbox_messages: int
    inbox_oldest_age_ns: int | None
    deliverable_messages: int
    deliverable_oldest_age_ns: int | None
    executable_messages: int
    executable_oldest_age_ns: int | None
    failed_operations: int
    dispatchers: int
    """Workers that are alive."""
    executors: int
    ranges: tuple[Range, ...]
    """Those of the dispatchers, then those of the executors, in the order of keys."""


def read_stats(connection: Connection, tables: Tables) -> KeySpaceStats:
    """Counts everything, so it takes longer the more there is."""
    now_ns = connection.execute(sa.select(tables.now())).scalar_one()
    inbox, inbox_age = _queue(connection, tables.inbox, now_ns)
    deliverable, deliverable_age = _queue(connection, tables.deliverable, now_ns)
    executable, executable_age = _queue(connection, tables.executable, now_ns)
    dispatchers, executors = (_living(connection, tables, service, now_ns) for service in SERVICES)
    return KeySpaceStats(
        keys=_count(connection, tables.data),
        inbox_messages=inbox,
        inbox_oldest_age_ns=inbox_age,
        deliverable_messages=deliverable,
        deliverable_oldest_age_ns=deliverable_age,
        executable_messages=executable,
        executable_oldest_age_ns=executable_age,
        failed_operations=_count(connection, tables.failed),
        dispatchers=dispatchers,
        executors=executors,
        ranges=tuple(one for service in SERVICES for one in all_ranges(connection, tables, service)),
    )


def _count(connection: Connection, table: sa.Table) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def _queue(connection: Connection, table: sa.Table, now_ns: int) -> tuple[int, int | None]:
    count, oldest_ns = connection.execute(
        sa.select(sa.func.count(), sa.func.min(table.c.timestamp_ns)).select_from(table)
    ).one()
    return count, None if oldest_ns is None else max(0, now_ns - oldest_ns)


def _living(connection: Connection, tables: Tables, service: str, now_ns: int) -> int:
    w = tables.workers.c
    chosen = sa.select(sa.func.count()).where(w.service == service, w.alive_until_ns >= now_ns)
    return connection.execute(chosen).scalar_one()
