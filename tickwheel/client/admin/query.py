"""What ``query()`` asks and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Any, Final, TypeAlias

import msgspec

from tickwheel.client.checks import seconds, text, whole
from tickwheel.client.requests import Requests
from tickwheel.protocol.bodies.requests import Query
from tickwheel.protocol.errors import BadArgument, NaiveDatetime
from tickwheel.protocol.limits import (
    DEFAULT_QUERY_ROWS,
    MAX_QUERY_PARAMETERS,
    MAX_QUERY_ROWS,
    MAX_QUERY_TIMEOUT_MS,
    MAX_SQL_CHARACTERS,
)


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


class ArrowResult(msgspec.Struct, frozen=True):
    """The rows of a query as Apache Arrow has them: columns, of the types that DuckDB gives."""

    stream: bytes
    """In the IPC streaming format, which Arrow's libraries for all languages read."""
    truncated: bool
    """There were more rows than ``limit`` or one answer allows."""

    def table(self) -> Any:
        """A ``pyarrow.Table``; it needs pyarrow here."""
        import pyarrow.ipc

        return pyarrow.ipc.open_stream(self.stream).read_all()


_VALUES: Final = "Use None, bool, int of 64 bits, float, str, bytes, aware datetimes, and lists of these."
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any] | None


def query_request(
    sql: str, parameters: Parameters, limit: int, timeout_s: float, *, stream: bool = False
) -> tuple[Query, float]:
    """The request, and the seconds that it may take. Raises BadArgument."""
    text(sql, "sql")
    limit = whole(limit, "limit", 1, MAX_QUERY_ROWS)
    timeout_s = query_seconds(timeout_s)
    if not 1 <= len(sql) <= MAX_SQL_CHARACTERS:
        raise BadArgument(f"A query has 1 to {MAX_SQL_CHARACTERS:,} characters, this one {len(sql):,}.")
    return Query(sql, limit, ceil(timeout_s * 1_000), _checked(parameters), stream), timeout_s


def query_seconds(timeout_s: float) -> float:
    """How long the broker may work beside its loop. Raises BadArgument."""
    timeout_s = seconds(timeout_s, "timeout")
    if not 0 < timeout_s <= MAX_QUERY_TIMEOUT_MS / 1_000:
        raise BadArgument(f"timeout is {timeout_s:g} s; it must be above 0 and at most an hour.")
    return timeout_s


def _checked(parameters: Parameters) -> list[Any] | dict[str, Any] | None:
    """As they go on the wire. Raises BadArgument."""
    given: list[Any] | dict[str, Any]
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        given = dict(parameters)
    elif isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise BadArgument(
            "The parameters of a query are no list.", advice="Give a list for ? and $1, or a dict for $name."
        )
    else:
        given = list(parameters)
    if len(given) > MAX_QUERY_PARAMETERS:
        raise BadArgument(f"A query has at most {MAX_QUERY_PARAMETERS:,} parameters, not {len(given):,}.")
    if isinstance(given, dict) and not all(isinstance(name, str) for name in given):
        raise BadArgument("The name of a parameter is no text.", advice='Give {"key": "k1"} for $key.')
    for value in given.values() if isinstance(given, dict) else given:
        _check_value(value)
    return given


def _check_value(value: Any) -> None:
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise NaiveDatetime(f"The parameter {value.isoformat()} has no time zone.")
    if isinstance(value, list | tuple):
        for item in value:
            _check_value(item)
    elif not isinstance(value, bool | int | float | str | bytes | datetime | None):
        raise BadArgument(f"A parameter is a {type(value).__name__}.", advice=_VALUES)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadArgument(f"The parameter {value} does not fit 64 bits.", advice=_VALUES)


class QueryRequests(Requests):
    """Asking with SQL."""

    async def query(  # `timeout` goes to the broker: cancelling the wait alone would let the query go on
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        limit: int = DEFAULT_QUERY_ROWS,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> QueryResult:
        """Asks with SQL: each topic is a table, and ``messages`` is all of them. docs/how-to/query.md has the columns.

        ``parameters``: a list for ``?`` and ``$1``, or a dict for ``$name``. They are bound, never a part of the SQL:
        ``client.query("select id from orders where key = ?", [key])``.

        At most ``limit`` rows come back; ``timeout`` is the seconds that the broker may spend on it.
        It needs ``pip install 'tickwheel[query]'`` where the broker runs.
        """
        request, extra_s = query_request(sql, parameters, limit, timeout)
        return await self._ask(request, QueryResult, extra_s)

    async def query_arrow(
        self,
        sql: str,
        parameters: Parameters = None,
        *,
        limit: int = DEFAULT_QUERY_ROWS,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> ArrowResult:
        """As ``query``, with the rows for Arrow, pandas, Polars or DuckDB; ``table()`` of the result is pyarrow's."""
        request, extra_s = query_request(sql, parameters, limit, timeout, stream=True)
        return await self._ask(request, ArrowResult, extra_s)
