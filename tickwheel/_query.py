"""Messages as SQL tables."""

from __future__ import annotations

from typing import Any

import msgspec

from tickwheel._requests import Requests
from tickwheel._times import Delay, delay_ms
from tickwheel.protocol.query import Query


class QueryColumn(msgspec.Struct, frozen=True):
    """A column of a result, with its Arrow type."""

    name: str
    type: str


class QueryResult(msgspec.Struct, frozen=True):
    """The rows of a query. Moments are aware datetimes, bodies bytes. ``truncated``: there were more rows."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    truncated: bool

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def dicts(self) -> list[dict[str, Any]]:
        """Each row as a dict."""
        names = self.names
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class QueryRequests(Requests):
    """Looking at messages with SQL."""

    async def query(self, sql: str, *, limit: int = 10_000, timeout: Delay = 25_000) -> QueryResult:  # noqa: ASYNC109
        """Answers one SELECT over the messages; each topic is a table, ``messages`` is all of them.

        A row is a message, in one group of its topic if it has groups. Columns: id, topic, group, state, priority,
        epoch, attempts, deliver_at, time_next, time_acked, time_created, key, order_key, headers (JSON), body and
        body_bytes. It runs in a process of its own beside the broker, which needs the extra ``tickwheel[query]``.
        Raises BadQuery, QueryTooSlow.
        """
        return await self._ask(Query(sql=sql, limit=limit, timeout_ms=delay_ms(timeout)), QueryResult)
