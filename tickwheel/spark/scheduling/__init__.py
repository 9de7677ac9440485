"""Bulk scheduling: the rows of a DataFrame become messages of a broker, all of them or none.

Tasks write segments in the broker's own format, sorted by time (``tasks``, ``runs``), into a directory of the job, or
put them there by Arrow Flight (``places``); the driver says that they are complete and hands them over (``driver``,
``ways``); ``timerlog.bulk.adopt`` takes them in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tickwheel.arrow.errors import SourceError
from tickwheel.spark.scheduling.driver import Job, begun, schedule_frame
from tickwheel.spark.scheduling.file_columns import is_all_here, look_into
from tickwheel.spark.scheduling.options import Options
from tickwheel.spark.scheduling.renaming import parse_renames
from tickwheel.spark.scheduling.result import Rejected, ScheduleResult, Staged
from tickwheel.spark.scheduling.sources import (
    FORMATS,
    are_texts,
    guess_format,
    naive_nanos_error,
    read_file,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FORMATS",
    "Job",
    "Options",
    "Rejected",
    "ScheduleResult",
    "Staged",
    "begun",
    "check_columns_of",
    "check_file",
    "guess_format",
    "options",
    "parse_renames",
    "schedule_file",
    "schedule_frame",
]


def options(**given: Any) -> Options:
    """What is None is as it is by default."""
    return Options(**{name: value for name, value in given.items() if value is not None})


def schedule_file(
    spark: SparkSession, path: str, kind: str | None, options: Options, job: Job | None = None
) -> ScheduleResult:
    """See ``tickwheel.spark.schedule_file``. ``job``: as it was begun with these options; else it begins here."""
    kind = check_file(path, kind, options)
    options = replace(options, are_texts=are_texts(kind))
    return schedule_frame(read_file(spark, path, kind, options), options, job)


def check_file(path: str, kind: str | None, options: Options) -> str:
    """What can be said without Spark, which takes ten seconds to start; the format. Raises ``SourceError``."""
    options.check()
    return kind or guess_format(path)


def check_columns_of(
    path: str, kind: str, options: Options, *, master: str, conf: Iterable[str] = ()
) -> bool:
    """Whether the columns of files are known to be good, before Spark is there; where only Spark can say (``master``
    and the names of settings, ``conf``, tell), False. Raises ``SourceError``."""
    options = replace(options, are_texts=are_texts(kind))
    found = look_into(path, kind) if is_all_here(path, master, conf) else None
    if found is None:
        return False
    times = next((name for name, field in options.rename.items() if field == "deliver_at"), "deliver_at")
    if times in found.naive_nanos and options.tz is None:
        raise naive_nanos_error(path)
    try:
        options.check_columns(found.columns)
    except SourceError as error:
        if found.advice:
            raise SourceError(error.message, advice=found.advice) from None
        raise
    return True
