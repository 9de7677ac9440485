"""Claiming what can be read: one row with a value that Python cannot take must not stop the others.

A JSON column of SQLite that holds no JSON, or a timestamp of PostgreSQL beyond the year 9999, fails only when the row
is fetched. Such a row is counted as delivered in vain: it comes again after its backoff, mended or not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DataError

from tickwheel.outbox.messages.candidates import Candidate
from tickwheel.outbox.messages.statements import Claimed

if TYPE_CHECKING:
    from tickwheel.outbox.messages.table import MessageTable

logger = logging.getLogger("tickwheel.outbox")
_UNREADABLE: Final = (ValueError, TypeError, ArithmeticError, DataError)


def claim_readable(table: MessageTable, chosen: Sequence[Candidate]) -> list[Claimed]:
    """Claims candidates, in a transaction of its own if all can be read, else in ever smaller parts."""
    database, statements = table.database, table.statements
    if not chosen:
        return []
    try:
        return database.run(lambda one: statements.claim(one, chosen, database.now_sql()))
    except _UNREADABLE as error:
        if len(chosen) > 1:
            middle = len(chosen) // 2
            return claim_readable(table, chosen[:middle]) + claim_readable(table, chosen[middle:])
        logger.warning("%s: message %r cannot be read: %s", table.name, chosen[0].id, error)
        database.run(lambda one: statements.skip(one, chosen[0], database.now_sql()))
        return []
