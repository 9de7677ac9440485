"""What ``query()`` asks and answers."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import msgspec

from tickwheel._requests import Requests
from tickwheel.protocol.errors import BadArgument
from tickwheel.protocol.limits import (
    DEFAULT_QUERY_ROWS,
    MAX_QUERY_ROWS,
    MAX_QUERY_TIMEOUT_MS,
    MAX_SQL_CHARACTERS,
)
from tickwheel.protocol.requests import Query


class QueryColumn(msgspec.Struct, frozen=True):
    """A column of a result; ``type`` is its SQL type as DuckDB writes it."""

    name: str
    type: str


class QueryResult(msgspec.Struct, frozen=True):
    """The rows of a query, each a list with a value for each column.

    Times with a time zone are aware datetimes in UTC, blobs are bytes, exact decimals, dates and local times are text.
    """

    columns: list[QueryColumn]
    rows: list[list[Any]]
    truncated: bool
    """There were more rows than ``limit`` or one answer allows."""

    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dictionaries by column name; of columns with the same name the last one counts."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.rows)


def query_request(sql: str, limit: int, timeout_s: float) -> tuple[Query, float]:
    """The request, and the seconds that it may take. Raises BadArgument."""
    if not 1 <= len(sql) <= MAX_SQL_CHARACTERS:
        raise BadArgument(f"A query has 1 to {MAX_SQL_CHARACTERS:,} characters, this one {len(sql):,}.")
    if not 1 <= limit <= MAX_QUERY_ROWS:
        raise BadArgument(f"limit is {limit}; it must be from 1 to {MAX_QUERY_ROWS:,}.")
    if not 0 < timeout_s <= MAX_QUERY_TIMEOUT_MS / 1_000:
        raise BadArgument(f"timeout is {timeout_s:g} s; it must be above 0 and at most an hour.")
    return Query(sql, limit, ceil(timeout_s * 1_000)), timeout_s


class QueryRequests(Requests):
    """Asking with SQL."""

    async def query(  # `timeout` goes to the broker: cancelling the wait alone would let the query go on
        self,
        sql: str,
        *,
        limit: int = DEFAULT_QUERY_ROWS,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> QueryResult:
        """Asks with SQL: each topic is a table, and ``messages`` is all of them. docs/how-to/query.md has the columns.

        At most ``limit`` rows come back; ``timeout`` is the seconds that the broker may spend on it.
        It needs ``pip install 'tickwheel[query]'`` where the broker runs.
        """
        request, extra_s = query_request(sql, limit, timeout)
        return await self._ask(request, QueryResult, extra_s)
