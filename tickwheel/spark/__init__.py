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
    from pyspark.sql import SparkSession

__all__ = [
    "JavaMissing",
    "PositionLost",
    "RowsRejected",
    "SourceError",
    "SparkError",
    "SparkMissing",
    "conditions",
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


def session(**options: Any) -> SparkSession:
    """A session that knows the format; see ``tickwheel.spark.sessions.make_session``. Raises ``SparkMissing``,
    ``JavaMissing``."""
    from tickwheel.spark.sessions import make_session

    return make_session(**options)
