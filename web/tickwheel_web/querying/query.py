"""SQL over the messages: rows as JSON, as JSON lines, as CSV, or as a stream of Apache Arrow."""

from __future__ import annotations

import csv
import io
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync
from starlette.responses import Response

from tickwheel import QueryResult
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.querying.shapes import Column, Question, Rows
from tickwheel_web.shapes import NDJSON, duration_of, encode, or_none

CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
TRUNCATED: Final = "Tickwheel-Truncated"
"""The header that says what `truncated` says, where the rows are not JSON."""


async def run_query(asked: Asked) -> Response:
    """What is in the topics; nothing is changed."""
    question = reading.decode(Question, asked.body)
    timeout = duration_of(question.timeout, "timeout")
    assert timeout is not None
    sql, parameters, timeout_s = question.sql, or_none(question.parameters), timeout.total_seconds()
    if question.format == "arrow":
        answer = await asked.client.query_arrow(sql, parameters, limit=question.limit, timeout=timeout_s)
        return _form(answer.stream, ARROW, answer.truncated)
    found = await asked.client.query(sql, parameters, limit=question.limit, timeout=timeout_s)
    if question.format == "json":
        columns = [Column(one.name, one.type) for one in found.columns]
        return await run_sync(json, Rows(columns, found.rows, found.truncated))
    make, kind = (_lines, NDJSON[0]) if question.format == "ndjson" else (csv_of, f"{CSV}; charset=utf-8")
    return _form(await run_sync(partial(make, found)), kind, found.truncated)


def _form(content: bytes, media_type: str, truncated: bool) -> Response:
    return Response(content, headers={TRUNCATED: "true" if truncated else "false"}, media_type=media_type)


def _lines(found: QueryResult) -> bytes:
    return b"".join(map(encode, found.dicts()))


def csv_of(found: QueryResult) -> bytes:
    """The rows as CSV, with a heading."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([column.name for column in found.columns])
    writer.writerows(map(cell, row) for row in found)
    return file.getvalue().encode()


def cell(value: Any) -> str | float | None:
    """Texts and numbers as they are, None for null, and everything else as its JSON says it."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return encode(value).decode().strip().strip('"')
