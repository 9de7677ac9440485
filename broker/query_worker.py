"""The process that answers one query: messages as SQL tables, by DuckDB over Arrow batches.

It is a process of its own, so a heavy query takes nothing from delivery but processor time, and little of that: it runs
at a lower priority and with one thread. It reads the request from standard input and writes the answer to standard
output, both MessagePack.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec

from timerlog.snapshot import NO_TIME, Part, Shape, Snapshot, TopicShape

MEMORY_LIMIT: Final = "1GB"
_MOST_BYTES: Final = 8 << 20
_NICENESS: Final = 10
_ROWS_A_BATCH: Final = 1_000
CONTENT: Final = ("key", "order_key", "headers", "body", "body_bytes")
INSTALL: Final = "Queries need DuckDB and Arrow: pip install 'tickwheel[query]'"


class Request(msgspec.Struct):
    """What to ask of what."""

    shape: Shape
    sql: str
    limit: int


class Refused(Exception):
    """The query cannot be run; the message says why."""


def main() -> None:
    """Answer the request on standard input."""
    os.nice(_NICENESS)
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
    try:
        answer = run(request)
    except Refused as error:
        answer = {"error": str(error)}
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer, enc_hook=str))


def run(request: Request) -> dict[str, Any]:
    """Columns, rows, and whether there were more. Raises Refused."""
    try:
        import duckdb
    except ImportError:
        raise Refused(INSTALL) from None
    connection = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "threads": 1})
    try:
        statements = duckdb.extract_statements(request.sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise Refused("A query is one SELECT statement.")
        connection.execute("SET TimeZone = 'UTC'")
        _register(connection, request)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return _answer(connection.execute(statements[0]), request.limit)
    except duckdb.Error as error:
        raise Refused(str(error).strip()) from None
    finally:
        connection.close()


def _register(connection: Any, request: Request) -> None:
    """A table for each topic that the query names; `messages` is all of them."""
    snapshot = Snapshot(request.shape)
    with_content = _names_content(request.sql)
    topics: dict[str, list[TopicShape]] = {}
    for topic in request.shape.topics:
        topics.setdefault(topic.name, []).append(topic)
    topics.setdefault("messages", request.shape.topics)
    words = re.findall(r"[\w.-]+", request.sql)
    for name, parts in topics.items():
        times = max(words.count(name), request.sql.count(f'"{name}"'))
        if not times:
            continue
        reader = _reader(snapshot, parts, with_content)
        if times == 1:
            connection.register(name, reader)
        else:  # a stream can be read once only
            connection.register("tickwheel_stream", reader)
            connection.execute(f'create temp table "{name}" as select * from tickwheel_stream')
            connection.unregister("tickwheel_stream")


def _names_content(sql: str) -> bool:
    """Whether a query may look at what is only in the log: reading that takes much longer than the tables do."""
    rest = re.sub(r"count\s*\(\s*\*\s*\)", "", sql, flags=re.IGNORECASE)
    return "*" in rest or any(re.search(rf"\b{name}\b", rest, re.IGNORECASE) for name in CONTENT)


def _reader(snapshot: Snapshot, topics: list[TopicShape], with_content: bool) -> Any:
    import pyarrow as pa

    schema = _schema(with_content)

    def batches() -> Iterator[Any]:
        for topic in topics:
            for part in snapshot.parts(topic):
                yield pa.record_batch(_columns(snapshot, topic, part, with_content), schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _schema(with_content: bool) -> Any:
    import pyarrow as pa

    moment = pa.timestamp("ms", tz="UTC")
    fields = [
        ("id", pa.int64()),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("state", pa.string()),
        ("priority", pa.uint8()),
        ("epoch", pa.int64()),
        ("attempts", pa.int64()),
        ("deliver_at", moment),
        ("time_next", moment),
        ("time_acked", moment),
        ("time_created", moment),
    ]
    if with_content:
        fields += [
            ("key", pa.string()),
            ("order_key", pa.string()),
            ("headers", pa.string()),
            ("body", pa.binary()),
            ("body_bytes", pa.int64()),
        ]
    return pa.schema(fields)


def _columns(snapshot: Snapshot, topic: TopicShape, part: Part, with_content: bool) -> list[Any]:
    import numpy as np
    import pyarrow as pa

    count = len(part.ids)
    moment = pa.timestamp("ms", tz="UTC")

    def moments(values: Any) -> Any:
        return pa.array(values.astype("datetime64[ms]"), mask=values == NO_TIME).cast(moment)

    contents = list(snapshot.contents(part)) if with_content else []
    columns = [
        pa.array(part.ids),
        pa.array([topic.name]).take(pa.array(np.zeros(count, np.int32))),
        pa.array([part.group], pa.string()).take(pa.array(np.zeros(count, np.int32))),
        pa.array(part.state_names).take(pa.array(part.states)),
        pa.array(part.rows["priority"]),
        pa.array(part.epochs),
        pa.array(part.attempts),
        moments(part.rows["deliver_at_ms"]),
        moments(part.next_ms),
        moments(part.acked_ms),
        moments(part.rows["created_ms"]),
    ]
    if with_content:
        columns += [
            pa.array([_text(c, 0) for c in contents], pa.string()),
            pa.array([_text(c, 2) for c in contents], pa.string()),
            pa.array([_json(c) for c in contents], pa.string()),
            pa.array([None if c is None else c[3] for c in contents], pa.binary()),
            pa.array([None if c is None else len(c[3]) for c in contents], pa.int64()),
        ]
    return columns


_Content = tuple[bytes, bytes, bytes, bytes] | None


def _text(content: _Content, index: int) -> str | None:
    return content[index].decode(errors="replace") or None if content is not None else None


def _json(content: _Content) -> str | None:
    if content is None or not content[1]:
        return None
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(content[1]), enc_hook=str).decode()
    except (msgspec.MsgspecError, ValueError, TypeError):
        return None


def _answer(result: Any, limit: int) -> dict[str, Any]:
    reader = (
        result.to_arrow_reader(_ROWS_A_BATCH)
        if hasattr(result, "to_arrow_reader")
        else result.fetch_record_batch(_ROWS_A_BATCH)
    )
    columns = [{"name": field.name, "type": str(field.type)} for field in reader.schema]
    rows: list[list[Any]] = []
    size = 0
    for batch in reader:
        values = [column.to_pylist() for column in batch.columns]
        for row in zip(*values, strict=True):
            rows.append([_plain(value) for value in row])
            size += 16 * len(row) + sum(len(value) for value in row if isinstance(value, str | bytes))
            if len(rows) > limit or size > _MOST_BYTES:
                rows.pop()
                return {"columns": columns, "rows": rows, "truncated": True}
    return {"columns": columns, "rows": rows, "truncated": False}


def _plain(value: Any) -> Any:
    """Sums of integers come as decimals; numbers beyond 64 bits become text."""
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value


if __name__ == "__main__":
    main()
