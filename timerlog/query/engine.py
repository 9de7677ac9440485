"""One query in DuckDB: read-only, without files, bounded in memory, one thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import duckdb
from duckdb.func import FunctionNullHandling, PythonUDFType

from timerlog.query.columns import LogColumns, TableColumns
from timerlog.query.tables import MessageTable
from timerlog.readers.snapshot import Snapshot

ALL_TOPICS: Final = "messages"
MEMORY_LIMIT: Final = "512MB"
BATCH_ROWS: Final = 1_024
_LISTED_TOPICS: Final = 1_000
_LOG_COLUMNS: Final = {
    "key": "VARCHAR",
    "order_key": "VARCHAR",
    "headers": "VARCHAR",
    "body": "BLOB",
    "body_bytes": "BIGINT",
    "dead_reason": "VARCHAR",
}
_SELECT_LIST: Final = (
    'id, topic, "group", key_of(id) AS key, order_key_of(id) AS order_key, priority, state, epoch, attempts, '
    "time_next, time_acked, time_created, deliver_at, headers_of(id) AS headers, body_of(id) AS body, "
    "body_bytes_of(id) AS body_bytes, shard, dead_reason_of(id) AS dead_reason"
)


Parameters: TypeAlias = list[Any] | dict[str, Any] | None


_ERRORS: Final = (duckdb.Error, OSError, ValueError)
"""Arrow's own are among the last two."""


class Found(NamedTuple):
    """A result: its columns (name, type), and its Arrow batches, which are made as they are read."""

    columns: list[tuple[str, str]]
    schema: Any
    batches: Iterator[Any]


class BadSql(Exception):
    """The query is not one statement that only reads, or DuckDB refused it: its message says why."""


class Engine:
    """A connection to a database in memory whose views are the topics of a snapshot."""

    def __init__(self, snapshot: Snapshot, sql: str) -> None:
        """``sql`` is what will be asked: with very many topics only those that it names get a view."""
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": MEMORY_LIMIT,
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        connection = self._connection
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET python_enable_replacements = false")  # no Python variable is a table
        columns, self._log = TableColumns(snapshot), LogColumns(snapshot)
        for name, kind in _LOG_COLUMNS.items():
            connection.create_function(
                f"{name}_of",
                getattr(self._log, name),
                ["BIGINT"],
                kind,
                type=PythonUDFType.ARROW,
                null_handling=FunctionNullHandling.SPECIAL,
            )
        for name, topic_ids in self._views(snapshot, sql):
            for topic_id in topic_ids:
                connection.register(f"_rows_{topic_id or 0}", MessageTable(snapshot, columns, topic_id))
            quoted = name.replace('"', '""')
            selects = [f"SELECT {_SELECT_LIST} FROM _rows_{topic_id or 0}" for topic_id in topic_ids]
            connection.execute(f'CREATE VIEW "{quoted}" AS {" UNION ALL ".join(selects)}')
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")

    @staticmethod
    def _views(snapshot: Snapshot, sql: str) -> Iterator[tuple[str, list[int | None]]]:
        """Names, and the topics whose messages each shows: all (None), one, or the shards of one."""
        yield ALL_TOPICS, [None]
        # SQL does not tell capitals from small letters: of two topics that differ only there, the older one counts.
        taken, asked = {ALL_TOPICS}, sql.lower()
        topics = sorted(snapshot.description.topics, key=lambda topic: topic.topic_id)
        for topic in topics:
            name = topic.name.lower()
            if name not in taken and (len(topics) <= _LISTED_TOPICS or name in asked):
                taken.add(name)
                shards: list[int | None] = [one.topic_id for one in topics if one.parent == topic.topic_id]
                yield topic.name, shards or [topic.topic_id]

    def run(self, sql: str, parameters: Parameters = None) -> Found:
        """The result. ``parameters`` are bound to ``?`` and ``$1``, or to ``$name``: they are values, and never a part
        of the SQL. Raises ``BadSql``, also while the batches are read."""
        try:
            statements = self._connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise BadSql("Only one SELECT statement is possible: a query reads, it changes nothing.")
            relation = self._connection.sql(sql, params=parameters)
            columns = list(zip(relation.columns, map(str, relation.types), strict=True))
            reader = relation.to_arrow_reader(BATCH_ROWS)
        except _ERRORS as error:
            raise _explained(error) from None
        return Found(columns, reader.schema, self._batches(reader))

    @staticmethod
    def _batches(reader: Any) -> Iterator[Any]:
        try:
            yield from reader
        except _ERRORS as error:
            raise _explained(error) from None

    @property
    def damaged(self) -> list[int]:
        """Messages that were read and are damaged."""
        return sorted(self._log.damaged)

    def close(self) -> None:
        self._connection.close()


def _explained(error: Exception) -> BadSql:
    if isinstance(error, duckdb.OutOfMemoryException):
        # What DuckDB advises are settings that cannot be reached here.
        return BadSql(f"The query needs more than the {MEMORY_LIMIT} of memory that it may use.")
    return BadSql(str(error).strip())
