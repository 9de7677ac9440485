"""SQL over the messages: a page with the rows, and all of them as a file.

The statement stands in the address. Each query has a connection of its own, so that it ends when the browser stops
waiting for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from anyio.to_thread import run_sync
from msgspec import Meta
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tickwheel import Client, QueryResult
from tickwheel.errors import (
    BadQuery,
    QueryFailed,
    QueryTimeout,
    QueryUnavailable,
    TickwheelError,
    TooManyQueries,
)
from tickwheel_web.dashboard.guard import HEADERS
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.ending import while_there
from tickwheel_web.problems import Refused, status_of
from tickwheel_web.querying.query import cell, csv_of

MAX_SQL: Final = 4_000
"""An address has room for so many characters, each as %XX."""
MAX_ROWS: Final = 10_000
MAX_DOWNLOADED: Final = 100_000
MAX_CELL: Final = 300
"""Characters that are shown; downloads have all of them."""
MANY: Final = 1_000
MAX_CELL_OF_MANY: Final = 60
"""In more rows than that there is less room."""
MAX_NAMES: Final = 200
EXAMPLE: Final = "select topic, state, count(*) as messages\nfrom messages\ngroup by all\norder by all"
COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "id": ("BIGINT", "of the message"),
    "topic": ("VARCHAR", ""),
    "group": ("VARCHAR", 'whose view the row is; write `"group"`'),
    "key": ("VARCHAR", "null: none"),
    "order_key": ("VARCHAR", "null: none"),
    "priority": ("INTEGER", "0 goes first"),
    "state": (
        "VARCHAR",
        "scheduled, ready, leased, waiting, acked, dead, cancelled, expired, damaged",
    ),
    "epoch": ("BIGINT", "deliveries to the group"),
    "attempts": ("BIGINT", "those that were seen, since they were last counted from 0 again"),
    "time_next": ("TIMESTAMPTZ", "when it goes on: its time, the end of the lease, the next try"),
    "time_acked": ("TIMESTAMPTZ", ""),
    "time_created": ("TIMESTAMPTZ", "when the broker took it"),
    "deliver_at": ("TIMESTAMPTZ", "when it is due"),
    "headers": ("VARCHAR", "JSON: `headers->>'trace'`"),
    "body": ("BLOB", "`decode(body)` is its text"),
    "body_bytes": ("BIGINT", ""),
    "shard": ("VARCHAR", "the key range, if the topic has shards"),
    "dead_reason": ("VARCHAR", "the last error of a dead letter"),
}
"""The columns of each table, with their types, and what they are where the name does not say it. ``describe messages``
tells them too, and takes a process of the broker."""

T = TypeVar("T")


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A statement, and whether it is to run: without that, one that runs in the same tab is cancelled."""

    sql: Annotated[str, Meta(max_length=MAX_SQL)] = ""
    rows: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 200
    run: Literal["", "1"] = ""


class Wanted(Asked, frozen=True):
    """The same as a file."""

    form: Literal["csv", "arrow"] = "csv"


class Cell(NamedTuple):
    """A value as it is shown."""

    text: str
    kind: str = ""
    """As a class of CSS."""


class Column(NamedTuple):
    """A column as it is shown."""

    name: str
    type: str
    kind: str


async def query(viewed: Viewed) -> Response:
    """The form, and the rows if it was sent."""
    asked: Asked = viewed.query
    figures, _ = await viewed.site.recent.figures(viewed.client, viewed.token, viewed.max_age_s)
    found, problem = None, None
    if asked.run and asked.sql.strip():
        try:
            found = await _run(viewed, partial(_rows, asked))
        except (BadQuery, QueryFailed, QueryTimeout, QueryUnavailable, TooManyQueries) as error:
            problem = error
    topics = sorted(topic.name for topic in figures.topics if not topic.shard_of)
    # Thousands of rows are made into a page in a thread: the loop answers others meanwhile.
    return await run_sync(partial(_page, viewed, found, problem, topics))


def _page(
    viewed: Viewed, found: QueryResult | None, problem: TickwheelError | None, topics: list[str]
) -> Response:
    columns = [] if found is None else [shown_column(one.name, one.type) for one in found.columns]
    room = MAX_CELL if found is None or len(found) <= MANY else MAX_CELL_OF_MANY
    return viewed.page(
        "querying/query.html",
        status=200 if problem is None else status_of(problem),
        sql=viewed.query.sql or EXAMPLE,
        found=found,
        columns=columns,
        rows=[] if found is None else [[shown(value, room) for value in row] for row in found],
        problem=problem,
        tables=topics[:MAX_NAMES],
        more_tables=max(0, len(topics) - MAX_NAMES),
        known=COLUMNS,
        max_sql=MAX_SQL,
        max_downloaded=MAX_DOWNLOADED,
    )


async def download(viewed: Viewed) -> Response:
    """All rows, as far as one answer of the broker can have them."""
    asked: Wanted = viewed.query
    data = await _run(viewed, partial(_file, asked))
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="query.{_ENDINGS[asked.form]}"'}
    return Response(data, headers=headers, media_type="application/octet-stream")


_ENDINGS: Final = {"csv": "csv", "arrow": "arrows"}


async def _rows(asked: Asked, client: Client) -> QueryResult:
    return await client.query(asked.sql, limit=asked.rows)


async def _file(asked: Wanted, client: Client) -> bytes:
    if asked.form == "arrow":
        return (await client.query_arrow(asked.sql, limit=MAX_DOWNLOADED)).stream
    return await run_sync(csv_of, await client.query(asked.sql, limit=MAX_DOWNLOADED))


async def _run(viewed: Viewed, ask: Callable[[Client], Awaitable[T]]) -> T:
    """Until it is answered, or the browser waits no longer. Raises Refused, and what the query raises."""
    site, found = viewed.site, []
    try:
        with site.queries.hold(viewed.caller):
            async with while_there(viewed.request.receive):
                with site.ending.ends():
                    async with site.clients.alone(viewed.token, viewed.address) as client:
                        found.append(await ask(client))
    except ClientDisconnect:
        raise Refused(400, "incomplete_request", "The browser has gone.") from None
    if not found:
        raise Refused(503, "shutting_down", "The web process ends.")
    return found[0]


def shown(value: Any, room: int = MAX_CELL) -> Cell:
    """A blob is shown as text where it is one.

    >>> [tuple(shown(value)) for value in (None, b"tea", b"\\xff", 12)]
    [('null', 'muted'), ('tea', ''), ('/w==', ''), ('12', 'num')]
    """
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            value = value.decode()
    found = cell(value)
    if found is None:
        return Cell("null", "muted")
    text = str(found)
    return Cell(text if len(text) <= room else f"{text[:room]}…", "" if isinstance(found, str) else "num")


_NUMBERS: Final = ("INT", "DECIMAL", "DOUBLE", "FLOAT")


def shown_column(name: str, kind: str) -> Column:
    """As DuckDB writes its type, but for one long name.

    >>> shown_column("n", "BIGINT"), shown_column("at", "TIMESTAMP WITH TIME ZONE").type
    (Column(name='n', type='BIGINT', kind='num'), 'TIMESTAMPTZ')
    """
    told = kind.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")
    return Column(name, told, "num" if kind.endswith(_NUMBERS) or kind.startswith(_NUMBERS) else "")
