"""Files as DataFrames of messages. What Spark would guess is told: texts stay texts until a task reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.errors import plain_text, spark_errors
from tickwheel.spark.scheduling.file_columns import LOOKED_AT_LINES, names_in
from tickwheel.spark.scheduling.options import Options
from tickwheel.spark.writing.columns import SINK_COLUMNS
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


def read_file(spark: SparkSession, path: str, kind: str, options: Options) -> DataFrame:
    """The rows of a file or a directory of files, under the names that they have there. Raises ``SourceError``, also
    for columns that no message has."""
    try:
        match kind:
            case "parquet":
                return _read_parquet(spark, path, options)
            case "csv":
                return _read_csv(spark, path, options)
            case "json":
                return _read_json(spark, path, options)
    except spark_errors() as error:
        what = plain_text(error).split("\n")[0].partition(" SQLSTATE")[0]
        raise SourceError(
            f"{path} cannot be read as {kind}: {what}", advice="Check the path and --format."
        ) from None
    raise SourceError(f"There is no format {kind!r}.", advice=f"Use one of {', '.join(FORMATS)}.")


def are_texts(kind: str) -> bool:
    """Whether the columns of such files are texts."""
    return kind != "parquet"


def naive_nanos_error(path: str) -> SourceError:
    """For a file of pandas whose times have no zone."""
    return SourceError(
        f"{path} has times without a time zone.",
        advice="Name the zone: --tz Europe/Berlin (tz='Europe/Berlin'). Or in pandas: "
        "frame['deliver_at'].dt.tz_localize('Europe/Berlin').",
    )


def _read_parquet(spark: SparkSession, path: str, options: Options) -> DataFrame:
    from pyspark.sql import functions as F

    spark.conf.set(_NANOS_AS_NUMBERS, "false")  # a file before this one may have needed it
    try:
        return spark.read.parquet(path)
    except spark_errors() as error:
        is_naive = "TIMESTAMP(NANOS,false)" in str(error)
        if is_naive and options.tz is None:
            raise naive_nanos_error(path) from None
        if not is_naive and "TIMESTAMP(NANOS,true)" not in str(error):
            raise
    # What pandas writes by default. Spark reads it as whole numbers, if this is set when the tasks are planned, too.
    spark.conf.set(_NANOS_AS_NUMBERS, "true")
    frame = spark.read.parquet(path)
    names = {field: name for name, field in options.rename.items()}
    name = names.get("deliver_at", "deliver_at")
    if dict(frame.dtypes).get(name) != "bigint":
        return frame
    micros = f"({_quoted(name)} + 999) div 1000"
    time = f"timestampadd(MICROSECOND, {micros}, timestamp_ntz'1970-01-01')" if is_naive else None
    return frame.withColumn(name, F.expr(time or f"timestamp_micros({micros})"))


def _read_csv(spark: SparkSession, path: str, options: Options) -> DataFrame:
    settings: dict[str, Any] = {
        "header": True,
        "multiLine": True,  # bodies may have line ends in them, in quotes: so files are not cut at lines
        "escape": '"',
        "enforceSchema": False,
        "nullValue": "\0",  # never in a file: so "" is an empty text, and nothing at all is NULL
        "emptyValue": "",
    }
    names = spark.read.options(**settings).csv(path).columns
    options.check_columns(dict.fromkeys(names, "string"))
    return spark.read.options(columnNameOfCorruptRecord=CORRUPT, **settings).csv(path, schema=_texts(names))


def _read_json(spark: SparkSession, path: str, options: Options) -> DataFrame:
    lines = spark.read.text(path).limit(LOOKED_AT_LINES).collect()
    names: dict[str, None] = {}
    for line in lines:
        names |= dict.fromkeys(names_in(line[0]))
    options.check_columns(dict.fromkeys(names, "string"))
    # A column that comes later in the file counts as well.
    taken = {*names, *options.rename.values()}
    every = [*names, *(name for name in SINK_COLUMNS if name not in taken)]
    return spark.read.option("columnNameOfCorruptRecord", CORRUPT).json(path, schema=_texts(every))


def _texts(names: list[str]) -> str:
    return ", ".join(f"{_quoted(name)} string" for name in (*names, CORRUPT))


def _quoted(name: str) -> str:
    """As SQL of Spark has it."""
    return f"`{name.replace('`', '``')}`"
