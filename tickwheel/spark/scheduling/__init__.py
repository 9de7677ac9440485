"""Bulk scheduling: the rows of a DataFrame become messages of a broker, all of them or none.

Tasks write segments in the broker's own format, sorted by time, into a directory of the job (``tasks``, ``runs``); the
driver says that they are complete and hands them over (``driver``); ``timerlog.bulk.adopt`` takes them in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tickwheel.spark.scheduling.driver import Options, schedule_frame
from tickwheel.spark.scheduling.result import Rejected, ScheduleResult
from tickwheel.spark.scheduling.sources import FORMATS, are_texts, guess_format, read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FORMATS",
    "Options",
    "Rejected",
    "ScheduleResult",
    "check_file",
    "guess_format",
    "options",
    "schedule_file",
    "schedule_frame",
]


def options(**given: Any) -> Options:
    """What is None is as it is by default."""
    return Options(**{name: value for name, value in given.items() if value is not None})


def schedule_file(spark: SparkSession, path: str, kind: str | None, options: Options) -> ScheduleResult:
    """See ``tickwheel.spark.schedule_file``."""
    kind = check_file(path, kind, options)
    frame = read_file(spark, path, kind, options.topic)
    return schedule_frame(frame, replace(options, are_texts=are_texts(kind)))


def check_file(path: str, kind: str | None, options: Options) -> str:
    """What can be said without Spark, which takes ten seconds to start; the format. Raises ``SourceError``."""
    options.check()
    return kind or guess_format(path)
