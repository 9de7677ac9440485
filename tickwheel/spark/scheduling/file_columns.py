"""Which columns the user's files have, read in milliseconds: Spark would be asked for minutes.

What is said here is what Spark would say later. Where this module cannot be sure that it sees what Spark will see, it
says nothing, and Spark is asked: another file system, partitions in directories, a kind of compression or a type that
is not known here.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import glob
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.writing.columns import SINK_COLUMNS

LOOKED_AT_LINES: Final = 1_000
"""Lines of JSON in which names are looked for."""
_LOOKED_AT_FILES: Final = 200
_LONGEST_LINE_BYTES: Final = 64 * 1024 * 1024
_GLOB: Final = re.compile(r"[*?\[{]")
#: Endings of compressed files that Spark and pyarrow both read, and of those that pyarrow does not read as Spark does.
_PACKED: Final = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
_PACKED_FOR_SPARK: Final = frozenset({"snappy", "lz4", "zstd", "deflate"})
_WIDTHS: Final = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}
_PLAIN: Final = {
    "BOOLEAN": "boolean",
    "INT32": "int",
    "INT64": "bigint",
    "INT96": "timestamp",
    "FLOAT": "float",
}
_PLAIN_TOO: Final = {"DOUBLE": "double", "BYTE_ARRAY": "binary", "FIXED_LEN_BYTE_ARRAY": "binary"}


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Names and types, as Spark spells them, of a file. ``naive_nanos``: columns of times that have nanoseconds and no
    zone. ``advice``: what to do where columns are missing, as far as the file tells."""

    columns: dict[str, str]
    naive_nanos: tuple[str, ...] = ()
    advice: str = ""


class _Unsure(Exception):
    """Only Spark can say."""


def look_into(path: str, kind: str) -> FileColumns | None:
    """The columns of the files that Spark would read on this machine; None: only Spark can say. Raises ``SourceError``
    for what is not there, cannot be read, or does not fit together."""
    try:
        files = _files(path)
        try:
            match kind:
                case "parquet":
                    return _of_parquet(files[0])
                case "csv":
                    return _of_csv(files)
                case "json":
                    return _of_json(files)
        except (OSError, pa.ArrowException, UnicodeDecodeError, EOFError) as error:
            raise _unreadable(path, kind, error) from None
    except _Unsure:
        pass
    return None


def _unreadable(path: str, kind: str, error: Exception) -> SourceError:
    what = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
    return SourceError(
        f"{path} cannot be read as {kind}: {what.rstrip('.')}.",
        advice="Check the path, its permissions and --format.",
    )


# Files -------------------------------------------------------------------------------------------


def _files(path: str) -> list[Path]:
    """What Spark would read, in the order of names. Raises ``SourceError``."""
    found: list[Path] = []
    for root in _roots(path):
        try:
            found += _in_directory(root) if root.is_dir() else [root]
        except PermissionError as error:
            raise _unreadable(str(root), "directory", error) from None
    if not found:
        raise SourceError(f"There is no file in {path}.", advice="Name a file, or a directory of files.")
    for file in found:
        if not os.access(file, os.R_OK):
            raise SourceError(f"{file} may not be read by this user.", advice="Change its permissions.")
    return sorted(found)


def _roots(path: str) -> Iterator[Path]:
    path = re.sub(r"^file:(//)?(?=/)", "", path)
    if ":" in path.partition("/")[0] or "\\" in path:
        raise _Unsure  # another file system, or a pattern with signs that mean themselves
    if not _GLOB.search(path):
        if not Path(path).exists():
            raise SourceError(f"{path} does not exist.", advice="Name a file or a directory of files.")
        if _is_passed_over(Path(path)):
            raise _Unsure
        yield Path(path)
        return
    roots = {Path(one) for pattern in _without_braces(path) for one in glob(pattern.replace("[^", "[!"))}
    if not roots:
        raise SourceError(
            f"No file has a name like {path}.", advice="Put the pattern in quotes, and try `ls`."
        )
    yield from sorted(one for one in roots if not _is_passed_over(one))


def _without_braces(pattern: str) -> list[str]:
    """Each alternative of ``a{b,c}``, as Hadoop has them."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [each for one in found[1].split(",") for each in _without_braces(f"{before}{one}{after}")]


def _in_directory(directory: Path) -> list[Path]:
    """The files of a directory that Spark does not pass over."""
    found = [path for path in directory.iterdir() if not _is_passed_over(path)]
    if any(path.is_dir() for path in found):
        raise _Unsure  # partitions have columns in the names of directories
    return found


def _is_passed_over(path: Path) -> bool:
    """Whether the name says to Spark that a file is none of data."""
    name = path.name
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _texts(path: Path) -> TextIOWrapper:
    ending = path.name.lower().rpartition(".")[2]
    if ending in _PACKED_FOR_SPARK:
        raise _Unsure
    source = pa.input_stream(str(path), compression=_PACKED.get(ending))
    # Bytes that are no UTF-8 are told of with their rows.
    return TextIOWrapper(source, encoding="utf-8-sig", errors="replace", newline="")


# CSV ---------------------------------------------------------------------------------------------


def _of_csv(files: list[Path]) -> FileColumns:
    first: tuple[Path, list[str]] | None = None
    for file in files[:_LOOKED_AT_FILES]:
        with _texts(file) as text:
            heading = _heading(text)
        if heading is None:
            continue
        if first is None:
            first = file, heading
        elif [name.lower() for name in heading] != [name.lower() for name in first[1]]:
            raise SourceError(
                f"{file.name} has the columns {', '.join(heading)}, and {first[0].name} has "
                f"{', '.join(first[1])}.",
                advice="All files of a job have the same columns in the same order.",
            )
    if first is None:
        if len(files) > _LOOKED_AT_FILES:
            raise _Unsure
        raise SourceError(f"{files[0]} is empty.", advice="A CSV file begins with the names of its columns.")
    twice = sorted({name for name in first[1] if name and first[1].count(name) > 1})
    if twice:
        raise SourceError(
            f"{first[0].name} has the column {', '.join(twice)} more than once.",
            advice="Leave one of them out.",
        )
    return FileColumns({name or f"_c{at}": "string" for at, name in enumerate(first[1])})


def _heading(text: TextIOWrapper) -> list[str] | None:
    """The first record; None: the file is empty."""
    try:
        for record in csv.reader(_lines(text)):
            if record:
                return record
    except csv.Error:
        raise _Unsure from None
    return None


def _lines(text: TextIOWrapper) -> Iterator[str]:
    while line := text.readline(_LONGEST_LINE_BYTES):
        if len(line) == _LONGEST_LINE_BYTES:
            raise _Unsure
        yield line


# JSON --------------------------------------------------------------------------------------------


def _of_json(files: list[Path]) -> FileColumns:
    names: dict[str, None] = {}
    left, first = LOOKED_AT_LINES, ""
    for file in files:
        with _texts(file) as text:
            for line in _lines(text):
                first = first or line.strip()[:1]
                names |= dict.fromkeys(names_in(line))
                left -= 1
                if not left:
                    break
        if not left:
            break
    advice = ""
    if not names:
        advice = "A file of JSON has one object a line."
        if first == "[":
            advice += " Of an array, `jq -c '.[]' FILE` makes lines."
    return FileColumns(dict.fromkeys(names, "string"), advice=advice)


def names_in(line: str) -> list[str]:
    """Which columns a line has; none, if it is no row: that is told of later, with its place."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return list(found) if isinstance(found, dict) else []


# Parquet -----------------------------------------------------------------------------------------


def _of_parquet(file: Path) -> FileColumns:
    if file.stat().st_size == 0:
        raise SourceError(f"{file} is empty.", advice="Check what wrote it.")
    with pq.ParquetFile(str(file)) as opened:
        leaves = [opened.schema.column(at) for at in range(len(opened.schema))]
        fields = list(opened.schema_arrow)
    flat = {leaf.path: leaf for leaf in leaves if leaf.max_repetition_level == 0}
    found: dict[str, str] = {}
    naive_nanos = []
    for field in fields:
        leaf = flat.get(field.name)
        kind, is_naive_nanos = _type_of(leaf) if leaf is not None else (_nested(field.type), False)
        if kind is None and field.name in SINK_COLUMNS:
            raise _Unsure
        if is_naive_nanos:
            naive_nanos.append(field.name)
        found[field.name] = kind or str(field.type)
    return FileColumns(found, tuple(naive_nanos))


def _nested(kind: Any) -> str | None:
    if pa.types.is_map(kind):
        sides = [_nested(side) for side in (kind.key_type, kind.item_type)]
        return None if None in sides else f"map<{sides[0]},{sides[1]}>"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_integer(kind) and str(kind).startswith("int"):
        return _WIDTHS[kind.bit_width]
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return str(kind)
    return None


def _type_of(leaf: Any) -> tuple[str | None, bool]:
    """The type of a flat column as Spark spells it (None: not known here), and whether it has nanoseconds and no
    zone."""
    logical: dict[str, Any] = json.loads(leaf.logical_type.to_json())
    match logical.get("Type"):
        case "None" | "Unknown" | None:
            return (_PLAIN | _PLAIN_TOO).get(leaf.physical_type), False
        case "String" | "Enum" | "JSON":
            return "string", False
        case "BSON":
            return "binary", False
        case "Date":
            return "date", False
        case "Decimal":
            return f"decimal({logical['precision']},{logical['scale']})", False
        case "Int" if logical.get("isSigned", True):
            return _WIDTHS.get(logical["bitWidth"]), False
        case "Timestamp":
            is_naive = not logical["isAdjustedToUTC"]
            kind = "timestamp_ntz" if is_naive else "timestamp"
            return kind, is_naive and logical["timeUnit"] == "nanoseconds"
    return None, False


def is_all_here(path: str, master: str, conf: Iterable[str]) -> bool:
    """Whether Spark finds a path where this process does. ``conf``: names of settings of Spark."""
    if any(name.startswith(("spark.hadoop.fs.", "spark.sql.parquet.", "spark.sql.files.")) for name in conf):
        return False
    if "HADOOP_CONF_DIR" in os.environ and not path.startswith("file:"):
        return False  # its file system may be another one
    return master.startswith("local")
