"""Which worker has which range of keys.

A service's ranges cover all keys. Each is owned by one worker at a time, under a lease that the worker renews: by
its batches, and every third of the lease by ``beat``. A range's ``epoch`` goes up whenever it changes hands or shape.
A batch begins with ``fence``, which locks the range's row and checks the epoch: a worker that lost its range, however
late it notices, changes nothing; and no range is taken over while a batch is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from tickwheel.outbox.database import in_parts
from tickwheel.outbox.errors import DatabaseBusy, LeaseLost
from tickwheel.outbox.keys.tables import SERVICES, Service, Tables, within

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_CHUNK: Final = 100
"""Ranges that one statement looks into."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Who works. ``name`` is different in each run of each process."""

    service: Service
    name: str
    lease_ns: int


@dataclass(frozen=True, slots=True)
class Range:
    """The keys from ``start`` up to ``end`` (None: to the last), and the worker that has them."""

    service: Service
    start: bytes
    end: bytes | None
    owner: str | None
    epoch: int
    lease_until_ns: int


def all_ranges(connection: Connection, tables: Tables, service: Service) -> list[Range]:
    """A service's ranges, in the order of their keys."""
    c = tables.ranges.c
    rows = connection.execute(sa.select(tables.ranges).where(c.service == service).order_by(c.range_start))
    return [_range(row._mapping) for row in rows]


def _range(row: Any) -> Range:
    end = row["range_end"]
    return Range(
        service=row["service"],
        start=bytes(row["range_start"]),
        end=None if end is None else bytes(end),
        owner=row["owner"],
        epoch=row["epoch"],
        lease_until_ns=row["lease_until_ns"],
    )


# -- what a worker does --


def fence(connection: Connection, tables: Tables, worker: Worker, held: Range) -> None:
    """Locks the range's row until the transaction ends, and renews the lease. Raises LeaseLost.

    A lease that has expired is still this worker's until another takes it.
    """
    c = tables.ranges.c
    change = sa.update(tables.ranges).where(
        c.service == worker.service,
        c.range_start == held.start,
        c.owner == worker.name,
        c.epoch == held.epoch,
    )
    if connection.execute(change.values(lease_until_ns=tables.now() + worker.lease_ns)).rowcount != 1:
        raise LeaseLost(f"{worker.name} has lost the range that begins at {held.start!r}.", ids=[held.start])


def ranges_with_work(connection: Connection, tables: Tables, worker: Worker) -> tuple[list[Range], bool]:
    """The worker's ranges whose outboxes are not empty, and whether a range without an owner is not empty either."""
    c = tables.ranges.c
    is_free = sa.or_(c.owner.is_(None), c.lease_until_ns < tables.now())
    chosen = sa.select(tables.ranges, is_free.label("is_free")).where(
        c.service == worker.service, sa.or_(c.owner == worker.name, is_free)
    )
    found = [(_range(row._mapping), bool(row.is_free)) for row in connection.execute(chosen)]
    outbox = tables.outbox(worker.service)
    busy: list[tuple[Range, bool]] = []
    for chunk in in_parts(found, _CHUNK):
        questions = [
            sa.exists(
                sa.select(sa.literal(1))
                .select_from(outbox)
                .where(within(outbox.c.sender, one.start, one.end))
            )
            for one, _ in chunk
        ]
        answers = connection.execute(sa.select(*(q.label(f"r{i}") for i, q in enumerate(questions)))).one()
        busy += [one for one, is_busy in zip(chunk, answers, strict=True) if is_busy]
    mine = [one for one, _ in busy if one.owner == worker.name]
    return mine, any(is_free and one.owner != worker.name for one, is_free in busy)


def beat(connection: Connection, tables: Tables, worker: Worker) -> bool:
    """Says that the worker is alive, renews its leases, and moves towards its fair share; whether it took ranges.

    With R ranges and W live workers, each has R // W, and the oldest R % W workers one more. A worker with more gives
    some back, one with less takes what is free or expired. Rows that others have locked are passed over: a locked
    range is in use.
    """
    _say_alive(connection, tables, worker)
    workers = tables.workers.c
    living = sa.select(workers.worker).where(
        workers.service == worker.service, workers.alive_until_ns >= tables.now()
    )
    names = list(connection.scalars(living.order_by(workers.since_ns, workers.worker)))
    ranges = all_ranges(connection, tables, worker.service)
    mine = [one.start for one in ranges if one.owner == worker.name]
    rank = names.index(worker.name) if worker.name in names else len(names)
    share = _share(len(ranges), max(1, len(names)), rank)
    is_mine = tables.ranges.c.owner == worker.name
    until = tables.now() + worker.lease_ns
    _update_unlocked(connection, tables, worker, mine[:share], is_mine, {"lease_until_ns": until})
    _update_unlocked(connection, tables, worker, mine[share:], is_mine, {"owner": None, "lease_until_ns": 0})
    if len(mine) >= share:
        return False
    now_ns = connection.scalar(sa.select(tables.now()))
    assert now_ns is not None
    free = [
        one.start
        for one in ranges
        if one.owner != worker.name and (one.owner is None or one.lease_until_ns < now_ns)
    ]
    is_free = sa.or_(tables.ranges.c.owner.is_(None), tables.ranges.c.lease_until_ns < tables.now())
    taken = {"owner": worker.name, "epoch": tables.ranges.c.epoch + 1, "lease_until_ns": until}
    return _update_unlocked(connection, tables, worker, free[: share - len(mine)], is_free, taken) > 0


def give_up(connection: Connection, tables: Tables, worker: Worker) -> None:
    """Gives all ranges back at once: the worker ends."""
    c, w = tables.ranges.c, tables.workers.c
    mine = sa.update(tables.ranges).where(c.service == worker.service, c.owner == worker.name)
    connection.execute(mine.values(owner=None, lease_until_ns=0))
    connection.execute(sa.delete(tables.workers).where(w.service == worker.service, w.worker == worker.name))


def _say_alive(connection: Connection, tables: Tables, worker: Worker) -> None:
    w, now = tables.workers.c, tables.now()
    alive = tables.upsert(tables.workers, lambda new: {"alive_until_ns": new.alive_until_ns})
    connection.execute(
        alive.values(since_ns=now, alive_until_ns=now + worker.lease_ns),
        {"service": worker.service, "worker": worker.name},
    )
    # Only read here, in most cases: deleting what may be nothing would wait for other workers' rows.
    is_dead = sa.and_(w.service == worker.service, w.alive_until_ns < now - worker.lease_ns)
    dead = list(connection.scalars(sa.select(w.worker).where(is_dead)))
    for chunk in in_parts(dead, _CHUNK):
        connection.execute(sa.delete(tables.workers).where(is_dead, w.worker.in_(chunk)))


def _share(ranges: int, workers: int, rank: int) -> int:
    return ranges // workers + (rank < ranges % workers)


def _update_unlocked(
    connection: Connection,
    tables: Tables,
    worker: Worker,
    starts: Sequence[bytes],
    condition: sa.ColumnElement[bool],
    values: dict[str, Any],
) -> int:
    """Changes those of the ranges that fulfil the condition and are not locked, and counts them."""
    c, changed = tables.ranges.c, 0
    for chunk in in_parts(starts, _CHUNK):
        named = sa.and_(c.service == worker.service, c.range_start.in_(list(chunk)))
        unlocked = sa.select(c.range_start).where(named, condition).with_for_update(skip_locked=True)
        locked = list(connection.scalars(unlocked))
        if locked:
            change = sa.update(tables.ranges).where(c.service == worker.service, c.range_start.in_(locked))
            changed += connection.execute(change.values(**values)).rowcount
    return changed


# -- the shape of the ranges --


def split(connection: Connection, tables: Tables, at: bytes) -> bool:
    """Splits the range that the key is in, so that one begins there; False if one does already.

    The halves have no owner then: the next workers that look take them. Raises DatabaseBusy if others reshape the
    ranges.
    """
    c = tables.ranges.c
    contains = sa.and_(c.range_start <= at, sa.or_(c.range_end.is_(None), c.range_end > at))
    done = False
    for service in SERVICES:
        held = _locked_range(connection, tables, service, contains)
        if held is None:
            raise DatabaseBusy(f"Another process changes the ranges of {tables.name}.")
        if held.start == at:
            continue
        _reshape(connection, tables, held, at, held.epoch + 1)
        upper = {"service": service, "range_start": at, "range_end": held.end, "epoch": held.epoch + 1}
        connection.execute(sa.insert(tables.ranges), {**upper, "owner": None, "lease_until_ns": 0})
        done = True
    return done


def merge(connection: Connection, tables: Tables, at: bytes) -> bool:
    """Joins the range that begins at the key to the one before; False if none begins there.

    Raises DatabaseBusy if others reshape the ranges.
    """
    c = tables.ranges.c
    done = False
    for service in SERVICES:
        lower = _locked_range(
            connection, tables, service, c.range_end == at
        )  # in the order of keys, as `split`
        upper = _locked_range(connection, tables, service, c.range_start == at) if at else None
        if lower is None and upper is None:
            continue
        if lower is None or upper is None:
            raise DatabaseBusy(f"Another process changes the ranges of {tables.name}.")
        connection.execute(sa.delete(tables.ranges).where(c.service == service, c.range_start == at))
        # Higher than both: a worker may still hold what it thinks is the upper range, and it may be split off again.
        _reshape(connection, tables, lower, upper.end, max(lower.epoch, upper.epoch) + 1)
        done = True
    return done


def _locked_range(
    connection: Connection, tables: Tables, service: Service, condition: sa.ColumnElement[bool]
) -> Range | None:
    """The range, once no batch is under way in it. On SQLite the transaction is the only one that writes."""
    chosen = sa.select(tables.ranges).where(tables.ranges.c.service == service, condition)
    row = connection.execute(chosen.with_for_update()).one_or_none()
    return None if row is None else _range(row._mapping)


def _reshape(connection: Connection, tables: Tables, held: Range, end: bytes | None, epoch: int) -> None:
    c = tables.ranges.c
    change = sa.update(tables.ranges).where(c.service == held.service, c.range_start == held.start)
    connection.execute(change.values(range_end=end, owner=None, epoch=epoch, lease_until_ns=0))
