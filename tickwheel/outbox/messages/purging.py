"""Purging so that a row that cannot be deleted, because another table refers to it, keeps no other."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Sequence
from typing import Final

from sqlalchemy.exc import DBAPIError

from tickwheel.outbox.database import is_denied
from tickwheel.outbox.messages.form import TableForm

logger = logging.getLogger("tickwheel.outbox")
_MOST_LEFT_OUT: Final = 1_000
"""Rows that a statement names to leave them out."""


def purge_some(table: TableForm) -> int:
    """Deletes some of the messages that were acked ``purge_after`` ago, in transactions of its own. Returns how many:
    0 when none is left that can be deleted."""
    database, statements, kept = table.database, table.statements, table.kept
    left_out = kept.waiting(time.monotonic())[:_MOST_LEFT_OUT]
    try:
        return database.run(lambda one: statements.purge(one, database.now_sql(), left_out))
    except DBAPIError as error:
        if is_denied(error):
            raise
    with database.reading() as connection:
        ids = statements.purgeable(connection, database.now_sql(), left_out)
    before = len(kept)
    deleted = _delete(table, ids)
    # All of these are kept: what is behind them is to be had in the next round.
    return deleted or (purge_some(table) if len(kept) > before else 0)


def _delete(table: TableForm, ids: Sequence[Hashable]) -> int:
    if not ids:
        return 0
    try:
        return table.database.run(lambda one: table.statements.delete_acked(one, ids))
    except DBAPIError as error:
        if len(ids) == 1:
            _keep(table, ids[0], error)
            return 0
    middle = len(ids) // 2
    return _delete(table, ids[:middle]) + _delete(table, ids[middle:])


def _keep(table: TableForm, id_: Hashable, error: DBAPIError) -> None:
    table.kept.add(id_, time.monotonic())
    if table.kept.is_news(id_):
        logger.warning(
            "%s: message %r is acked and old, and cannot be deleted: %s. The others are; remove what refers to it.",
            table.name,
            id_,
            str(error.orig).strip().rstrip("."),
        )
