"""The data pipeline: Tickwheel's messages as a Spark data source, and sessions that need no setting up.

>>> from tickwheel.spark import session
>>> spark = session()
>>> messages = spark.read.format("tickwheel").load("data")
>>> messages.where("state = 'waiting'").groupBy("topic").count().show()

In a session of your own, ``register(spark)`` makes the format known. Nothing here is imported before it is used, and
importing this package needs neither pyspark nor Java: see ``tickwheel.spark.errors`` for what is missing when it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tickwheel.spark.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveError,
    JavaMissing,
    PositionLost,
    RowsRejected,
    SourceError,
    SparkError,
    SparkMissing,
    understood,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tickwheel.spark.archive import ArchiveReport, RestoreReport
    from tickwheel.spark.repair import RepairReport

__all__ = [
    "ArchiveBusy",
    "ArchiveDamaged",
    "ArchiveError",
    "JavaMissing",
    "PositionLost",
    "RowsRejected",
    "SourceError",
    "SparkError",
    "SparkMissing",
    "archive_messages",
    "conditions",
    "register",
    "reschedule_messages",
    "restore_messages",
    "session",
    "understood",
]


def register(spark: SparkSession) -> None:
    """Makes ``format("tickwheel")`` known to a session; it is harmless to do it twice."""
    from tickwheel.spark.source import TickwheelSource

    spark.dataSource.register(TickwheelSource)


def conditions(*wanted: tuple[Any, ...]) -> str:
    """The value of the option ``filters``: see ``tickwheel.spark.predicates.conditions``."""
    from tickwheel.spark import predicates

    return predicates.conditions(*wanted)


def session(**options: Any) -> SparkSession:
    """A session that knows the format; see ``tickwheel.spark.sessions.make_session``. Raises ``SparkMissing``,
    ``JavaMissing``."""
    from tickwheel.spark.sessions import make_session

    return make_session(**options)


def archive_messages(spark: SparkSession, to: str | Path, **options: Any) -> ArchiveReport:
    """Archives what is done, and has the broker drop it: see ``tickwheel.spark.archive.archive``."""
    from tickwheel.spark.archive import archive

    return archive(spark, to, **options)


def restore_messages(spark: SparkSession, source: str | Path, **options: Any) -> RestoreReport:
    """Brings a time range back from an archive: see ``tickwheel.spark.archive.restore``."""
    from tickwheel.spark.archive import restore

    return restore(spark, source, **options)


def reschedule_messages(spark: SparkSession, where: str, **options: Any) -> RepairReport:
    """Gives messages that a condition means another time: see ``tickwheel.spark.repair.reschedule``."""
    from tickwheel.spark.repair import reschedule

    return reschedule(spark, where, **options)
