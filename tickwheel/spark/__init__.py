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
    JavaMissing,
    PositionLost,
    RowsRejected,
    SourceError,
    SparkError,
    SparkMissing,
    understood,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = [
    "JavaMissing",
    "PositionLost",
    "RowsRejected",
    "SourceError",
    "SparkError",
    "SparkMissing",
    "conditions",
    "make_report",
    "register",
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


def make_report(
    spark: SparkSession,
    directories: Sequence[str | Path] | str | Path,
    out: str | Path,
    **options: Any,
) -> dict[str, Any]:
    """Reports on the deliveries of data directories: writes ``index.html``, ``summary.json`` and
    ``tables/*.parquet`` to ``out``, which is new, empty or an earlier report, and returns the summary. Options:
    ``since`` and ``until`` (aware datetimes), ``by``, ``tenant``, ``top``, ``committed``;
    docs/how-to/spark-report.md explains them.

    Raises ``SourceError``, and what ``tickwheel.spark.report.options`` defines: ``ReportError``, ``OutputRefused``,
    ``PlottingMissing``."""
    from pathlib import Path

    from tickwheel.spark.report import make
    from tickwheel.spark.report.options import report_options

    return make.make_report(spark, report_options(directories, **options), Path(out))


def session(**options: Any) -> SparkSession:
    """A session that knows the format; see ``tickwheel.spark.sessions.make_session``. Raises ``SparkMissing``,
    ``JavaMissing``."""
    from tickwheel.spark.sessions import make_session

    return make_session(**options)
