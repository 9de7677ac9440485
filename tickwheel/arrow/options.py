"""The options of the data source: names, meanings, defaults. docs/how-to/spark.md explains them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast, get_args

from tickwheel.arrow.columns import COLUMNS, TableName
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.predicates import Predicate, condition, parse_conditions

_OPTIONS: Final = (
    "path", "paths", "url", "tokenFile", "caFile", "columns", "filters", "pushFilters", "table", "committed",
    "rowsPerPartition", "events", "startingOffsets", "maxRowsPerTrigger", "failOnDataLoss",
)  # fmt: skip
_POSITION_DIGITS: Final = 19
_CLOSE: Final = 0.8


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. ``filters``: what each row must meet. ``push_filters``: whether to take Spark's filters as well,
    None: where that is safe. ``starting``: earliest, latest, or positions by directory (``""``: of the only one)."""

    directories: tuple[str, ...]  #: none with a URL
    table: TableName
    columns: dict[str, str] = field(hash=False)
    filters: tuple[Predicate, ...] = ()
    push_filters: bool | None = None
    committed: bool = True
    rows_per_partition: int | None = None
    events: tuple[str, ...] | None = None
    starting: str | dict[str, int] = "earliest"
    max_rows: int | None = None
    fail_on_data_loss: bool = True
    url: str | None = None  #: of a broker with `tickwheel flight`
    token_file: str | None = None
    ca_file: str | None = None
    are_columns_chosen: bool = False  #: else they are all that there are

    def of_columns(self, names: Sequence[str]) -> ReadOptions:
        """The same for these columns, in their order."""
        return replace(self, columns=chosen_columns(names, self.table), are_columns_chosen=True)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises ``SourceError``."""
    refuse_misspelt(options, _OPTIONS)
    refuse_token(options)
    table = options.get("table", "messages")
    if table not in get_args(TableName):
        raise SourceError(f"There is no table {table!r}: use messages or events.")
    name = cast(TableName, table)
    url = options.get("url") or None
    return ReadOptions(
        directories=_directories(options) if url is None else _no_directories(options),
        table=name,
        columns=chosen_columns(_listed(options.get("columns", "")), name),
        filters=parse_conditions(options.get("filters", "[]"), COLUMNS[name]),
        push_filters=None
        if options.get("pushFilters", "auto") == "auto"
        else _flag(options, "pushFilters", default=False),
        committed=_flag(options, "committed", default=True),
        rows_per_partition=_number(options, "rowsPerPartition"),
        events=_listed(options.get("events", "")) or None,
        starting=_starting(options.get("startingOffsets", "earliest")),
        max_rows=_number(options, "maxRowsPerTrigger"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        url=url,
        token_file=options.get("tokenFile") or None,
        ca_file=options.get("caFile") or None,
        are_columns_chosen=bool(_listed(options.get("columns", ""))),
    )


def refuse_misspelt(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raises ``SourceError`` for what is nearly the name of an option. Others may be Spark's own: we are told them."""
    names = {name.lower(): name for name in known}
    for given in options:
        close = difflib.get_close_matches(given.lower(), names, 1, _CLOSE)
        if given.lower() not in names and close:
            raise SourceError(f"There is no option {given!r}: is {names[close[0]]} meant?")


def refuse_token(options: Mapping[str, str]) -> None:
    """Raises ``SourceError`` for a token among options, where plans and logs show it."""
    if options.get("token"):
        raise SourceError(
            "A token is no option: it would stand in plans and logs.",
            advice='Name a file that each machine has, .option("tokenFile", …), or set TICKWHEEL_TOKEN there.',
        )


def secret_files(token_file: str | None, ca_file: str | None) -> dict[str, str]:
    """The files of a token and of a CA, as options of the data source. Each machine has them under the same name."""
    named = {"tokenFile": token_file, "caFile": ca_file}
    return {option: file for option, file in named.items() if file}


def _directories(options: Mapping[str, str]) -> tuple[str, ...]:
    """``load("a")``, ``load(["a", "b"])``, ``option("path", …)`` and ``option("paths", '["a", "b"]')``."""
    found: list[str] = []
    if options.get("paths"):
        try:
            listed = json.loads(options["paths"])
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise SourceError("The option paths is not a JSON list of texts.")
        found += listed
    if options.get("path"):
        found.append(options["path"])
    found = [one.removeprefix("file://").removeprefix("file:") for one in found]
    if not found:
        raise SourceError(
            "No data directory is named.",
            advice='Name one or more: .load("data"), .option("paths", …); or a broker: .option("url", …).load().',
        )
    resolved = [str(Path(one).absolute()) for one in found]
    if len(set(resolved)) < len(resolved):
        raise SourceError("A data directory is named twice.")
    return tuple(resolved)


def _no_directories(options: Mapping[str, str]) -> tuple[str, ...]:
    if options.get("path") or options.get("paths"):
        raise SourceError(
            "Both a broker and a data directory are named.",
            advice='Name a broker, .option("url", …).load(), or directories, .load("data").',
        )
    return ()


def chosen_columns(names: Sequence[str], table: TableName) -> dict[str, str]:
    """Names and Spark types of some columns; of all where none is named. Raises ``SourceError``."""
    known = COLUMNS[table]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SourceError(f"There is no column {unknown[0]!r}: use {', '.join(known)}.")
    if len(set(names)) < len(names):
        raise SourceError("A column is named twice.")
    return {name: known[name] for name in names} or dict(known)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise SourceError(f"The option {name} is {text!r}: use true or false.")
    return text == "true"


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise SourceError(f"The option {name} is {text!r}: use a whole number above 0.")
    return int(text)


def as_command(options: ReadOptions) -> dict[str, Any]:
    """What `tickwheel flight` is asked for; see ``tickwheel_flight.commands.Command``."""
    chosen = list(options.columns) if options.are_columns_chosen else []
    starting: Any = options.starting
    if isinstance(starting, dict):
        if set(starting) != {""}:
            raise SourceError("With a broker's URL startingOffsets is earliest, latest or one position.")
        starting = starting[""]
    return {
        "table": options.table,
        "columns": chosen,
        "filters": [condition(one) for one in options.filters],
        "committed": options.committed,
        "rows_per_partition": options.rows_per_partition,
        "events": list(options.events or ()),
        "starting": starting,
        "fail_on_data_loss": options.fail_on_data_loss,
    }


def _starting(text: str) -> str | dict[str, int]:
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdecimal() and len(text) <= _POSITION_DIGITS:
        return {"": int(text)}
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):  # also numbers of thousands of digits, and brackets as deep
        parsed = None
    if isinstance(parsed, dict) and all(type(position) is int for position in parsed.values()):
        return {str(Path(name).absolute()): position for name, position in parsed.items()}
    raise SourceError(
        f"startingOffsets is {text!r}.",
        advice='Use earliest, latest, a position, or JSON: {"directory": position}.',
    )
