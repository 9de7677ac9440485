"""Looking and claiming so that one bad row does not stop the others.

- A row that cannot be read (in SQLite a JSON column that holds no JSON, in PostgreSQL a timestamp beyond the year 9999)
  fails only when it is fetched. It is counted as delivered in vain, and comes again after its backoff.
- A row that the database refuses to have claimed (a constraint or a trigger of the user's) is set aside in memory, and
  tried again after a minute, and then more and more seldom.
- A row with a value that its column should not hold is repaired, or put off if that is impossible, when it is seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, DBAPIError

from tickwheel.outbox.database import is_denied
from tickwheel.outbox.errors import BadTable, DatabaseBusy
from tickwheel.outbox.messages.candidates import Candidate
from tickwheel.outbox.messages.form import TableForm
from tickwheel.outbox.messages.schema import current_version
from tickwheel.outbox.messages.statements import Claimed, Found, UnsoundRows

logger = logging.getLogger("tickwheel.outbox")
_UNREADABLE: Final = (ValueError, TypeError, ArithmeticError, DataError)
_SECOND_NS: Final = 1_000_000_000
_NAMELESS_NS: Final = 3_600 * _SECOND_NS
_MOST_WARNINGS: Final = 3
"""Lines in the log for what one claim could not take, however many rows that are."""


# -- looking --


def look(table: TableForm, limit: int, passed: int = 0, *, asks_clock: bool = False) -> Found:
    """``Statements.look`` at what is not set aside, after repairs that it needs. Raises BadTable."""
    aside = table.aside
    try:
        found = _look(table, limit + len(aside), passed + len(aside), asks_clock)
    except UnsoundRows:
        repair(table)
        try:
            found = _look(table, limit + len(aside), passed + len(aside), asks_clock)
        except UnsoundRows:
            raise BadTable(
                f"{table.name} has messages whose id, priority, epoch or time_next is no whole number, and which cannot"
                " be repaired.",
                advice="select id, priority, epoch, time_next from the table where time_acked is null: correct them.",
            ) from None
    rest = aside.rest(found.due, time.monotonic())
    if rest or not found.due:
        return replace(found, due=rest)
    # Behind these, others of the same priority may become due at any time.
    soon_ns = table.database.now_ns() + _SECOND_NS
    next_due_ns = soon_ns if found.next_due_ns is None else min(soon_ns, found.next_due_ns)
    return Found((), next_due_ns, found.cut)


def _look(table: TableForm, limit: int, passed: int, asks_clock: bool) -> Found:
    database = table.database
    with database.reading() as connection:
        now_ns = database.ask_clock(connection) if asks_clock else database.now_ns()
        return table.statements.look(connection, now_ns, limit, passed)


def repair(table: TableForm) -> int:
    """Makes messages deliverable that are not, because of a value that should not be there. Returns how many."""
    database, statements = table.database, table.statements

    def work(connection: Connection) -> tuple[int, int]:
        now_ns = database.now_ns()
        repaired = statements.repair(connection, now_ns)
        return repaired, statements.put_off_nameless(connection, now_ns + _NAMELESS_NS)

    repaired, nameless = database.run(work)
    if repaired:
        logger.warning("%s: %d messages had no time or no priority, or a wrong one", table.name, repaired)
    if nameless:
        logger.warning(
            "%s: %d messages have no id, so they can be neither delivered nor acked: give them one, or delete them",
            table.name,
            nameless,
        )
    return repaired


def check_times(table: TableForm) -> None:
    """Repairs what ``look`` does not see."""
    try:
        with table.database.reading() as connection:
            table.statements.check_times(connection)
    except UnsoundRows:
        repair(table)


# -- claiming --


def claim_readable(table: TableForm, chosen: Sequence[Candidate]) -> list[Claimed]:
    """Claims candidates, in a transaction of its own if all can be claimed and read, else in ever smaller parts."""
    if not chosen:
        return []
    refused: list[tuple[Candidate, Exception]] = []
    claimed = _claim(table, chosen, refused)
    table.aside.remove(one.id for one in claimed)
    if refused:
        _tell(table, refused)
    return claimed


def _claim(
    table: TableForm, chosen: Sequence[Candidate], refused: list[tuple[Candidate, Exception]]
) -> list[Claimed]:
    database, statements = table.database, table.statements
    try:
        return database.run(lambda one: statements.claim(one, chosen, database.now_sql()))
    except _UNREADABLE as error:
        reason: Exception = error
    except DBAPIError as error:
        if not refused and (is_denied(error) or _was_altered(table)):
            raise
        reason = error
    if len(chosen) > 1:
        middle = len(chosen) // 2
        return _claim(table, chosen[:middle], refused) + _claim(table, chosen[middle:], refused)
    refused.append((chosen[0], reason))
    try:
        database.run(lambda one: statements.skip(one, chosen[0], database.now_sql()))
    except (DBAPIError, DatabaseBusy):
        table.aside.add(chosen[0].id, time.monotonic())
    return []


def _was_altered(table: TableForm) -> bool:
    with table.database.reading() as connection:
        return current_version(table.database, connection, table.name) != table.schema.version


def _tell(table: TableForm, refused: Sequence[tuple[Candidate, Exception]]) -> None:
    news = [(one, error) for one, error in refused if table.aside.is_news(one.id)]
    for one, error in news[:_MOST_WARNINGS]:
        said = error.orig if isinstance(error, DBAPIError) else error
        logger.warning(
            "%s: message %r cannot be %s: %s. The others go on; it is tried again, more and more seldom. Correct the"
            " row, or cancel it.",
            table.name,
            one.id,
            "read" if isinstance(error, _UNREADABLE) else "claimed",
            str(said).strip().rstrip("."),
        )
    if len(news) > _MOST_WARNINGS:
        logger.warning("%s: %d more messages likewise", table.name, len(news) - _MOST_WARNINGS)
