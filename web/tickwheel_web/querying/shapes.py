"""What a query and its answer look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tickwheel_web.shapes import Duration

Form = Literal["json", "ndjson", "csv", "arrow"]


class Question(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A query. `parameters`: a list for `?` and `$1`, or an object for `$name`. `ndjson`: an object a line; `csv`: with
    a heading; `arrow`: columns, in Arrow's IPC streaming format. At most `limit` rows come; `timeout`: so long the
    broker may work on it."""

    sql: Annotated[str, Meta(min_length=1)]
    format: Form = "json"
    parameters: list[Any] | dict[str, Any] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    timeout: Duration = "30s"


class Column(msgspec.Struct, frozen=True):
    """A column; `type` as DuckDB writes it."""

    name: str
    type: str


class Rows(msgspec.Struct, frozen=True):
    """The rows, each with a value for each column. Times are RFC 3339, blobs base64, exact decimals and dates texts.
    `truncated`: there were more than `limit`, or than one answer may have."""

    columns: list[Column]
    rows: list[list[Any]]
    truncated: bool
