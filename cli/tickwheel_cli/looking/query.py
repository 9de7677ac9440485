"""`tickwheel query`: SQL over the messages."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import msgspec

from tickwheel.protocol.limits import DEFAULT_QUERY_ROWS, MAX_QUERY_ROWS
from tickwheel_cli.shared.answers import (
    as_objects,
    check_form,
    form_of_options,
    print_answer,
    tell_of_more,
    write_csv,
)
from tickwheel_cli.shared.failures import CommandError
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.session import current_session, shared_options

if TYPE_CHECKING:
    from tickwheel import ArrowResult, QueryResult

_SUFFIXES: Final = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".arrows": "arrow"}
_ENCODED: Final = tuple(_SUFFIXES.values())
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBERS = ("INT", "DECIMAL", "DOUBLE", "FLOAT")


@click.command()
@click.argument("sql")
@click.option(
    "--param",
    "given",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="For ? and $1, or with a name for $NAME; JSON, or else text. May be repeated.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a heading.")
@click.option("--arrow", "as_arrow", is_flag=True, help="Write an IPC stream of Apache Arrow.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", *_ENCODED)),
    help="Form of the rows.  [default: by the name of FILE, or else a table]",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rows into a file: .csv, .json, .parquet, .arrows.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_QUERY_ROWS),
    default=DEFAULT_QUERY_ROWS,
    show_default=True,
    help="At most so many rows.",
)
@click.option(
    "--timeout", type=DURATION, default="30s", show_default=True, help="How long the broker may work on it."
)
@shared_options
def query(
    sql: str,
    given: tuple[str, ...],
    limit: int,
    timeout: timedelta,
    *,
    as_csv: bool,
    as_arrow: bool,
    form: str | None,
    out: Path | None,
) -> None:
    """Ask with SQL what is in the topics.

    Each topic is a table of its name, in double quotes where SQL needs them; `messages` is all topics.

    \b
    tickwheel query "select state, count(*), min(time_next) from orders group by state"
    tickwheel query "select id, key, epoch from messages where epoch > 3" --csv
    tickwheel query "select id, state from orders where key = ? and epoch > ?" --param order-17 --param 3
    tickwheel query "select id, state from orders where key = $key" --param key=order-17
    tickwheel query "select id, body from orders" --out orders.parquet
    tickwheel query "describe messages"

    It reads and never changes anything, and delivery goes on meanwhile. The broker needs DuckDB for it:
    pip install 'tickwheel[query]'.
    """
    check_form(as_csv, arrow=as_arrow, format=form)
    chosen = form or ("arrow" if as_arrow else form_of_options(as_csv))
    if out is not None and form is None and chosen == "table":
        chosen = _form_of(out)
    words: dict[str, Any] = {"limit": limit, "timeout": timeout.total_seconds()}
    if out is None and chosen in ("arrow", "parquet") and sys.stdout.isatty():
        raise click.UsageError(f"{chosen} is not for a terminal: add --out FILE")
    if out is not None and chosen == "table":
        raise click.UsageError(f"a table is for a terminal: add --format {', '.join(_ENCODED)}")
    with _replaced(out) if out else nullcontext(sys.stdout.buffer) as file:
        with current_session().client() as client:
            if chosen in ("arrow", "parquet"):
                found = client.query_arrow(sql, _parameters(given), **words)
                file.write(found.stream if chosen == "arrow" else _parquet(found))
                tell_of_more(truncated=found.truncated)
                return
            result = client.query(sql, _parameters(given), **words)
        if out is not None:
            file.write(_text(result, chosen).encode())
            tell_of_more(truncated=result.truncated)
            return
    columns = [
        (column.name, "right" if any(word in column.type for word in _NUMBERS) else "left")
        for column in result.columns
    ]
    print_answer(columns, list(result), form=chosen, truncated=result.truncated)


def _form_of(out: Path) -> str:
    """Which form a file has, by its name."""
    try:
        return _SUFFIXES[out.suffix.lower()]
    except KeyError:
        raise click.UsageError(
            f"{out.name} ends with none of {', '.join(_SUFFIXES)}: add --format {', '.join(_ENCODED)}"
        ) from None


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A file beside it, which takes its place when it is written; what is no regular file is written itself."""
    place = path.resolve()
    if place.exists() and not place.is_file():
        with place.open("wb") as file:
            yield file
        return
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(place)
    finally:
        aside.unlink(missing_ok=True)


def _text(result: QueryResult, form: str) -> str:
    names = [column.name for column in result.columns]
    if form == "json":
        return msgspec.json.encode(as_objects(names, result)).decode() + "\n"
    written = io.StringIO(newline="")
    write_csv(written, names, result)
    return written.getvalue()


def _parquet(found: ArrowResult) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise CommandError(
            "pyarrow_missing",
            "Parquet is written by pyarrow, which is not installed here.",
            advice="Install it: pip install pyarrow. Or take --format arrow or csv, which need nothing.",
        ) from error
    written = pa.BufferOutputStream()
    pq.write_table(found.table(), written)
    content: bytes = written.getvalue().to_pybytes()
    return content


def _parameters(given: tuple[str, ...]) -> list[Any] | dict[str, Any] | None:
    named = [_NAMED.match(text) for text in given]
    if not given:
        return None
    if not any(named):
        return [_value(text) for text in given]
    if not all(named):
        raise click.UsageError("either all parameters have a name, or none has")
    return {match[1]: _value(match[2]) for match in named if match is not None}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
