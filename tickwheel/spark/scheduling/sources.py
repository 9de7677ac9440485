"""Files as DataFrames of messages. What Spark would guess is told: texts stay texts until a task reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.errors import plain_text, spark_errors
from tickwheel.spark.writing.columns import SINK_COLUMNS, check_columns
from tickwheel.spark.writing.reasons import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Formats, and how the names of their files end.
FORMATS: Final[dict[str, tuple[str, ...]]] = {
    "parquet": ("parquet", "pq"),
    "csv": ("csv",),
    "json": ("json", "jsonl", "ndjson"),
}
_PACKED: Final = ("gz", "bz2", "zst", "zstd", "snappy", "lz4")
_NANOS_AS_NUMBERS: Final = "spark.sql.legacy.parquet.nanosAsLong"
_LOOKED_AT: Final = 1_000


def guess_format(path: str) -> str:
    """The format that the name of a file or a directory says. Raises ``SourceError``."""
    words = path.rstrip("/").rpartition("/")[2].lower().split(".")
    while len(words) > 1 and words[-1] in _PACKED:
        words.pop()
    for name, endings in FORMATS.items():
        if len(words) > 1 and words[-1] in endings:
            return name
    raise SourceError(
        f"The name of {path} does not say its format.", advice=f"Use --format: {', '.join(FORMATS)}."
    )


def read_file(spark: SparkSession, path: str, kind: str, topic: str | None) -> DataFrame:
    """The rows of a file or a directory of files. Raises ``SourceError``, also for columns that no message has."""
    try:
        match kind:
            case "parquet":
                return _read_parquet(spark, path)
            case "csv":
                return _read_csv(spark, path, topic)
            case "json":
                return _read_json(spark, path, topic)
    except spark_errors() as error:
        what = plain_text(error).split("\n")[0].partition(" SQLSTATE")[0]
        raise SourceError(
            f"{path} cannot be read as {kind}: {what}", advice="Check the path and --format."
        ) from None
    raise SourceError(f"There is no format {kind!r}.", advice=f"Use one of {', '.join(FORMATS)}.")


def are_texts(kind: str) -> bool:
    """Whether the columns of such files are texts."""
    return kind != "parquet"


def _read_parquet(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import functions as F

    spark.conf.set(_NANOS_AS_NUMBERS, "false")  # a file before this one may have needed it
    try:
        return spark.read.parquet(path)
    except spark_errors() as error:
        if "TIMESTAMP(NANOS,false)" in str(error):
            raise SourceError(
                f"{path} has times without a time zone.",
                advice="In pandas: frame['deliver_at'].dt.tz_localize('Europe/Berlin'), or whatever zone is meant.",
            ) from None
        if "TIMESTAMP(NANOS,true)" not in str(error):
            raise
    # What pandas writes by default. Spark reads it as whole numbers, if this is set when the tasks are planned, too.
    spark.conf.set(_NANOS_AS_NUMBERS, "true")
    frame = spark.read.parquet(path)
    micros = F.expr("(deliver_at + 999) div 1000")
    is_there = dict(frame.dtypes).get("deliver_at") == "bigint"
    return frame.withColumn("deliver_at", F.timestamp_micros(micros)) if is_there else frame


def _read_csv(spark: SparkSession, path: str, topic: str | None) -> DataFrame:
    options: dict[str, Any] = {
        "header": True,
        "multiLine": True,  # bodies may have line ends in them, in quotes: so files are not cut at lines
        "escape": '"',
        "enforceSchema": False,
        "nullValue": "\0",  # never in a file: so "" is an empty text, and nothing at all is NULL
        "emptyValue": "",
    }
    names = spark.read.options(**options).csv(path).columns
    check_columns(dict.fromkeys(names, "string"), topic, are_texts=True)
    return spark.read.options(columnNameOfCorruptRecord=CORRUPT, **options).csv(path, schema=_texts(names))


def _read_json(spark: SparkSession, path: str, topic: str | None) -> DataFrame:
    lines = spark.read.text(path).limit(_LOOKED_AT).collect()
    names: dict[str, None] = {}
    for line in lines:
        names |= dict.fromkeys(_names(line[0]))
    check_columns(dict.fromkeys(names, "string"), topic, are_texts=True)
    # A column that comes later in the file counts as well.
    every = [*names, *(name for name in SINK_COLUMNS if name not in names)]
    return spark.read.option("columnNameOfCorruptRecord", CORRUPT).json(path, schema=_texts(every))


def _names(line: str) -> list[str]:
    """Which columns a line has; none, if it is no row: that is told of later, with its place."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return []
    return list(found) if isinstance(found, dict) else []


def _texts(names: list[str]) -> str:
    return ", ".join(f"`{name}` string" for name in (*names, CORRUPT))
